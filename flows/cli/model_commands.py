"""The commands about a run's model: talk to it, hand it on, make it the champion.

As in `commands.py`, a function's first sentence is its help.
"""

import argparse
import sys

from flows.cli.answer import Answer, run_of, say, store_of, whole
from infra.visible import plain
from schemas.base import InputError


def ask(options: argparse.Namespace) -> Answer:
    """Answer a question with a run's model, greedily, word by word; Ctrl-C ends the answer.

    Without a question it begins a dialogue, in which the model sees what was said before; Ctrl-C
    ends an answer, Ctrl-D the dialogue. From a file or a pipe it asks every line.
    """
    from flows.cli.ask import answer, dialogue

    def tell(piece: str) -> None:
        sys.stdout.write(plain(piece))
        sys.stdout.flush()

    store, record = run_of(options)
    told = None if options.json else tell
    if options.question is None:
        return Answer(dialogue(store, record, options.stage, told))
    value = answer(store, record, options.question, options.stage, told)
    return Answer(value, [""], 130 if value["stopped"] else 0)


def endpoint(options: argparse.Namespace) -> Answer:
    """Serve a run's model to programs by OpenAI's HTTP interface at /v1; Ctrl-C stops it.

    It has /v1/models, /v1/chat/completions and /v1/completions, with temperature, top_p, seed,
    stop, n, max_tokens, stream and log-probabilities. Only this machine can ask, unless --host says
    otherwise; then requests must carry the key in LYCEUM_ENDPOINT_KEY. Requests share batches; one
    that finds the queue full is told to retry.
    """
    from flows.cli.endpoint import serve as serve_until_stopped

    store, record = run_of(options)
    return Answer(
        serve_until_stopped(store, record, options.stage, options.host, options.port, say)
    )


def scores(options: argparse.Namespace) -> Answer:
    """Write a run's answers, scores and curves for other tools: inspect_ai, lm-evaluation-harness,
    TensorBoard, Parquet.

    DIR/inspect_ai holds logs for `inspect view`, DIR/lm_eval what lm_eval writes with
    --log_samples, DIR/tensorboard the event files of every stage, and DIR/parquet a table of
    answers per evaluation. Rates are counted from the answers.
    """
    from flows.cli import show
    from flows.cli.scores import export_scores
    from flows.runs.results import read_results

    value = export_scores(read_results(*run_of(options)), options.to, options.formats)
    return Answer(value, show.scores(value), whole(value["left_out"]))


def rejudge(options: argparse.Namespace) -> Answer:
    """Judge a finished run's GRPO stage again under other rewards, rubrics or weights, and say
    which updates would change sign.

    Nothing is sampled: the stage's ledger has the responses. A reward whose weight alone changes is
    not computed again, and no judge is asked the same question twice. New questions are counted,
    and cost no more than --usd.
    """
    from flows.cli.rejudge import rejudge_run, rejudged
    from flows.planning.stage_plans import check_budget

    def progress(done: int, total: int) -> None:
        if not options.json and sys.stderr.isatty():
            sys.stderr.write(f"\r{done} of {total} rollouts" + ("\n" if done == total else ""))

    check_budget(None, options.usd)
    store, record = run_of(options)
    value = rejudge_run(store, record, options.rubric, options.stage, options.usd, progress)
    return Answer(value, rejudged(value))


def export(options: argparse.Namespace) -> Answer:
    """Write a run's model as a Hugging Face directory, and prove with transformers that it is the
    same model.

    The directory holds merged weights, tokenizer with chat template, generation config and a model
    card with lineage and evaluations. Transformers must compute the same tokens, logits and greedy
    answers as Lyceum, and stop at the same place; otherwise nothing is left behind and the exit
    code is 1. This needs torch: uv sync --extra export. With --adapters it writes what PEFT loads
    beside the stage's first model, without a proof; with --orbax a checkpoint that Tunix's own
    Gemma 3 loads, which is read back once.
    """
    from flows.cli import show
    from flows.cli.export import export as export_stage
    from flows.cli.export import export_adapters, export_orbax

    if options.adapters and options.orbax:
        raise InputError("--adapters and --orbax exclude each other; give one of them.")
    store, record = run_of(options)
    if options.adapters or options.orbax:
        given = (store, record, options.to, options.stage)
        value = export_adapters(*given) if options.adapters else export_orbax(*given, say)
        return Answer(value, [f"{value['directory']}: {', '.join(value['files'])}"])
    value = export_stage(store, record, options.to, options.stage, options.dtype, say)
    return Answer(value, show.export(value))


def push(options: argparse.Namespace) -> Answer:
    """Push a run's model to the Hugging Face hub: what `lyceum export` writes, with its card and
    evaluations; private unless --public.

    With --adapters it pushes the adapters alone, with --dataset the data set that the run was
    trained on, each with its card. A push is one commit. After an interruption it continues, sends
    no file twice, and makes no commit if nothing changed. Where torch is installed the model is
    proven first. It needs a token that may write: HF_TOKEN.
    """
    from flows.cli import show
    from flows.cli.push import What
    from flows.cli.push import push as push_stage

    if options.adapters and options.dataset:
        raise InputError("--adapters and --dataset are two repositories; push one of them first.")
    what: What = "dataset" if options.dataset else "adapters" if options.adapters else "model"
    store, record = run_of(options)
    how = {"public": options.public, "dtype": options.dtype, "say": say}
    value = push_stage(store, record, options.to, what, options.stage, **how)
    return Answer(value, show.push(value))


def gate(options: argparse.Namespace) -> Answer:
    """Say whether a run's model may replace the champion: whether each rule of its recipe's [gate]
    is shown to hold; exit code 1 if not.

    Both models are compared over the same prompts. Without a [gate], the model must gain for
    certain in one of exact answer, format, safe rate and correct rate, and a loss of 5 points in
    any of them, or of 10 in a domain, must be excluded. A rule that too few prompts leave open
    fails. The more nights a recipe has had, the more certain each rule must be; this command asks
    what the next night would, and counts as none.
    """
    from flows.cli import show
    from flows.promotion.gate import gate_run

    value = gate_run(store_of(options), options.run, options.champion)
    return Answer(value, show.gate(value), 0 if value["promote"] else 1)


def promote(options: argparse.Namespace) -> Answer:
    """Make a run's model the champion of its recipe, whatever the gate says; roll back to the
    champion before; or list the champions."""
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
