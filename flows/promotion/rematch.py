"""Two models' answers to the same prompts, for the gate: from their runs' evaluations, or from a
rematch.

The runs' evaluations serve where the opponent was asked in the same way (length, judge), and at
least half of the candidate's prompts in each domain of each suite. Otherwise, for example after new
rows came into the held-out split, the opponent is evaluated again as the candidate was.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flows.promotion.champion import model_of
from flows.runs.results import BASE, RunResults, StageOutput, left_out_text, read_results
from infra.store.store import Store
from schemas.artifact import ArtifactRef, Manifest, stage_key
from schemas.base import StageFailed
from schemas.evaluation import EvalItem, EvalPrompt
from schemas.job import JobRequest
from schemas.reports import RunRecord, StageRecord


@dataclass(frozen=True)
class Match:
    """One evaluation of the candidate's model, and the same one of its opponent's.

    Attributes:
        ours: the candidate's.
        suites: those that count here; a suite that two evaluations ask counts in the first.
        theirs: the opponent's, None until there is one.
        spec: the job that evaluates the opponent as the candidate was, where its own run's
            evaluations do not serve.
    """

    ours: StageOutput
    suites: frozenset[str]
    theirs: StageOutput | None
    spec: JobRequest | None = None

    @property
    def made(self) -> Manifest | None:
        """The artifact of that job."""
        return self.theirs.manifest if self.spec and self.theirs else None

    @property
    def digests(self) -> list[str | None]:
        sides = (self.ours.manifest, self.theirs and self.theirs.manifest)
        return [side.ref().digest if side else None for side in sides]

    @property
    def kind(self) -> str:
        return self.ours.spec.kind

    @property
    def asked(self) -> list[EvalItem]:
        """The candidate's answers that count, whether the opponent was asked or not."""
        return [item for item in self.ours.items if item.suite in self.suites]

    @property
    def pairs(self) -> list[tuple[EvalItem, EvalItem]]:
        """Answers of the opponent and of the candidate to the same prompt, judged against the same
        reference."""
        return _pairs(self.theirs.items if self.theirs else (), self.asked)

    @property
    def samples(self) -> list[list[EvalItem]]:
        """Our and their sampled answers that count; empty where none were drawn."""
        drawn = (stage.samples if stage else [] for stage in (self.ours, self.theirs))
        return [[item for item in items if item.suite in self.suites] for items in drawn]


def meet(
    store: Store, candidate: RunRecord, champion: RunRecord | None
) -> tuple[list[Match], set[str]]:
    """Match every evaluation of the candidate's model that counts with its opponent's; returns also
    the kinds of evaluation in the opponent's run.

    The opponent is the champion's model or, where there is none, the candidate's own base.

    Raises:
        InputError: either run did not succeed or has no trained model.
        StageFailed: an evaluation of the candidate's run is gone or damaged.
    """
    model, other = model_of(candidate), model_of(champion) if champion else None
    results = read_results(store, candidate)
    if champion and other:  # what is missing there is evaluated again
        theirs = _evaluations(read_results(store, champion), other.name, whole=False)
    else:
        theirs = _evaluations(results, BASE, whole=True)
    asked: dict[str, set[str]] = {}
    matches = []
    for ours in _evaluations(results, model.name, whole=True):
        before = asked.setdefault(ours.spec.kind, set())
        suites = frozenset({item.suite for item in ours.items} - before)
        before |= suites
        if suites:
            policy = other.artifact if other else None
            matches.append(_match(store, candidate, ours, suites, theirs, policy))
    return matches, {stage.spec.kind for stage in theirs}


def _evaluations(run: RunResults, model: str, *, whole: bool) -> list[StageOutput]:
    """`RunResults.evaluations_of` that the store still has.

    Args:
        whole: raise StageFailed for one that is gone or damaged, which would silently drop a rule.
    """
    of_model = run.evaluations_of(model)
    if whole and (left_out := {stage.name: stage.problem for stage in of_model if stage.problem}):
        raise StageFailed(
            f"run {run.record.run_id!r} cannot be judged, because that would leave something out:"
            f" {left_out_text(left_out)}. `lyceum run` with the same recipe makes it again."
        )
    return [stage for stage in of_model if stage.manifest is not None]


def _match(
    store: Store,
    candidate: RunRecord,
    ours: StageOutput,
    suites: frozenset[str],
    theirs: Sequence[StageOutput],
    policy: ArtifactRef | None,
) -> Match:
    unmatched = Match(ours, suites, None)
    for stage in theirs:
        if stage.spec.kind == unmatched.kind and _comparable(unmatched, stage):
            return replace(unmatched, theirs=stage)
    assert ours.manifest is not None, "`_evaluations` gives no others"
    spec = _rematch(candidate, ours.name, ours.manifest, policy)
    made = store.lookup(spec.kind, spec.key)
    played = StageRecord(
        name=spec.stage, kind=spec.kind, status="ran", artifact=made.ref() if made else None
    )
    again = StageOutput(ours.spec, store, played)
    return Match(ours, suites, again if again.manifest else None, spec)


def _rematch(
    candidate: RunRecord, stage: str, evaluated: Manifest, policy: ArtifactRef | None
) -> JobRequest:
    """The candidate's evaluation of another model, the base when `policy` is None. Whoever submits
    it adds where `--data` is."""
    inputs = {name: ref for name, ref in evaluated.inputs.items() if name == "prompts"}
    inputs |= {"policy": policy} if policy else {}
    digests = {name: ref.digest for name, ref in inputs.items()}
    identity = evaluated.kind, evaluated.version, evaluated.dependencies, evaluated.config
    return JobRequest(
        stage=f"{'champion' if policy else BASE}_{stage}",
        kind=evaluated.kind,
        key=stage_key(*identity, digests),
        store=candidate.store,
        target=candidate.target,
        run=candidate.run_id,
        config=evaluated.config,
        dependencies=evaluated.dependencies,
        inputs=inputs,
    )


def _comparable(match: Match, theirs: StageOutput) -> bool:
    """Whether the opponent was asked in the same way, and enough of the same prompts."""
    ours = match.ours.manifest
    if ours is None or theirs.manifest is None or not _same_way(ours, theirs.manifest):
        return False
    shared = Counter((item.suite, item.domain) for _, item in _pairs(theirs.items, match.asked))
    asked = Counter((item.suite, item.domain) for item in match.asked)
    return all(2 * shared[part] >= count for part, count in asked.items())


_MORE = {"suites", "sampling", "judge", "metrics", "min_items", "seed"}
"""Fields of an evaluation's config that change no greedy answer to a prompt that both were
asked."""


def _same_way(one: Manifest, other: Manifest) -> bool:
    """Whether two evaluations put a prompt to a model, and judge its greedy answer, in the same
    way."""
    names = (one.config.keys() | other.config.keys()) - _MORE
    both = one.dependencies.keys() & other.dependencies.keys()
    return (
        one.version == other.version
        and all(one.config.get(name, _MORE) == other.config.get(name, _MORE) for name in names)
        and all(one.dependencies[name] == other.dependencies[name] for name in both)
    )


def _pairs(
    before: Sequence[EvalItem], after: Sequence[EvalItem]
) -> list[tuple[EvalItem, EvalItem]]:
    old = {item.id: item for item in before}
    both = [(old[item.id], item) for item in after if item.id in old]
    return [(one, other) for one, other in both if EvalPrompt.of(one) == EvalPrompt.of(other)]
