"""Checks: how an answer is compared with what its prompt knows, a file each
(`tasks.contract.check`)."""
