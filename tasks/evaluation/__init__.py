"""Evaluation: running suites, grounding, refusals, controls, and the DIPG scorer."""
