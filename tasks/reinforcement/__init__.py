"""What the GRPO stage is made of beside the loss: which prompts a rollout asks, rollouts that are
kept, when a run is dying, its ledger."""
