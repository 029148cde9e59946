"""Prefect flows and the `lyceum` command."""
