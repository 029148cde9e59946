"""On-policy distillation: batches of what the student samples, scored by its teacher."""
