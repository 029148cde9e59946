"""The contracts of stage kinds and plugins: a stage's job and journal, and how kinds and plugins
are found."""
