"""Teachers: sources of worked traces, a file each (`tasks.contract.teacher`)."""
