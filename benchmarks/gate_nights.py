"""A year of nights: how often does a gate promote a model that it should not, and how long does a
better one wait? The nightly gate as it is beside that of before 2026-11-25, which held every night
to 2.5 %.

    uv run python -m benchmarks.gate_nights [--histories 10000] [--nights 365]

A history is a champion, and a candidate every night, whose answers are drawn. Both gates see the
same candidates. What decides is the gate's own code: `look_at`, `Look.wins`, `Look.keeps` and
`corrected` of `flows.promotion`, with the level of each night from `flows.promotion.levels`. They
are called once for each result (wins, losses) and not for each of millions of nights; some nights
are drawn from every setting and put to `findings` and `decide` as whole sets of answers, and the
script ends if one is decided otherwise.

Prompt i is answered rightly with probability p_i, Beta(0.15, 0.15) over the prompts: most are
nearly always right or nearly always wrong, and about 11 % change between two equal models. A better
model answers more of the hard ones rightly, a worse one fewer of the easy ones. "Same prompts": the
champion's answers and all p_i stay for the whole history. "Alike": nine of ten answers of every
candidate are the same all year, as of models that are trained on nearly the same rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np
from scipy.special import betaincinv

from benchmarks.paired import heading, machine, parser, row, tell
from flows.promotion.gate import decide
from flows.promotion.gate_rules import corrected, findings, metric_of
from flows.promotion.levels import level
from flows.promotion.looks import LEAST, Answers, Look, look_at
from flows.runs.effects import holm_by_key
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from schemas.recipe import GateRule, GateSpec, MustNotLose
from tasks.statistics.intervals import ALPHA
from tasks.statistics.power import Counts

METRIC_NAMES = ("exact_answer", "format_rate")
DOMAIN_NAMES = list(Domain)
KIND = "reasoning_eval"
MONTH = 30
CHECKED = 12
"""Nights of every setting that are put to the whole gate."""
POOL = betaincinv(0.15, 0.15, (np.arange(4096) + 0.5) / 4096)
"""What p_i are drawn from."""
Gates = Literal["before", "now"]

WIN = GateRule(metric="exact_answer")
KEEP = MustNotLose(metric="format_rate", margin=0.05)
PARTS = [{"metric": "exact_answer", "domain": domain} for domain in Domain]
ONE = GateSpec(must_win=(WIN,))
BOTH = GateSpec(must_win=(WIN,), must_not_lose=(KEEP,))
DOMAINS = GateSpec(must_win=tuple(GateRule.parse(one) for one in PARTS), wins="any")
DEFAULT = GateSpec(
    must_win=(WIN, GateRule(metric="format_rate")),
    wins="any",
    must_not_lose=(
        MustNotLose(metric="exact_answer", margin=0.05),
        KEEP,
        *(MustNotLose.parse({**one, "margin": 0.1}) for one in PARTS),
    ),
)


@dataclass(frozen=True)
class Setting:
    """One row of the table.

    Attributes:
        n: prompts, of six domains in equal parts.
        gain: of every candidate in each metric, a fraction, against the champion.
        fresh: whether every night asks other prompts.
        alike: the fraction of a candidate's answers that stay the same all year.
        after: the first champion is so much worse, and a better one replaces it as soon as its gate
            lets it; from then on candidates are equal, and a promotion is a mistake.
    """

    label: str
    spec: GateSpec
    n: int = 300
    gain: tuple[float, float] = (0.0, 0.0)
    fresh: bool = False
    alike: float = 0.0
    after: float = 0.0
    rules: list["Rule"] = field(init=False)

    def __post_init__(self) -> None:
        every = (*self.spec.must_win, *self.spec.must_not_lose)
        object.__setattr__(self, "rules", [rule_of(rule, self.n) for rule in every])

    @property
    def metrics(self) -> int:
        """How many of the metrics its rules are about, from the first."""
        return 1 + max(rule.place[0] for rule in self.rules)


def items(exact: Sequence[bool], format_: Sequence[bool], domain: Domain) -> list[EvalItem]:
    """One model's answers to the prompts of a domain."""
    known = {"prompt": "?", "answer": "1", "check": "numeric", "completion": "", "domain": domain}
    return [
        EvalItem.model_validate(
            {**known, "id": f"{domain}/{number}", "exact": right, "format": form}
        )
        for number, (right, form) in enumerate(zip(exact, format_, strict=True))
    ]


def answered(n: int, wins: int, losses: int) -> tuple[list[bool], list[bool]]:
    """What both models answered to n prompts: before, after."""
    same = [True] * (n - wins - losses)
    return [False] * wins + [True] * losses + same, [True] * wins + [False] * losses + same


class Rule:
    """A rule over n prompts, and what becomes of every result."""

    def __init__(self, rule: GateRule, n: int) -> None:
        domain, metric = rule.domain, METRIC_NAMES.index(rule.metric)
        part = (
            slice(None) if domain is None else slice(place := DOMAIN_NAMES.index(domain), place + 1)
        )
        self.rule, self.place = rule, (metric, slice(None), part)
        self.n = n if domain is None else n // 6
        self.metric = metric_of(rule, {KIND: ["heldout"]}, {})
        sides = ([False] * self.n, [True] * self.n)
        self._items = [items(side, side, domain or Domain.MATH) for side in sides]
        self._known: dict[int, Look] = {}
        self._may = np.full((self.n + 1) ** 2, -1, dtype=np.int8)

    def results(self, wins: Counts, losses: Counts) -> Counts:
        """Wins and losses of each history as one number; both have the shape (metrics, H, 6)."""
        mine = [side[self.place].sum(-1, dtype=np.int64) for side in (wins, losses)]
        return np.asarray(mine[0] * (self.n + 1) + mine[1])

    def look(self, result: int) -> Look:
        """What the gate's code finds; its level is 1, so that it passes at all that p passes at."""
        if result not in self._known:
            wins, losses = divmod(int(result), self.n + 1)
            before, after = (
                [self._items[right][number] for number, right in enumerate(side)]
                for side in answered(self.n, wins, losses)
            )
            found = look_at(self.rule, self.metric, Answers(before, after), "it", 0, 1.0)
            assert isinstance(found, Look)
            self._known[result] = found
        return self._known[result]

    def may_pass(self, results: Counts) -> Counts:
        """Whether the interval lets the rule hold."""
        for result in np.unique(results[self._may[results] < 0]):
            look = self.look(int(result))
            self._may[result] = look.gain.low > -look.margin and look.n >= LEAST
        return np.asarray(self._may[results] == 1)


rule_of = cache(Rule)
"""Settings share what was found of a rule over so many prompts."""


def passes(setting: Setting, results: list[int], gates: Gates, night: int) -> bool:
    """Whether a gate promotes: that of before 2026-11-25, or the one of today."""
    asked = level(night)
    looks = [
        replace(rule.look(result), level=asked)
        for rule, result in zip(setting.rules, results, strict=True)
    ]
    wins = dict(enumerate(looks[: len(setting.spec.must_win)]))
    guards = looks[len(wins) :]
    won: Callable[[int], bool]
    if gates == "now":
        p = corrected(wins)
        won = lambda key: wins[key].wins(p[key])  # noqa: E731
        kept = all(look.keeps for look in guards)
    else:
        changed = {key: look.change.p for key, look in wins.items() if look.changes}
        p = dict.fromkeys(wins, 1.0) | holm_by_key(changed)
        won = lambda key: wins[key].gain.low > 0 and p[key] <= ALPHA  # noqa: E731
        kept = all(look.gain.low > -look.margin for look in guards)
    return kept and (any if setting.spec.wins == "any" else all)(map(won, wins))


def promoted(setting: Setting, results: list[Counts], gates: Gates, night: int) -> Counts:
    """Which histories promote in this night."""
    wins = len(setting.spec.must_win)
    may = [rule.may_pass(found) for rule, found in zip(setting.rules[:wins], results, strict=False)]
    some = (np.any if setting.spec.wins == "any" else np.all)(may, axis=0)
    for rule, found in zip(setting.rules[wins:], results[wins:], strict=True):
        some[some] = rule.may_pass(found[some])
    for place in np.flatnonzero(some):
        each = [int(found[place]) for found in results]
        some[place] = passes(setting, each, gates, night)
    return np.asarray(some)


class World:
    """What all histories of a setting answer. Answers are bits, of shape (metrics, H, 6, bytes):
    those of the prompts of each domain."""

    def __init__(self, setting: Setting, histories: int, seed: int) -> None:
        self._rng = np.random.Generator(np.random.SFC64(seed))
        self.setting = setting
        self._shape = (setting.metrics, histories, 6, setting.n // 6)
        self.champions = np.empty(0)
        if setting.fresh:
            return
        prompts = self._rng.integers(0, POOL.size, size=self._shape, dtype=np.uint16)
        self._chances = [
            np.minimum(rates(gain) * 2**16, 2**16 - 1).astype(np.uint16)[prompts[metric]]
            for metric, gain in enumerate(setting.gain[: setting.metrics])
        ]
        worse = np.minimum(rates(-setting.after) * 2**16, 2**16 - 1).astype(np.uint16)
        self._steady = self._answers(self._chances) if setting.alike else None
        self.champions = self._answers([worse[one] for one in prompts])

    def _answers(self, chances: Sequence[np.ndarray]) -> np.ndarray:
        drawn = self._rng.integers(0, 2**16, size=self._shape, dtype=np.uint16)
        right = [one < chance for one, chance in zip(drawn, chances, strict=True)]
        return np.packbits(np.stack(right), axis=-1)

    def candidates(self) -> np.ndarray:
        """Tonight's, on the same prompts as ever."""
        new = self._answers(self._chances)
        if self._steady is None:
            return new
        same = self._rng.integers(0, 2**16, size=self._shape, dtype=np.uint16)
        steady = np.packbits(same < self.setting.alike * 2**16, axis=-1)
        return np.asarray((self._steady & steady) | (new & ~steady))

    def changes_on_new_prompts(self) -> tuple[Counts, Counts]:
        """Wins and losses against the champion on prompts of tonight."""
        metrics, histories, domains, n = self._shape
        found = []
        for gain in self.setting.gain[:metrics]:
            old, new = rates(-self.setting.after), rates(gain)
            cells = [float(np.mean(new * (1 - old))), float(np.mean(old * (1 - new)))]
            drawn = self._rng.multinomial(n, [*cells, 1 - sum(cells)], size=(histories, domains))
            found.append(drawn[..., :2])
        wins, losses = np.moveaxis(np.stack(found), -1, 0)
        return wins, losses


def rates(gain: float) -> np.ndarray:
    """What the p_i become. Their mean is a half, so twice the gain is given to what is wrong, or
    taken from what is right."""
    return np.asarray(POOL + 2 * gain * ((1 - POOL) if gain > 0 else POOL))


def changes(old: np.ndarray, new: np.ndarray) -> tuple[Counts, Counts]:
    """Wins and losses, of shape (metrics, H, 6), of one model's answers against another's."""
    won, lost = np.bitwise_count(new & ~old), np.bitwise_count(old & ~new)
    return won.sum(-1, dtype=np.int64), lost.sum(-1, dtype=np.int64)


def years(setting: Setting, histories: int, nights: int, seed: int) -> Mapping[Gates, Counts]:
    """The night of the first promotion in each history (of the first mistaken one, where the first
    champion is worse), nights + 1: none. Checks some nights against the whole gate."""
    world = World(setting, histories, seed)
    gates: tuple[Gates, ...] = ("before", "now")
    first: dict[Gates, Counts] = {gate: np.full(histories, nights + 1) for gate in gates}
    equal = {gate: np.full(histories, setting.after == 0) for gate in gates}
    reigning: dict[Gates, np.ndarray] = {}
    checks = set(np.linspace(1, nights, CHECKED).astype(int).tolist())
    for night in range(1, nights + 1):
        new = world.champions if setting.fresh else world.candidates()
        drawn = world.changes_on_new_prompts() if setting.fresh else None
        for gate in gates:
            old = reigning.get(gate, world.champions)
            wins, losses = drawn or changes(old, new)
            results = [rule.results(wins, losses) for rule in setting.rules]
            now = promoted(setting, results, gate, night)
            first[gate] = np.where(now & equal[gate] & (first[gate] > nights), night, first[gate])
            if setting.after and not equal[gate].all():
                reigning[gate] = np.where((now & ~equal[gate])[None, :, None, None], new, old)
                equal[gate] |= now
            if gate == "now" and night in checks:
                place = int(np.argmax(now)) if now.any() else night % histories
                check(setting, wins[:, place], losses[:, place], night, bool(now[place]))
    return first


def check(setting: Setting, wins: Counts, losses: Counts, night: int, said: bool) -> None:
    """Put one night, of so many wins and losses by metric and domain, to the whole gate. Raises
    SystemExit when it decides otherwise than `promoted`."""
    before, after = [], []
    for place, domain in enumerate(Domain):
        sides = [(wins[metric, place], losses[metric, place]) for metric in (0, -1)]
        exact, form = (answered(setting.n // 6, int(won), int(lost)) for won, lost in sides)
        before += items(exact[0], form[0], domain)
        after += items(exact[1], form[1], domain)
    found = findings(setting.spec, {KIND: Answers(before, after)}, "it", 0, level(night))
    if decide(setting.spec, found)[0] != said:
        raise SystemExit(f"{setting.label}, night {night}: the gate decides otherwise")


NULLS = (
    Setting("equal, new prompts", ONE, fresh=True),
    Setting("equal, same prompts", ONE),
    Setting("equal, same prompts, alike", ONE, alike=0.9),
    Setting("2 points worse, same prompts", ONE, gain=(-0.02, 0.0)),
    Setting("5 points better once, then equal; same prompts", ONE, after=0.05),
    Setting("equal in six domains, any of which may win; same prompts", DOMAINS, n=600),
    Setting("equal, new prompts, a recipe without [gate]", DEFAULT, n=900, fresh=True),
    Setting("5 points better, but 5 of format lost; new prompts", BOTH, 600, (0.05, -0.05), True),
    Setting("5 points better, but 5 of format lost; same prompts", BOTH, 600, (0.05, -0.05)),
)
POWER = tuple(
    Setting(
        f"{100 * gain:.0f} points, {n} {'new' if fresh else 'same'} prompts",
        BOTH,
        n,
        (gain, 0.0),
        fresh,
    )
    for n in (300, 900)
    for gain in (0.01, 0.02, 0.05)
    for fresh in (True, False)
)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--histories", type=int, default=10_000)
    made.add_argument("--better", type=int, default=400, help="histories with better candidates")
    made.add_argument("--nights", type=int, default=365)
    options = made.parse_args()
    print(machine("numpy", "scipy"))
    print(f"{options.histories:,} histories of {options.nights} nights")
    heading("no candidate deserves it", "before, %", "now, %", "allowed")
    spent = sum(level(night) for night in range(1, options.nights + 1))
    for seed, setting in enumerate(NULLS):
        tell(setting.label)
        first = years(setting, options.histories, options.nights, seed)
        shares = [float(np.mean(first[gate] <= options.nights)) for gate in ("before", "now")]
        row(setting.label, *(f"{100 * one:.2f}" for one in shares), f"{100 * spent:.2f}")
    print(f"\n{options.better:,} histories of {options.nights} nights")
    columns = (
        "first night, %",
        f"{MONTH} nights, %",
        f"{options.nights} nights, %",
        "median night",
    )
    heading("every candidate is better: promoted", *(f"{one}: before, now" for one in columns))
    for seed, setting in enumerate(POWER):
        tell(setting.label)
        first = years(setting, options.better, options.nights, 1000 + seed)
        sides = [first[gate] for gate in ("before", "now")]
        within = [[np.mean(one <= last) for one in sides] for last in (1, MONTH, options.nights)]
        middle = [float(np.median(one)) for one in sides]
        late = [f"{one:.0f}" if one <= options.nights else "never" for one in middle]
        cells = [", ".join(f"{100 * one:.0f}" for one in both) for both in within]
        row(setting.label, *cells, ", ".join(late))


if __name__ == "__main__":
    main()
