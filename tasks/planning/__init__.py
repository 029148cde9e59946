"""Planning: a stage's programs, what the TPU compiler says of them, and the cost read from HLO."""
