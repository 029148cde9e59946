"""Checks: each file compares an answer with its prompt's reference or tests
(`tasks.contract.check`)."""
