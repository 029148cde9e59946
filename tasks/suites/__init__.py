"""Suites: evaluation sets known by name, a file each (`tasks.contract.suite`)."""
