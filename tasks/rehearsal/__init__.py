"""Whether a recipe is worth running, before it is paid for."""
