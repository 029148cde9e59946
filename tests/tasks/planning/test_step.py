"""The table of `benchmarks.step_tpu`, from cases that were compiled before."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.step_tpu import RESPONSE, SHAPE, Results, on_tpu


def test_ours_beside_stock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [
        ("stock", "sft", report(flops=197e12)),
        ("ours", "sft", report(bytes_accessed=819e9 / 2)),
        ("stock", "grpo", report(refusal="Ran out of memory", hbm_bytes=int(20e9))),
        ("ours", "grpo", report(link_bytes=100e9)),
        ("stock", "prefill", report(hbm_bytes=int(9e9), bytes_accessed=819e9)),
        ("stock", "decode", report(bytes_accessed=819e9)),
        (
            "ours",
            "decode",
            report(bytes_accessed=819e9 / 4) | {"prefill": report(bytes_accessed=819e9 / 2)},
        ),
    ]
    found = table(tmp_path, cases, capsys)
    assert found["sft", "stock"] == ["1.00", "197", "0", "0", "1000", "compute", ""]
    assert found["sft", "ours"] == ["1.00", "0", "410", "0", "500", "memory", "2.00"]
    assert found["grpo", "stock"] == ["20.00: refused", *[""] * 6]
    assert found["grpo", "ours"][-3:] == ["1000", "links", ""]
    assert found["rollout", "stock"][:1] == ["9.00"]
    steps = RESPONSE - 1
    assert found["rollout", "ours"][-1] == f"{(1 + steps) / (0.5 + steps / 4):.2f}"
    assert found["of it: prefill", "ours"][-1] == "2.00"
    assert found["of it: one decode step", "ours"][-1] == "4.00"


def test_what_was_not_compiled_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = table(
        tmp_path,
        [("stock", "sft", report(flops=1.0)), ("stock", "decode", report(flops=1.0))],
        capsys,
    )
    assert list(found) == [("sft", "stock")]


def report(**fields: Any) -> dict[str, Any]:
    return {
        "hbm_bytes": 10**9,
        "flops": 0.0,
        "bytes_accessed": 0.0,
        "link_bytes": 0.0,
        "refusal": None,
        **fields,
    }


def table(
    directory: Path,
    cases: list[tuple[str, str, dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> dict[tuple[str, str], list[str]]:
    """(program, side) -> the cells after them."""
    lines = [
        json.dumps(
            {
                "case": {"who": who, "target": "v5e-8", "program": program, "shape": SHAPE},
                "report": one,
            }
        )
        for who, program, one in cases
    ]
    (directory / "cases.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    on_tpu("v5e-8", Results(directory / "cases.jsonl"), known=True)
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("| ")
    ]
    return {(row[0], row[1]): row[2:] for row in rows[1:]}
