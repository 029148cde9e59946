"""`lyceum rehearse`: the shipped recipe on this machine, in minutes, with its sizes cut and nothing
else."""
