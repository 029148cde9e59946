"""pass@k, majority@k and the seed's noise: worked by hand, against the definitions by enumeration,
and their intervals."""

from itertools import combinations

import pytest

from schemas.evaluation import EvalItem, EvalPrompt
from schemas.examples import Domain, Trace
from tasks.evaluation.reasoning_verdicts import judge
from tasks.evaluation.sampled import ballot, majority_at_k, noise_floors, pass_at_k, sampled_metrics
from tasks.stages.reasoning_eval import OUTCOMES, reasoning_metrics
from tasks.verification.choices import as_constraint


def drawn(name, *answers, right="4", check="numeric", domain=Domain.MATH) -> list[EvalItem]:
    """A prompt's samples with these answers; None: a completion that is no trace."""
    about = {"answer": right, "check": check, "domain": domain}
    about["constraints"] = as_constraint(("x", "y", "z")) if check == "choice" else ()
    prompt = EvalPrompt(id=name, prompt=name, **about)
    texts = ["4" if one is None else Trace(reasoning="-", answer=one).render() for one in answers]
    judged = [judge(prompt, text) for text in texts]
    return [one.model_copy(update={"sample": number}) for number, one in enumerate(judged)]


@pytest.mark.parametrize("right", range(6))
def test_pass_at_k_is_the_share_of_all_draws_of_k_with_a_right_answer(right: int) -> None:
    items = drawn("a", *["4"] * right, *["5"] * (5 - right))
    for k in range(1, 6):
        draws = [any(item.exact for item in draw) for draw in combinations(items, k)]
        assert pass_at_k(items, k) == pytest.approx(sum(draws) / len(draws))


def test_answers_that_are_equal_vote_together() -> None:
    assert majority_at_k(drawn("a", "5", "4", "4.0", "8/2 apples"), 4) == 1
    assert majority_at_k(drawn("a", "4", "5", "5.00", "$5"), 4) == 0
    assert majority_at_k(drawn("b", "C", "B", "B) y", "(b)", right="B", check="choice"), 4) == 1
    lengths = drawn("c", "6 m", "5000 m", "5 km", right="5 km", check="quantity")
    cities = drawn("d", "Rome", "PARIS.", "**Paris**", right="Paris", check="exact")
    assert majority_at_k(lengths, 3) == majority_at_k(cities, 3) == 1


def test_what_is_no_trace_has_no_vote_and_of_equally_many_the_first_wins() -> None:
    assert majority_at_k(drawn("a", None, None, "5"), 3) == 0
    assert majority_at_k(drawn("a", "4", None, None), 3) == 1
    assert majority_at_k(drawn("a", None, None), 2) == 0
    assert ballot(drawn("a", None)[0]) is None
    assert majority_at_k(drawn("a", "4", "5", "5", "4"), 4) == 1
    assert majority_at_k(drawn("a", "5", "4", "4", "5"), 4) == 0


def test_majorities_are_taken_over_disjoint_groups_of_samples() -> None:
    """(4 5) (5 4) (4 4) (5 5): the first of a tie, so right, wrong, right, wrong. A rest that fills
    no group has no say."""
    items = drawn("a", "4", "5", "5", "4", "4", "4", "5", "5")
    assert majority_at_k(items, 2) == 0.5
    assert majority_at_k(items, 1) == pass_at_k(items, 1) == 0.5
    assert majority_at_k(items[:5], 4) == 1


def test_metrics_are_means_over_prompts_with_intervals_for_powers_of_two() -> None:
    samples = [*drawn("a", *"445567"), *drawn("b", *"555555"), *drawn("c", *"444444")]
    metrics = sampled_metrics(list(reversed(samples)), seed=1)
    assert list(metrics["pass_at_k"]) == list(metrics["majority_at_k"]) == ["1", "2", "4"]
    one, two = metrics["pass_at_k"]["1"], metrics["pass_at_k"]["2"]
    assert one["rate"] == pytest.approx((1 / 3 + 0 + 1) / 3)
    assert two["rate"] == pytest.approx((1 - 6 / 15 + 0 + 1) / 3)
    assert all(
        entry["low"] <= entry["rate"] <= entry["high"] and entry["n"] == 3
        for table in metrics.values()
        for entry in table.values()
    )
    assert metrics["majority_at_k"]["4"]["rate"] == pytest.approx(2 / 3)
    assert metrics == sampled_metrics(samples, seed=1)


def test_an_interval_has_a_width_where_all_prompts_agree() -> None:
    samples = [item for name in "abcdefgh" for item in drawn(name, "4")]
    (entry,) = sampled_metrics(samples)["pass_at_k"].values()
    assert (entry["rate"], entry["high"]) == (1, 1)
    assert 0.6 < entry["low"] < 0.75


def test_code_passes_and_has_no_majority_and_free_text_has_neither() -> None:
    code = [item.model_copy(update={"check": "tests"}) for item in drawn("a", "4", "5")]
    assert list(sampled_metrics(code)) == ["pass_at_k"]
    assert sampled_metrics(drawn("a", "4", "5", check="none")) == {}


def test_metrics_of_an_evaluation_have_them_overall_per_domain_and_per_suite() -> None:
    b = drawn("b", "5", "5", domain=Domain.SCIENCE)
    b = [item.model_copy(update={"suite": "extra"}) for item in b]
    samples = [*drawn("a", "4", "5"), *b]
    items = [item.model_copy(update={"sample": None}) for item in (samples[0], b[0])]
    metrics = reasoning_metrics(items, samples=samples)
    assert metrics["pass_at_k"]["1"]["rate"] == 0.25
    assert metrics["domains"]["math"]["pass_at_k"]["1"]["rate"] == 0.5
    assert metrics["suites"]["extra"]["pass_at_k"]["2"]["rate"] == 0
    assert metrics["suites"]["heldout"]["exact_answer"] == 1
    counted = set(OUTCOMES) - {"novel_exact_answer"}  # nothing is known of these prompts' like
    assert set(metrics["noise"]) == counted


def test_the_noise_is_of_runs_over_the_same_prompts() -> None:
    """One of two verifiable prompts flips; the free text counts for format alone, of three
    prompts."""
    by_prompt = [drawn("a", "4", "5"), drawn("b", "4", "4"), drawn("c", "x", None, check="none")]
    samples = [items[sample] for sample in range(2) for items in by_prompt]
    found = noise_floors(samples, OUTCOMES)
    exact, formed = found["exact_answer"], found["format_rate"]
    assert (exact["n"], exact["flip_rate"]) == (2, 0.5)
    assert (formed["n"], formed["flip_rate"]) == (3, pytest.approx(1 / 3))
    assert found["exact_answer"]["mean"] == 0.75


def test_a_rate_whose_denominator_the_model_chooses_has_no_noise() -> None:
    by_prompt = [drawn("a", "4", None), drawn("b", "4", "4")]
    samples = [items[sample] for sample in range(2) for items in by_prompt]
    right_of_formed = {"rate": lambda item: item.exact if item.format else None}
    assert noise_floors(samples, right_of_formed) == {}


def test_prompts_may_have_unequally_many_samples() -> None:
    """A model that two stages evaluate: four samples of one suite, two of the other."""
    samples = [*drawn("a", "4", "4", "5", "5"), *drawn("b", "4", "5")]
    metrics = sampled_metrics(samples)
    assert list(metrics["pass_at_k"]) == list(metrics["majority_at_k"]) == ["1", "2"]
    assert metrics["pass_at_k"]["2"]["rate"] == pytest.approx((5 / 6 + 1) / 2)
    found = noise_floors(samples, OUTCOMES)["exact_answer"]
    assert (found["seeds"], found["n"], found["flip_rate"]) == (2, 2, 0.5)
