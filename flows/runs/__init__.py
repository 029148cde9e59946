"""What a run leaves: its record, the files of its stages, what they changed, and how numbers are
written."""
