"""Templates of the training prompts of `tasks.routing.router_training`, a file a domain."""
