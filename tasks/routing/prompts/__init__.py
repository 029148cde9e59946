"""The templates of the router's training prompts, a file a domain (`tasks.routing.router_training`)."""
