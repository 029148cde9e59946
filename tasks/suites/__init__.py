"""Suites: evaluation sets that people know by name, a file each (`tasks.contract.suite`)."""
