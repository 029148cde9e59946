"""What a stage kind is given and gives: its job, its journal, and how kinds and plugins are
found."""
