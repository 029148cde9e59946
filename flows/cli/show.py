"""Tables and lines for a terminal. Standard output: what was asked for; it is never mixed with
logs."""

import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.runs.wording import duration, headline, size
from infra.visible import plain
from schemas.reports import RunRecord

_KEY = re.compile(r"[0-9a-f]{64}")
PLAIN_WIDTH = 160
"""Columns when standard output is no terminal; rich would assume 80 and cut."""


def console() -> Console:
    """Standard output as it is now (tests and pipes replace it)."""
    return Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False
    )


def show_run(record: RunRecord) -> None:
    """The summary at the end of a run."""
    rows = [
        (stage.name, stage.kind, stage.status, f"{stage.seconds:.1f}", headline(stage.metrics))
        for stage in record.stages
    ]
    seconds = (record.finished or time.time()) - record.started
    table(
        f"{record.run_id}: {record.status} in {seconds:.1f} s",
        ("stage", "kind", "status", "seconds", "metrics"),
        rows,
    )
    for stage in record.stages:
        if stage.error:
            line(f"{stage.name}: {stage.error}")
        if stage.repaired:
            line(f"{stage.name}: {stage.repaired}")
    if record.report:
        line(f"Report: {record.report}")


def show_plan(plan: dict[str, Any]) -> None:
    """What a run would do; on a TPU program by program."""
    from flows.planning.plan import what_is_wrong

    local = plan["target"] == "local"
    programs = [
        (stage["name"], program) for stage in plan["stages"] for program in stage["programs"]
    ]
    if programs:
        rows = [
            (
                name,
                one["name"],
                f"{one['hbm_bytes'] / 2**30:.2f} of {one['hbm_limit_bytes'] / 2**30:.2f}",
                "yes" if one["fits"] else "NO",
                f"{one['flops'] / 1e12:.3g}" if one["refusal"] is None else "",
                f"{one['bytes_accessed'] / 1e9:.3g}" if one["refusal"] is None else "",
                (
                    f"{_short_time(one['roofline_seconds'])}, {one['bound']}"
                    if one["refusal"] is None
                    else ""
                ),
                f"{one['calls']:.0f}",
            )
            for name, one in programs
        ]
        columns = (
            "stage",
            "program",
            "GiB of HBM",
            "fits",
            "TFLOP",
            "GB moved",
            "roofline, bound by",
            "calls",
        )
        table(
            f"programs of {plan['recipe']} on one device of {plan['target']}, one call",
            columns,
            rows,
        )
    rows = []
    for stage in plan["stages"]:
        what = "cached" if stage["cached"] else "would run"
        seconds, usd = stage["seconds"], stage["cost_usd"]
        times = (
            (_seconds(seconds),)
            if local
            else (
                "?" if seconds is None else duration(seconds),
                "?" if usd is None else f"{usd:.2f}",
            )
        )
        rows.append(
            (
                stage["name"],
                stage["kind"],
                what,
                *times,
                stage["reason"] + (f"; from {stage['basis']}" if "basis" in stage else ""),
            )
        )
    head = (
        ("stage", "kind", "", "seconds", "because")
        if local
        else ("stage", "kind", "", "time", "USD", "because")
    )
    table(f"{plan['recipe']} on {plan['target']}", head, rows)
    for name, one in programs:
        for what in one["uncounted"]:
            line(f"{name} {one['name']}: {what}.")
    if local:
        line(f"Expected: {_seconds(plan['seconds'])} s (from earlier runs; ? where there was none)")
    else:
        stages = plan["stages"]
        unknown = [
            stage["name"]
            for stage in stages
            if stage["seconds"] is None or stage["cost_usd"] is None
        ]
        seconds, usd = (
            sum(stage[field] or 0.0 for stage in stages) for field in ("seconds", "cost_usd")
        )
        line(
            f"Expected: {duration(seconds)}, {usd:.2f} USD by list"
            f" price{', and ' + ', '.join(unknown) if unknown else ''}"
        )
    for problem in what_is_wrong(plan):
        line(problem)
    if programs and plan["fits"]:
        line(f"It fits {plan['target']}.")


def show_why(why: dict[str, Any]) -> None:
    """Why one stage is cached or not."""
    line(f"{why['stage']} is {'cached' if why['cached'] else 'not cached'}: {why['reason']}.")
    line(f"key: {why['key'] or 'not known until its inputs are there'}")
    near = why["nearest"]
    if why["cached"]:
        return
    if near is None:
        line(f"The store has no artifact of kind {why['kind']} to compare with.")
    elif not why["differences"]:
        line(f"Nothing in its identity differs from artifact {near['kind']}/{near['key']}.")
    else:
        rows = [
            (one["field"], _short(one["here"]), _short(one["there"])) for one in why["differences"]
        ]
        table(
            f"against the nearest artifact, {near['kind']}/{near['key'][:12]}",
            ("field", "here", "there"),
            rows,
        )


def show_runs(runs: dict[str, Any]) -> None:
    """All runs of a store, the newest last."""
    rows = []
    for run in runs["runs"]:
        stages = f"{run['stages_done']}/{run['stages']}"
        rows.append(
            (
                run["run_id"],
                run["recipe"],
                run["target"],
                run["status"],
                stages,
                _clock(run["started"]),
                _clock(run["updated"]),
            )
        )
    table("runs", ("run", "recipe", "target", "status", "stages", "started", "last written"), rows)


def show_garbage(garbage: dict[str, Any]) -> None:
    """What `lyceum gc` found, the totals, and what became of it."""
    now = time.time()
    rows = [
        (
            item["kind"],
            _KEY.sub(lambda key: key[0][:12], item["name"]),
            item["why"],
            size(item["bytes"]),
            duration(max(0.0, now - item["written"])),
        )
        for item in garbage["items"]
    ]
    if rows:
        table("garbage", ("kind", "what", "why", "size", "age"), rows)
        table(
            "totals",
            ("kind", "count", "size"),
            [
                (kind, str(one["count"]), size(one["bytes"]))
                for kind, one in garbage["totals"].items()
            ],
        )
    kept = [item for item in garbage["items"] if not item["deleted"]]
    if not rows:
        line(f"Nothing in {garbage['store']} is garbage.")
    elif not garbage["delete"]:
        line(
            f"{size(garbage['bytes'])} in {garbage['store']} are garbage. Nothing was removed;"
            " --delete removes it."
        )
    else:
        line(f"{size(garbage['deleted_bytes'])} were removed from {garbage['store']}.")
        for item in kept:
            line(f"{item['name']} was not: it is in use by now.")


def show_machines(machines: dict[str, Any]) -> None:
    """Machines in the cloud that no run follows any more, and what became of them."""
    found = machines["machines"]
    if not found:
        line(f"No machine of ours is left over on {machines['target']}.")
        return
    done = [
        (one, "removed" if one["removed"] else "removable" if one["removable"] else "kept")
        for one in found
    ]
    rows = [(one["name"], one["state"], one["attempt"], what, one["why"]) for one, what in done]
    table(f"machines of {machines['target']}", ("machine", "state", "attempt", "", "because"), rows)
    if any(one["removable"] and not one["removed"] for one in found):
        line(
            "Some could not be removed; see above."
            if machines["delete"]
            else "Nothing was removed; --delete removes what is removable."
        )


def show_export(export: dict[str, Any]) -> None:
    """What was exported, and what the proof found."""
    proof = export["verification"]
    table(
        f"{export['stage']} of {export['run_id']}",
        ("file", "size"),
        [(name, size(count)) for name, count in export["files"].items()],
    )
    line(
        f"transformers {proof['transformers']} agrees: {proof['prompts']} prompts rendered alike,"
        f" logits within {proof['max_logit_difference']:.1e} (tolerance {proof['tolerance']:g},"
        f" {proof['dtype']}), {proof['greedy_tokens']} greedy tokens."
    )
    line(f"Directory: {export['directory']}")


def show_scores(scores: dict[str, Any]) -> None:
    """What was written, per format."""
    rows = [(name, str(len(files)), files[0]) for name, files in scores["formats"].items()]
    table(f"scores of {scores['run_id']}", ("format", "files", "the first"), rows)
    line(f"Directory: {scores['directory']}")
    show_left_out(scores["left_out"])


def show_left_out(left_out: Mapping[str, str]) -> None:
    """What could not be told of a run, and why (`RunResults.left_out`)."""
    for name, why in left_out.items():
        line(f"Left out: stage {name}: {why}. `lyceum run` with the same recipe makes it again.")


def show_gate(value: dict[str, Any]) -> None:
    """What the gate answered."""
    from flows.promotion.gate import COLUMNS, DEFAULT, Gate, rows

    verdict = Gate.parse(value)
    if verdict.findings:
        table(
            f"{verdict.candidate} against {verdict.champion or 'its base'}", COLUMNS, rows(verdict)
        )
    if verdict.default:
        line(DEFAULT)
    line(f"{'Passed' if verdict.promote else 'Not passed'}: {verdict.why}.")


def show_champion(value: dict[str, Any]) -> None:
    """An entry of `lyceum promote`."""
    did = "rolled back to" if value["change"] == "rollback" else "promoted"
    line(
        f"Champion of {value['recipe']}, number {value['number']}: {did} run {value['run_id']}"
        f" ({value['why']})."
    )
    line(f"Model of stage {value['stage']}: {value['location']}")


def show_champions(value: dict[str, Any]) -> None:
    """What `lyceum promote --history` found."""
    rows = [
        (
            str(entry["number"]),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["at"])),
            entry["change"],
            entry["run_id"],
            headline(entry["metrics"]),
            entry["by"],
            entry["why"],
        )
        for entry in value["history"]
    ]
    table(
        f"champions of {value['recipe']}, the current one last",
        ("no.", "when", "change", "run", "metrics", "by", "why"),
        rows,
    )
    back = value["rollbacks"]
    line(
        f"A rollback would lead to number {back[0]}."
        if back
        else "There is no champion to roll back to."
    )


def show_comparisons(comparisons: Sequence[Mapping[str, Any]]) -> None:
    """Runs beside the first of them."""
    from flows.report.compare import comparison_blocks

    for comparison in comparisons:
        for block in comparison_blocks(comparison):
            if isinstance(block, str):
                line(block)
            else:
                table(*block)
        show_left_out(comparison["left_out"])


def show_recipes(recipes: dict[str, Any]) -> None:
    """The shipped recipes."""
    rows = [
        (recipe["name"], recipe["model"], " -> ".join(recipe["stages"]))
        for recipe in recipes["recipes"]
    ]
    table("recipes", ("name", "model", "stages"), rows)


def show_checks(doctor: dict[str, Any]) -> None:
    """The doctor's findings: whether each is well, and the details."""
    rows = [
        ("ok" if check["well"] else "!!", check["name"], check["found"])
        for check in doctor["checks"]
    ]
    table("doctor", ("", "check", "found"), rows)


def line(text: str) -> None:
    """One line of text."""
    console().print(Text(plain(text)), soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    line(title)
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    console().print(table)


def _clock(seconds: float | None) -> str:
    return "?" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _short_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
