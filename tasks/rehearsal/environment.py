"""The environment of processes that compile much and compute little: jobs of a rehearsal, and
tests."""

from infra.process import HUGE_PAGES

XLA_FLAGS = (
    "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
"""XLA compiles in half the processor time, and its programs are as fast: one that is not cut in 32
parts costs a third less, and the other core has another stage. Level 0 halves that again, and its
programs take three times as long (64 tokens of 4 rows), too long for long rows."""

GLIBC_TUNABLES = (
    f"{HUGE_PAGES}:glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0"
    ":glibc.malloc.trim_threshold=8589934592"
)
"""A process also keeps the memory of a step's buffers. Given back after each step and asked for
again, it is cleared, which took two fifths of SimPO's processor time."""
