"""The work: a stage kind is a file, and so is a reward, a check, a suite and a teacher."""
