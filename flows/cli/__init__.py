"""The `lyceum` command: what each subcommand does, and what it shows."""
