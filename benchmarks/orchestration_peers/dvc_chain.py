"""The chain on DVC: `dvc.yaml` runs this file once per stage; parents and settings come from files,
as DVC wants it."""

import sys
from pathlib import Path

from chain_stage import settings, stage

if __name__ == "__main__":
    number = int(sys.argv[1])
    parent = Path(f"out-{number - 1}").read_bytes() if number > 1 else b""
    Path(f"out-{number}").write_bytes(stage(number, settings()[number - 1], parent))
