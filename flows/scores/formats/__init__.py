"""One file per format, with `write(run, directory)`, which writes into an empty directory and says
how many files of a run it made."""
