"""Evaluation: asking prompts and suites, judging answers by rules, and metrics of them."""
