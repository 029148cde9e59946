"""The commands of `lyceum`. A command returns its answer as JSON and as blocks to show;
`flows.cli.main` prints one of the two.

Each command imports what it needs itself, so that `lyceum --help` answers at once.
"""

import argparse
import sys
from dataclasses import asdict
from itertools import groupby
from typing import Any

from flows.cli.answer import Answer, run_of, say, store_of, summary, whole
from infra.context import context
from infra.store.store import Store
from infra.targets import check_target, open_backend
from schemas.base import InputError


def run(options: argparse.Namespace) -> Answer:
    """Run a recipe: reuse every stage that is valid, and resume the one that was interrupted.

    With --hours it ends in time: running stages save a checkpoint, the stages that are left are
    listed, and the exit code is 0. The same command continues in the same store, on this machine or
    another.

    With --seeds it runs under several seeds, each a run of its own. Cached runs are reused, a
    failed one stops no other, and the report gives each stage's mean and interval over the seeds.
    """
    from flows.cli import show
    from flows.cli.launch import exit_code, launch, run_json
    from flows.planning.stage_plans import check_budget
    from flows.preamble import Parameters
    from flows.runs.next_commands import next_commands

    check_budget(options.hours, None)
    overrides, force = tuple(options.overrides), tuple(options.force)
    where = options.recipe, options.target, options.store
    given = Parameters(*where, overrides, str(options.data or ""), force)
    if options.seeds is not None:
        from flows.cli.launch_seeds import launch_seeds

        ended = launch_seeds(given, options.seeds, options.code, options.hours)
        return Answer(ended.json(), show.seeds(ended.runs, ended.absent, ended.report), ended.code)
    record = launch(given, options.code, options.hours)
    given_too = options.data, overrides, options.code
    following = next_commands(record, options.recipe, options.store, *given_too)
    shown = show.run(record, following)
    return Answer(run_json(record), shown, exit_code(record))


def rehearse(options: argparse.Namespace) -> Answer:
    """Run a recipe here in minutes, with its sizes cut and nothing else, and say what is wrong with
    it.

    It keeps the recipe's stages, formats, checks, rewards, prompts, suites and gate, and reads the
    first rows of its data sets. Rules stand in for an endpoint without a key; one with a key is
    asked 20 times at most. The page at its end shows what went into and out of every stage, which
    rows were dropped and why, what the rewards pay for, who answered, and what is wrong. Exit code
    3: something was found.
    """
    from flows.cli.rehearse import exit_code, rehearse_recipe
    from flows.rehearsal.page import summary

    told = rehearse_recipe(
        options.recipe,
        store=options.store,
        overrides=tuple(options.overrides),
        data=options.data,
        code=options.code,
        rows=options.rows,
        model=options.model,
    )
    return Answer(told, summary(told), exit_code(told))


def init(options: argparse.Namespace) -> Answer:
    """Write a recipe for your data, after a few questions or from options, and rehearse it.

    From the data's first rows it proposes the columns, how answers are verified, and their domain.
    It asks what no option says; where standard input is no terminal, it takes the proposals. The
    model itself answers rows that have no reasoning. Nothing is overwritten.
    """
    from flows.cli.init import COUNTED, Asking, draft_recipe
    from flows.cli.rehearse import exit_code, rehearse_recipe
    from flows.rehearsal.page import summary

    read = sys.stdin.readline if sys.stdin.isatty() else None
    draft, data = draft_recipe(options.file, Asking(vars(options), read), options.store)
    more = " or more" * (draft.rows == COUNTED)
    say(f"Written: {options.file} ({draft.rows}{more} rows of {draft.path})")
    value = {"recipe": str(options.file), "data": str(data) if data else None, **draft.told()}
    if options.no_rehearsal:
        return Answer({**value, "rehearsal": None}, draft.commands)
    told = rehearse_recipe(
        str(options.file), store=options.store, overrides=(), data=data, code=(), rows=50
    )
    shown = [*summary(told), *draft.commands[1:]]
    return Answer({**value, "rehearsal": told}, shown, exit_code(told))


def plan(options: argparse.Namespace) -> Answer:
    """Say what a run would do: which stages are cached and which would run; for a TPU also whether
    they fit, their time and their cost.

    For a TPU, its own compiler compiles every program of every stage that would run, here and
    without weights, so the memory it reports is what the chip would need. Exit code 3: something
    does not fit the memory or the budget. For memory, settings that fit are searched and printed.
    """
    from flows.cli import show
    from flows.planning.stage_plans import check_budget, make_plan
    from flows.recipe.resolve import resolve

    resolved = resolve(options.recipe, options.overrides, options.data, need_data=False)
    resolved.foresee(options.data)
    check_target(options.target)
    check_budget(options.hours, options.usd)
    store = store_of(options)
    value = make_plan(resolved, store, options.target, hours=options.hours, usd=options.usd)
    return Answer(value, show.plan(value), 0 if value["fits"] else 3)


def why(options: argparse.Namespace) -> Answer:
    """Say why a stage is cached or not: the fields that differ from the nearest artifact."""
    from flows.cli import show
    from flows.recipe import explain
    from flows.recipe.resolve import resolve

    resolved = resolve(options.recipe, options.overrides, options.data)
    resolved.stage(options.stage)
    store = store_of(options)
    outlooks = explain.outlook(resolved, store)
    outlook = next(one for one in outlooks if one.stage.name == options.stage)
    nearest = explain.Neighbours(outlooks, store).nearest(options.stage)
    manifest, differences = nearest if nearest else (None, [])
    value = {
        "recipe": resolved.recipe.name,
        "stage": outlook.stage.name,
        "kind": outlook.stage.kind,
        "key": outlook.key,
        "cached": outlook.manifest is not None,
        "reason": outlook.reason,
        "nearest": manifest.ref().model_dump(mode="json") if manifest else None,
        "differences": [asdict(one) for one in differences],
    }
    return Answer(value, show.why(value))


def runs(options: argparse.Namespace) -> Answer:
    """List the store's runs, the newest last."""
    from flows.cli import show
    from flows.runs.record import read_runs

    store = store_of(options)
    value = {"store": store.uri, "runs": [summary(record) for record in read_runs(store)]}
    none = [f"No run is in {store.uri}; --store URI names another store."]
    return Answer(value, show.runs(value) if value["runs"] else none)


def report(options: argparse.Namespace) -> Answer:
    """Render a run's report again, as one HTML file; for a run under several seeds also the report
    over the seeds.

    It goes into the store, or with --to into a directory of yours: of a store that you may only
    read, or of a bucket, whose pages no browser opens.
    """
    from flows.cli import show
    from flows.cli.new_directory import require_new
    from flows.report.page import report_of, write_report
    from flows.report.seeds_page import write_seeds
    from flows.runs.record import record_name
    from flows.runs.replicates import group_of
    from flows.runs.results import read_results

    store, record = run_of(options)
    results = read_results(store, record)
    rendered, fellows, to = report_of(results), group_of(store, record), options.pages
    place = store if to is None else context().store(require_new(to))
    missing, own = dict(results.left_out), f"{record.run_id}/"
    if fellows:
        missing |= {one: why for one, why in fellows.left_out.items() if not one.startswith(own)}
    value: dict[str, Any] = {"run_id": record.run_id, "left_out": missing}
    try:
        value["report"] = write_report(place, rendered)
        if fellows:
            value["seeds_report"] = write_seeds(place, fellows, {})
        if to is None and record.status != "running":  # else the record is the run's own to write
            again = record.model_copy(update={"report": value["report"]})
            store.write_json(record_name(record.run_id), again)
    except InputError as error:
        if to is not None:
            raise
        raise InputError(f"{error} Or let the page go elsewhere: --to DIR.") from error
    shown = [value["report"], *show.left_out(missing)]
    if fellows:
        shown.insert(1, f"Over seeds: {value['seeds_report']}")
    return Answer(value, shown, whole(missing))


def compare(options: argparse.Namespace) -> Answer:
    """Compare runs with the first one: every metric that both measured, with 95 % intervals, and
    their recipes, times and costs."""
    from flows.report.comparison import comparison_blocks, render_comparison
    from flows.runs.compare import compare_runs
    from flows.runs.record import read_run

    store, record = run_of(options)
    others = [read_run(store, other) for other in options.others]
    found = compare_runs(store, record, others)
    try:
        location: str | None = render_comparison(store, found)
        page = f"Page: {location}"
    except InputError as error:  # who may only read the store has the table
        location, page = None, f"No page: {error}"
    value = found[0] if len(found) == 1 else {"comparisons": found}
    shown = [*comparison_blocks(found), page]
    code = max(whole(one["left_out"]) for one in found)
    return Answer({**value, "page": location}, shown, code)


def recipes(options: argparse.Namespace) -> Answer:
    """List the recipes that come with Lyceum: what each is for, its data, and the hours and dollars
    it takes.

    Times and prices come from `lyceum plan` for a TPU, or from a run, and have its date. `lyceum
    plan RECIPE` computes them for your settings.
    """
    from flows.cli import show
    from flows.recipe.shipped import listed

    value = {"recipes": listed()}
    return Answer(value, show.recipes(value))


def doctor(options: argparse.Namespace) -> Answer:
    """Check this machine: versions, processor, memory, disk, store, Prefect; with --target v5e-8
    also the way to its TPUs."""
    from flows.cli import show
    from flows.cli.doctor import examine

    checks = [asdict(check) for check in examine(options.store, options.target)]
    value = {"ok": all(check["well"] for check in checks), "checks": checks}
    return Answer(value, show.checks(value), 0 if value["ok"] else 1)


def serve(options: argparse.Namespace) -> Answer:
    """Serve the flows with a local Prefect server, its UI and a worker; Ctrl-C stops them."""
    from flows.server.serve import serve as serve_until_stopped

    serve_until_stopped(options.port, options.recipes, options.host, options.behind_tls)
    return Answer({"stopped": True})


def deploy(options: argparse.Namespace) -> Answer:
    """Register the flows post-train and nightly with the configured Prefect API, for a worker of a
    process pool to run."""
    from flows.server.deploy import deploy as register

    deployed = register(options.pool, options.recipes)

    shown = [f"{name}: {page}" for name, page in deployed.pages.items()]
    shown += [f"Not protected: {weakness}." for weakness in deployed.unprotected]
    worker = f"prefect worker start --pool {options.pool}"
    shown.append(f"A worker runs them where Lyceum is installed: {worker}")
    value = {"deployments": deployed.pages, "unprotected": deployed.unprotected}
    return Answer({"pool": options.pool, **value}, shown)


def gc(options: argparse.Namespace) -> Answer:
    """List what no run needs any more, in the store or (with --target) among machines in the cloud;
    with --delete, remove it.

    What a run record names is needed, even if the run failed or was killed; so is what a live lease
    holds. A committed stage keeps its artifact and loses its checkpoints; lease.json, job.json,
    status.json and log.txt of each attempt stay as long as a run names the stage's key. --drop-run
    drops a run's record, so that what no other run names becomes garbage; a machine that its jobs
    still have goes first. The runs of champions cannot be dropped.

    With --target v5e-8, it lists the TPUs that runs of this store requested and nobody follows any
    more: they cost money, or use up quota. A machine that works for a live run is never removed.
    """
    from flows.cli import show
    from flows.cli.gc import collect_garbage

    store = store_of(options)
    if options.target is not None:
        return _machines(options, store)
    found = collect_garbage(store, options.drop_runs, options.delete, context().settings, say)
    found.sort(key=lambda item: item.kind)
    kinds = {kind: list(items) for kind, items in groupby(found, key=lambda item: item.kind)}
    value = {
        "store": store.uri,
        "delete": options.delete,
        "items": [item.as_json() for item in found],
        "totals": {
            kind: {"count": len(items), "bytes": sum(item.bytes for item in items)}
            for kind, items in kinds.items()
        },
        "bytes": sum(item.bytes for item in found),
        "deleted_bytes": sum(item.bytes for item in found if item.deleted),
    }
    return Answer(value, show.garbage(value))


def _machines(options: argparse.Namespace, store: Store) -> Answer:
    """The part of `gc` that looks for machines."""
    from flows.cli import show

    if options.drop_runs:
        raise InputError(
            "--drop-run removes from the store and --target lists machines; give one of them."
        )
    check_target(options.target)
    leftovers = open_backend(options.target).reap(store, options.delete)
    value = {
        "target": options.target,
        "store": store.uri,
        "delete": options.delete,
        "machines": [asdict(leftover) for leftover in leftovers],
    }
    return Answer(value, show.machines(value))
