"""The formats of `lyceum scores`, a file each (`flows.scores.Format`)."""
