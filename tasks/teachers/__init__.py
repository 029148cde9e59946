"""Teachers: where worked traces come from, a file each (`tasks.contract.teacher`)."""
