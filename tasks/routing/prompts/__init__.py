"""Templates of the training prompts of `tasks.routing.classifier`, a file a domain."""
