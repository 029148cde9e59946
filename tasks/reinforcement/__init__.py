"""The parts of the GRPO stage beside the loss: config and curriculum, rollouts, rewards, collapse
detection, and judging a finished stage's ledger again."""
