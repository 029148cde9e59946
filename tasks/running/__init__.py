"""Runs a stage: reuse its artifact, or submit one job and follow it. Prefect's task (`tasks.stage`)
is one caller."""
