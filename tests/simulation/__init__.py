"""The orchestrator under every fault, in one process, in virtual time, from one seed.

    uv run python -m tests.simulation --seed N [--histories K] [--replay]

What runs is Lyceum's own code: the chain's walk, the stage task, leases, the store, both backends,
the reaper, the agents of machines, garbage collection. What it stands on is simulated: the standard
library's clock, threads, chance and processes (`library`), the disk's system calls (`disk`), the
clients of Cloud Storage (`bucket`) and Cloud TPU (`cloud`). docs/simulation.md has more.
"""
