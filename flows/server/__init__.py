"""Prefect's API and its deployments; the servers that we start: whom they admit, and how our own
processes recognise them."""
