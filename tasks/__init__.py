"""The work: a stage kind is a file, and so are a reward, a teacher and a loss."""
