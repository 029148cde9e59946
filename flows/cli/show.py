"""Answers of commands as blocks, and blocks on a terminal. Standard output has the answer alone,
never mixed with logs."""

import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import table as rich_table
from rich.console import Console
from rich.text import Text as Shown

from flows.report import blocks as ui
from flows.report.blocks import Block, Table
from flows.runs.record import left
from flows.runs.wording import duration, headline, listed, size
from infra.visible import plain
from schemas.reports import RunRecord

if TYPE_CHECKING:  # with NumPy, which most commands do not need
    from flows.runs.replicates import Replicates

_KEY = re.compile(r"[0-9a-f]{64}")
LONGEST_NAME = 48
"""Names of at most so many characters in a table's first column stay whole, to be copied."""

PLAIN_WIDTH = 160
"""Columns of a table when standard output is no terminal; rich would assume 80 and cut."""
PARAGRAPH_WIDTH = 79
"""Columns of what is to be read."""


def show(blocks: Iterable[Block]) -> None:
    """Print blocks: what a page shows at first sight, without its plots and explanations."""
    for _ in ui.formed(blocks, _FORMS):
        pass  # each is printed as it comes


def line(text: ui.Text) -> None:
    _as_it_is(ui.plain(text))


def _as_it_is(text: str) -> None:
    """Text with its lines and their indents."""
    _console().print(Shown(plain(text)), soft_wrap=True)


def _sentences(sentences: ui.Sentences) -> None:
    for _, text in sentences.items:
        line(text)


def _details(details: ui.Details) -> None:
    if details.open:
        line(details.summary)
        show(details.blocks)


def _table(table: Table) -> None:
    if table.title:
        line(table.title)
    drawn = rich_table.Table()
    rows = [
        [row] if isinstance(row, str) else [ui.plain(cell.text) for cell in row]
        for row in table.lines
    ]
    names = all(len(row[0]) <= LONGEST_NAME and " " not in row[0] for row in rows)
    for index, column in enumerate(table.heads):
        drawn.add_column(ui.plain(column.title), overflow="fold", no_wrap=names and index == 0)
    for row in rows:
        drawn.add_row(*(Shown(plain(text)) for text in row))
    _console().print(drawn)


_FORMS: ui.Forms[None] = {
    str: line,
    ui.Heading: lambda heading: line(heading.text),
    ui.Paragraph: lambda one: None if "note" in one.classes else line(one.text),
    ui.Code: lambda code: _as_it_is(code.text),
    ui.Table: _table,
    ui.Figure: lambda figure: None,
    ui.Sentences: _sentences,
    ui.Details: _details,
    ui.Box: lambda box: show(box.blocks),
    ui.Raw: lambda raw: None,
}


def _console() -> Console:
    """Standard output as it is now (tests and pipes replace it), wide enough for any column."""
    console = Console(file=sys.stdout, highlight=False)
    console.width = max(console.width, PARAGRAPH_WIDTH) if sys.stdout.isatty() else PLAIN_WIDTH
    return console


def run(record: RunRecord, following: Sequence[str]) -> Iterator[Block]:
    """The summary at the end of a run. `following`: its `next_commands`."""
    from flows.report.summaries import stages_done

    seconds = (record.finished or time.time()) - record.started
    paid = "" if record.cost_usd is None else f", {record.cost_usd:.2f} USD by list price"
    yield stages_done(record, f"{record.run_id}: {record.status} in {seconds:.1f} s{paid}")
    for stage in record.stages:
        error = stage.error if stage.outcome != "skipped" else None  # for what failed before it
        yield from (f"{stage.name}: {said}" for said in (error, stage.repaired) if said)
    if record.status == "paused":
        yield (
            f"The deadline came; left: {', '.join(left(record))}. The same command continues, here"
            f" or elsewhere, with this store: {record.store}"
        )
    if record.status == "cancelled":
        stopped = [one.name for one in record.stages if one.outcome == "stopped"]
        ran = f"while {listed(stopped)} ran" if stopped else "between two stages"
        never = [name for name in left(record) if name not in stopped]
        rest = f" Not begun: {', '.join(never)}." if never else ""
        yield f"Stopped {ran}.{rest} The same command continues from there."
    if record.report:
        yield f"Report: {record.report}"
    if record.status in ("succeeded", "failed"):
        yield ui.Code("\n  ".join(["Next:", *following]))


def seeds(
    runs: "Replicates | None", absent: Mapping[int, str], report: str | None
) -> Iterator[Block]:
    """The page over seeds, as far as a terminal shows it. `absent`: seed -> why it has no run."""
    from flows.report.seeds_page import seeds_blocks

    if runs is None:
        yield from (f"Seed {seed}: {why}" for seed, why in absent.items())
        return
    yield from seeds_blocks(runs, absent)
    yield f"Report over seeds: {report}"


def plan(plan: dict[str, Any]) -> Iterator[Block]:
    """Show what a run would do; on a TPU program by program."""
    from flows.planning.stage_plans import what_is_wrong
    from flows.report.summaries import stages_planned

    local, stages = plan["target"] == "local", plan["stages"]
    where = "this machine" if local else plan["target"]
    programs = [(stage["name"], one) for stage in stages for one in stage["programs"]]
    if programs:
        title = f"programs of {plan['recipe']} on one device of {where}, one call"
        yield Table((*_PROGRAM, "calls"), [_program(name, one) for name, one in programs], title)
    yield stages_planned(stages, f"{plan['recipe']} on {plan['target']}", priced=not local)
    for name, one in programs:
        yield from (f"{name} {one['name']}: {what}." for what in one["uncounted"])
    known, unknown = plan["at_least"], ", ".join(plan["at_least"]["without"])
    bound, more = ("at least ", f", and what {unknown} will take") if unknown else ("", "")
    added = sum(one.get("at_least", one)["seconds"] or 0.0 for one in stages)
    aside = f" (side by side; one after another {duration(added)})" * (added > known["seconds"] + 1)
    if local and unknown and not known["seconds"]:
        yield f"No estimate yet: no earlier run has timed {unknown}."
    elif local:
        yield f"Expected: {bound}{known['seconds']:.1f} s, from earlier runs{aside}{more}"
    else:
        usd = f"{known['cost_usd']:.2f} USD by list price"
        yield f"Expected: {bound}{duration(known['seconds'])}, {usd}{aside}{more}"
    if "sessions" in plan:
        yield from _sessions(plan["sessions"], bool(known["without"]))
    yield from what_is_wrong(plan)
    if programs and plan["fits"]:
        yield f"It fits {where}."


def _sessions(sessions: Mapping[str, Any], more: bool) -> Iterator[Block]:
    """Into how many sessions the run divides, and where each ends."""
    hours, count = f"{sessions['hours']:g} h", sessions["count"]
    if not count:
        yield f"Sessions of {hours}: {'nobody knows how many' if more else 'none is needed'}"
        return
    yield f"In sessions of {hours} (`lyceum run --hours`): {'at least ' * more}{count}"
    for number, one in enumerate(sessions["listed"], 1):
        done = one["ends"]["fraction"]
        ends = f" (to {100 * done:.0f} %)" if done < 1 else ""
        yield f"{number}. {', '.join(one['stages'])}{ends}; {duration(one['seconds'])}"
    if rest := count - len(sessions["listed"]):
        yield f"and {rest} more"


_PROGRAM = ("stage", "program", "GiB of HBM", "fits", "TFLOP", "GB moved", "roofline, bound by")


def _program(stage: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    hbm = f"{one['hbm_bytes'] / 2**30:.2f} of {one['hbm_limit_bytes'] / 2**30:.2f}"
    costs = ["", "", ""]
    if one["refusal"] is None and (seconds := one["roofline_seconds"]) is not None:
        short = f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
        costs = [f"{one['flops'] / 1e12:.3g}", f"{one['bytes_accessed'] / 1e9:.3g}"]
        costs.append(f"{short}, {one['bound']}")
    fits = "yes" if one["fits"] else "NO"
    return stage, one["name"], hbm, fits, *costs, f"{one['calls']:.0f}"


def why(why: dict[str, Any]) -> Iterator[Block]:
    yield f"{why['stage']} is {'cached' if why['cached'] else 'not cached'}: {why['reason']}."
    yield f"key: {why['key'] or 'not known until its inputs are there'}"
    near = why["nearest"]
    if why["cached"]:
        return
    if near is None:
        yield f"The store has no artifact of kind {why['kind']} to compare with."
    elif not why["differences"]:
        yield f"Its identity is that of artifact {near['kind']}/{near['key']}."
    else:
        changed = why["differences"]
        rows = [(one["field"], _short(one["here"]), _short(one["there"])) for one in changed]
        title = f"against the nearest artifact, {near['kind']}/{near['key'][:12]}"
        yield Table(("field", "here", "there"), rows, title)


def runs(runs: dict[str, Any]) -> Iterator[Block]:
    rows = []
    for one in runs["runs"]:
        stages = f"{one['stages_done']}/{one['stages']}"
        times = (_clock(one[field]) for field in ("started", "updated"))
        rows.append((one["run_id"], one["target"], one["status"], stages, *times))
    yield Table(("run", "target", "status", "stages", "started", "last written"), rows, "runs")


def garbage(garbage: dict[str, Any]) -> Iterator[Block]:
    now, store = time.time(), garbage["store"]
    rows = []
    for item in garbage["items"]:
        name, age = _KEY.sub(lambda key: key[0][:12], item["name"]), now - item["written"]
        amounts = size(item["bytes"]), duration(max(0.0, age))
        rows.append((item["kind"], name, item["why"], *amounts))
    if not rows:
        yield f"Nothing in {store} is garbage."
        return
    yield Table(("kind", "what", "why", "size", "age"), rows, "garbage")
    totals = garbage["totals"].items()
    totals = [(kind, str(one["count"]), size(one["bytes"])) for kind, one in totals]
    yield Table(("kind", "count", "size"), totals, "totals")
    if not garbage["delete"]:
        found = f"{size(garbage['bytes'])} in {store} are garbage."
        yield f"{found} Nothing was removed; --delete removes it."
        return
    yield f"{size(garbage['deleted_bytes'])} were removed from {store}."
    kept = (item["name"] for item in garbage["items"] if not item["deleted"])
    yield from (f"{name} stays: it is in use by now." for name in kept)


def machines(machines: dict[str, Any]) -> Iterator[Block]:
    found = machines["machines"]
    if not found:
        yield f"No machine is left over on {machines['target']}."
        return
    rows = []
    for one in found:
        what = "removed" if one["removed"] else "removable" if one["removable"] else "kept"
        rows.append((one["name"], one["state"], one["attempt"], what, one["why"]))
    columns = ("machine", "state", "attempt", "", "because")
    yield Table(columns, rows, f"machines of {machines['target']}")
    if any(one["removable"] and not one["removed"] for one in found):
        listed_only = "Nothing was removed; add --delete to remove what is removable."
        yield "Some could not be removed; see above." if machines["delete"] else listed_only


def export(export: dict[str, Any]) -> Iterator[Block]:
    proof = export["verification"]
    files = [(name, size(count)) for name, count in export["files"].items()]
    yield Table(("file", "size"), files, f"{export['stage']} of {export['run_id']}")
    yield (
        f"transformers {proof['transformers']} agrees: {proof['prompts']} prompts rendered alike,"
        f" logits within {proof['max_logit_difference']:.1e} (tolerance {proof['tolerance']:g},"
        f" {proof['dtype']}), {proof['greedy_tokens']} greedy tokens."
    )
    yield f"Directory: {export['directory']}"


def push(push: dict[str, Any]) -> Iterator[Block]:
    files = [(name, size(count)) for name, count in push["files"].items()]
    yield Table(("file", "size"), files, f"{push['what']} of {push['stage']}, {push['run_id']}")
    done = "Pushed" if push["changed"] else "The hub has all of it already"
    seen = "private" if push["private"] else "public"
    yield f"{done}: {push['url']}, {seen}, commit {push['commit'][:12]}"


def scores(scores: dict[str, Any]) -> Iterator[Block]:
    rows = [(name, str(len(files)), files[0]) for name, files in scores["formats"].items()]
    yield Table(("format", "files", "the first"), rows, f"scores of {scores['run_id']}")
    yield f"Directory: {scores['directory']}"
    yield from left_out(scores["left_out"])


def left_out(left_out: Mapping[str, str]) -> Iterator[Block]:
    """Show what could not be read of a run, and why (`RunResults.left_out`)."""
    for name, problem in left_out.items():
        again = "`lyceum run` with the same recipe makes it again."
        yield f"Left out: stage {name}: {problem}. {again}"


def gate(value: dict[str, Any]) -> Iterator[Block]:
    from flows.promotion.gate import Gate
    from flows.report.gate_blocks import gate_table

    verdict = Gate.parse(value)
    yield from gate_table(verdict, f"{verdict.candidate} against {verdict.champion or 'its base'}")
    yield f"{'Passed' if verdict.promote else 'Not passed'}: {verdict.why}."


def champion(value: dict[str, Any]) -> Iterator[Block]:
    did = "rolled back to" if value["change"] == "rollback" else "promoted"
    entry = f"Champion of {value['recipe']}, number {value['number']}"
    yield f"{entry}: {did} run {value['run_id']} ({value['why']})."
    yield f"Model of stage {value['stage']}: {value['location']}"


def champions(value: dict[str, Any]) -> Iterator[Block]:
    rows = []
    for one in value["history"]:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["at"]))
        said = headline(one["metrics"]), one["by"], one["why"]
        rows.append((str(one["number"]), when, one["change"], one["run_id"], *said))
    columns = ("no.", "when", "change", "run", "metrics", "by", "why")
    yield Table(columns, rows, f"champions of {value['recipe']}, the current one last")
    back = [f"A rollback would lead to number {number}." for number in value["rollbacks"]]
    yield back[0] if back else "There is no champion to roll back to."


def recipes(recipes: dict[str, Any]) -> Iterator[Block]:
    for one in recipes["recipes"]:
        yield f"{one['name']} ({one['model']})"
        facts = [one["purpose"], f"data: {', '.join(one['data'])}"]
        facts += [f"asks: {', '.join(one['asks'])}"] if one["asks"] else []
        facts += [_takes(row) for row in one["takes"]] or ["takes: not planned, not timed"]
        facts += [f"stages: {', '.join(one['stages'])}"]
        yield from (_indented(fact, "  ", 4) for fact in facts)
        yield ""
    yield "`lyceum plan RECIPE` computes times with your settings; `lyceum run RECIPE"
    yield "--tiny` runs the recipe small, on a laptop."


def _takes(row: Mapping[str, Any]) -> str:
    """takes: 1 h 57 min, 9.39 USD on v5e-8, plus distill, export (planned 2026-11-25)"""
    price = f", {row['usd']:.2f} USD" if row["usd"] else ""
    where = "on two CPU cores" if row["target"] == "local" else f"on {row['target']}"
    more = f", plus {', '.join(row['without'])}" if row["without"] else ""
    by = "planned" if row["by"] == "plan" else "measured"
    time_ = duration(60 * row["minutes"]).removesuffix(" 0 s")
    settings = "".join(f" --set {one}" for one in row["settings"])
    return f"takes: {time_}{price} {where}{more} ({by} {row['date']}{settings})"


def checks(doctor: dict[str, Any]) -> Iterator[Block]:
    """The doctor's findings: what is wrong, what else the machine has, and packages in one line."""
    rows = sorted(doctor["checks"], key=lambda one: one["well"])
    packages = [one for one in rows if one["group"] == "packages"]
    for one in rows:
        if one["group"] == "packages" and one["well"]:
            continue
        mark = "ok" if one["well"] else "!!"
        yield _indented(one["found"], f"{mark}  {one['name']:<15} ", 20)
    well = sum(one["well"] for one in packages)
    mark, known = "ok" if well == len(packages) else "!!", f"{well} of {len(packages)} as tested"
    yield f"{mark}  {'packages':<15} {known}; `lyceum doctor --json` lists them"
    yield "All is well." if all(one["well"] for one in rows) else "What is marked !! is wrong."


def _indented(text: str, begin: str, indent: int) -> ui.Code:
    """Text in lines of a readable length; a path or an address stays in one piece."""
    wrapper = textwrap.TextWrapper(
        PARAGRAPH_WIDTH,
        initial_indent=begin,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return ui.Code("\n".join(wrapper.wrap(text) or [begin]))


def _clock(seconds: float | None) -> str:
    return "?" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
