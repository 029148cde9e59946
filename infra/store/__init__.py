"""The store: artifacts, leases, working files, and what the places for objects share."""
