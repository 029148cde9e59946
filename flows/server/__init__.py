"""The Prefect servers that we start: who is let in, and how our own processes know them."""
