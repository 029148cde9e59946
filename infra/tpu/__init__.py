"""Cloud TPU: queued resources, the machines of jobs, and the agent on them."""
