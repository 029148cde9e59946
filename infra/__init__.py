"""Machines and storage. Imports `schemas` only: no JAX, no Prefect."""
