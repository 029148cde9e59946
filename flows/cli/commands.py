"""What each command of `lyceum` does. A command returns its answer as JSON and as something to
show; `flows.cli.main` prints one of the two.

What a command needs it imports itself: `lyceum --help` is a reader who waits.
"""

import argparse
import sys
from dataclasses import asdict
from itertools import groupby

from flows.cli.answers import Answer, run_of, say, store_of, summary, whole
from infra.context import context
from infra.store.store import Store
from infra.targets import check_target, open_backend
from infra.visible import plain
from schemas.base import InputError


def run(options: argparse.Namespace) -> Answer:
    """Run a recipe; reuses what is valid and resumes what is not finished.

    With --hours it ends in time: what runs saves a checkpoint, what is left is said, the exit code
    is 0, and the same command goes on in the same store, on this machine or another.
    """
    from flows.cli import show
    from flows.cli.launch import exit_code, launch, run_json
    from flows.planning.stage_plans import check_budget

    check_budget(options.hours, None)
    record = launch(
        options.recipe,
        store=options.store,
        target=options.target,
        overrides=options.overrides,
        data=options.data,
        force=options.force,
        code=options.code,
        hours=options.hours,
    )
    return Answer(run_json(record), show.run(record), exit_code(record))


def rehearse(options: argparse.Namespace) -> Answer:
    """Run a recipe here in minutes, with its sizes cut and nothing else, and say what is wrong with
    it.

    Its own stages, formats, checks, rewards, prompts, suites and gate, on the first rows of its own
    data sets. An endpoint without a key is stood in for by rule; one with a key is asked 20 times
    at most. Ends with a page: what went into and out of every stage, which rows fell out and why,
    what the rewards pay for, who answered, and findings, each with the fix. Exit code 3: something
    was found.
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


def plan(options: argparse.Namespace) -> Answer:
    """Say what a run would do: which stages are cached and which would run; for a TPU also whether
    they fit, their time and their cost.

    For a TPU every program of every stage that would run is compiled here, by the TPU's own
    compiler and without weights: what it says of memory is what the chip would say. Exit code 3 if
    something does not fit the memory or the budget; the settings that would mend the former are
    looked for and printed.
    """
    from flows.cli import show
    from flows.planning.stage_plans import check_budget, make_plan
    from flows.recipe.resolve import resolve

    resolved = resolve(options.recipe, options.overrides, options.data, need_data=False)
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
    nearest = explain.nearest_artifact(outlooks, options.stage, explain.Made(store))
    manifest, differences = nearest if nearest else (None, [])
    value = {
        "recipe": resolved.recipe.name,
        "stage": outlook.stage.name,
        "kind": outlook.stage.kind,
        "key": outlook.key,
        "cached": outlook.manifest is not None,
        "reason": outlook.reason,
        "nearest": manifest.ref().model_dump(mode="json") if manifest else None,
        "differences": [
            {"field": one.field, "here": one.here, "there": one.there} for one in differences
        ],
    }
    return Answer(value, show.why(value))


def runs(options: argparse.Namespace) -> Answer:
    """List the store's runs, the newest last."""
    from flows.cli import show
    from flows.runs.record import read_runs

    store = store_of(options)
    value = {"runs": [summary(record) for record in read_runs(store)]}
    return Answer(value, show.runs(value))


def report(options: argparse.Namespace) -> Answer:
    """Render a run's report again (HTML, self-contained)."""
    from flows.cli import show
    from flows.report.page import report_of, write_report
    from flows.runs.record import record_name
    from flows.runs.results import read_results

    store, record = run_of(options)
    results = read_results(store, record)
    location = write_report(store, report_of(results))
    if record.status != "running":  # else the record is the run's own to write
        store.write_json(record_name(record.run_id), record.model_copy(update={"report": location}))

    value = {"run_id": record.run_id, "report": location, "left_out": results.left_out}
    shown = [location, *show.left_out(results.left_out)]
    return Answer(value, shown, whole(results.left_out))


def compare(options: argparse.Namespace) -> Answer:
    """Compare runs with the first of them: every metric that both measured, with 95 % intervals;
    recipes, times and costs."""
    from flows.report.compare import comparison_blocks, render_comparison
    from flows.runs.compare import compare_runs
    from flows.runs.record import read_run

    store, record = run_of(options)
    others = [read_run(store, other) for other in options.others]
    found = compare_runs(store, record, others)
    location = render_comparison(store, found)
    value = found[0] if len(found) == 1 else {"comparisons": found}
    shown = [*comparison_blocks(found), f"Page: {location}"]
    code = max(whole(one["left_out"]) for one in found)
    return Answer({**value, "page": location}, shown, code)


def ask(options: argparse.Namespace) -> Answer:
    """Answer a question with a run's model, greedily, word by word; Ctrl-C ends the answer."""
    from flows.cli.ask import answer

    def tell(piece: str) -> None:
        sys.stdout.write(plain(piece))
        sys.stdout.flush()

    store, record = run_of(options)
    value = answer(store, record, options.question, options.stage, None if options.json else tell)
    return Answer(value, [""], 130 if value["stopped"] else 0)


def scores(options: argparse.Namespace) -> Answer:
    """Write a run's answers, scores and curves for other tools: inspect_ai, lm-evaluation-harness,
    TensorBoard, Parquet.

    Rates are counted from the answers. DIR/inspect_ai holds logs for `inspect view`, DIR/lm_eval
    what lm_eval writes with --log_samples, DIR/tensorboard event files of every stage, DIR/parquet
    a table of answers per evaluation.
    """
    from flows.cli import show
    from flows.cli.scores import export_scores
    from flows.runs.results import read_results

    value = export_scores(read_results(*run_of(options)), options.to, options.formats)
    return Answer(value, show.scores(value), whole(value["left_out"]))


def rejudge(options: argparse.Namespace) -> Answer:
    """Judge a finished run's GRPO stage again under other rewards, rubrics or weights, and say
    which updates would change sign.

    Nothing is sampled: the responses are those of the stage's ledger. Rewards of which only weights
    change are not asked again, and no judge is asked twice for the same: what is new is counted,
    and costs no more than --usd.
    """
    from flows.cli.rejudge import rejudge_run, rejudged

    def progress(done: int, total: int) -> None:
        if not options.json and sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {total} rollouts" + ("\n" if done == total else ""))

    if options.usd is not None and options.usd <= 0:
        raise InputError(f"--usd {options.usd:g}: give an amount above 0, in dollars.")
    store, record = run_of(options)
    value = rejudge_run(store, record, options.rubric, options.stage, options.usd, progress)
    return Answer(value, rejudged(value))


def export(options: argparse.Namespace) -> Answer:
    """Write a run's model as a Hugging Face directory, and prove in transformers that it is the
    model.

    The directory holds merged weights, tokenizer with chat template, generation config and a model
    card with lineage and evaluations. Transformers must find the same tokens, logits and greedy
    answers in it as Lyceum does, and stop where it should; else nothing is left behind and the exit
    code is 1. Needs torch: uv sync --extra export. With --adapters: what PEFT loads beside the
    model that the stage began with, and nothing is proven. With --orbax: a checkpoint that Tunix's
    own Gemma 3 loads, read back once.
    """
    from flows.cli import show
    from flows.cli.export import export as export_stage
    from flows.cli.export import export_adapters, export_orbax

    if options.adapters and options.orbax:
        raise InputError("--adapters and --orbax are two formats; give one of them.")
    store, record = run_of(options)
    if options.adapters or options.orbax:
        given = (store, record, options.to, options.stage)
        value = export_adapters(*given) if options.adapters else export_orbax(*given, say)
        return Answer(value, [f"{value['directory']}: {', '.join(value['files'])}"])
    value = export_stage(store, record, options.to, options.stage, options.dtype, say)
    return Answer(value, show.export(value))


def recipes(options: argparse.Namespace) -> Answer:
    """List the recipes that come with Lyceum."""
    from flows.cli import show
    from flows.recipe.resolve import shipped_recipes

    shipped = [
        {"name": name, "model": recipe.model, "stages": [stage.name for stage in recipe.stages]}
        for name, recipe in shipped_recipes().items()
    ]
    value = {"recipes": shipped}
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
    """Serve the flows: a local Prefect server with its UI, and a worker; Ctrl-C stops all of it."""
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


def gate(options: argparse.Namespace) -> Answer:
    """Say whether a run's model may replace the champion: whether each rule of its recipe's [gate]
    is shown to hold; exit 1 if not.

    Both models are compared over the same prompts. Without a [gate], one of exact answer, format,
    safe rate and correct rate has to be won for certain, and no loss of 5 points may be possible in
    any, nor of 10 in a domain. What too few prompts leave open fails.
    """
    from flows.cli import show
    from flows.promotion.gate import gate_run

    value = gate_run(store_of(options), options.run, options.champion)
    return Answer(value, show.gate(value), 0 if value["promote"] else 1)


def promote(options: argparse.Namespace) -> Answer:
    """Make a run's model the champion of its recipe, whatever the gate says; or roll back; or list
    the champions."""
    from flows.cli import show
    from flows.promotion import champion

    store = store_of(options)
    if options.history is not None:
        champions = champion.history_json(store, options.history)
        return Answer(champions, show.champions(champions))
    if options.rollback is not None:
        entry = champion.rollback(store, options.rollback, options.why)
    else:
        entry = champion.promote_by_hand(store, options.run, options.why)
    value = champion.entry_json(store, entry)
    return Answer(value, show.champion(value))


def gc(options: argparse.Namespace) -> Answer:
    """List what no run needs any more, in the store or (--target) of machines in the cloud; with
    --delete, remove it.

    Needed is whatever a run record names, also that of a run that failed or was killed, and
    whatever a live lease holds. Of a committed stage the artifact stays and its checkpoints go;
    lease.json, job.json, status.json and log.txt of each attempt stay as long as a run names the
    stage's key. To get rid of a run's artifacts, drop its record with --drop-run: what no other run
    names becomes garbage. Runs that champions stand on are kept.

    With --target v5e-8, TPUs that runs of this store requested and that nobody follows any more are
    listed instead: they cost money, or hold quota. A machine that works for a run that is alive is
    never removed.
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
            "--drop-run is about the store and --target about machines; give one of them."
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
