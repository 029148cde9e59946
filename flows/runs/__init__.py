"""The traces of a run: its record, the files of its stages, what they changed, and how numbers are
written."""
