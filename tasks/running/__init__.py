"""Running a stage: what it is reused by, what is submitted, and how its job is followed, whoever
looks at it. Prefect's task is one that does (`tasks.stage`)."""
