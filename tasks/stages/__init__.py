"""The stage kinds: one file each, and nothing else. A kind is its file name."""
