"""Planning: a stage's programs, the TPU compiler's reports on them, and their cost, read from
HLO."""
