"""The IDEA-E reward: five sections in their order, each with something to say."""

import pytest

from tasks.contract.reward import Response
from tasks.rewards import idea_e
from tasks.rewards.idea_e import INSTRUCTIONS, SECTIONS, Config
from tests.tasks.prompts import paid, prompt, trace

PROMPT = prompt("", "none", prompt="Mia found a purse in the park. What should she do with it?")

TEXTS = {
    "Identify": "Mia holds a purse that somebody else lost, and nobody saw her take it.",
    "Determine": (
        "Honesty and respect for property apply: things belong to their owner until given away."
    ),
    "Explore": (
        "Keeping would harm the loser; leaving risks theft; handing over to police helps most."
    ),
    "Act": "Bring everything unopened to the nearest station and report where it lay.",
    "Evaluate": "This returns what was lost, costs little effort, and violates no principle above.",
}


def scaffold(texts: dict[str, str] | None = None, heading: str = "{}: ") -> str:
    return "\n".join(heading.format(name) + text for name, text in (texts or TEXTS).items())


def worth(reasoning: str, **config: int) -> float:
    return paid(idea_e, trace("Return it.", reasoning), asked=PROMPT, **config)[0]


def test_five_sections_in_order_earn_everything():
    whole = Response(trace("Return it.", scaffold()))
    (judged,) = idea_e.score(Config(), [PROMPT], [whole])
    assert (judged.value, list(judged.detail["new_words"])) == (1.0, list(SECTIONS))


def test_headings_may_be_decorated_and_in_capitals():
    capitals = {name.upper(): text for name, text in TEXTS.items()}
    for heading in ("**{}:** ", "## {}: ", "1. {}: ", "- **{} the matter:** ", "(1) {} is here:\n",
                    "> 2) {}: "):  # fmt: skip
        assert worth(scaffold(heading=heading)) == worth(scaffold(capitals, heading)) == 1.0


def test_a_section_that_is_missing_or_there_twice_costs_a_fifth():
    for missing in SECTIONS:
        others = {name: text for name, text in TEXTS.items() if name != missing}
        assert worth(scaffold(others)) == pytest.approx(0.8)
    assert worth(scaffold() + "\nExplore: even more ways to go about it") == pytest.approx(0.8)


def test_sections_in_another_order_count_as_many_as_are_in_order():
    turned = dict(reversed(TEXTS.items()))
    assert worth(scaffold(turned)) == pytest.approx(0.2)
    late = {name: TEXTS[name] for name in ("Evaluate", "Identify", "Determine", "Explore", "Act")}
    assert worth(scaffold(late)) == pytest.approx(0.8)


def test_every_word_that_a_section_lacks_costs():
    """Six new words earn a section's full share; three of them half of it."""
    short = {**TEXTS, "Evaluate": "Every criterion satisfied."}
    assert worth(scaffold(short)) == pytest.approx(0.9)
    assert worth(scaffold(short), words=3) == 1.0


PIECES = ("Mia found", "a purse", "in the park", "What should she", "do with it")
HOLLOW = {
    "\n".join(f"{name}:" for name in SECTIONS): 0.0,
    scaffold(dict.fromkeys(SECTIONS, "...")): 0.0,
    scaffold(dict.fromkeys(SECTIONS, TEXTS["Identify"])): 0.2,  # one sentence said five times
    scaffold(dict.fromkeys(SECTIONS, PROMPT.prompt)): 0.2,
    scaffold(dict(zip(SECTIONS, PIECES, strict=True))): 0.1,  # the prompt cut in five
    scaffold(dict.fromkeys(SECTIONS, "identify determine explore act evaluate")): 0.0,
    " ".join(SECTIONS): 0.0,
    "Identify: Determine: Explore: Act: Evaluate: everything at once, in one line, with many": 0.2,
    "Identify, determine, explore, act and evaluate: so one should go about it, always.": 0.2,
    scaffold(dict.fromkeys(SECTIONS, "word " * 50)): 0.1,
}


def test_a_scaffold_without_content_earns_little():
    assert [hollow for hollow, most in HOLLOW.items() if worth(hollow) > most + 1e-9] == []


def test_a_scaffold_outside_of_a_trace_earns_nothing():
    texts = scaffold(), f"<reasoning>{scaffold()}</reasoning>"
    assert paid(idea_e, *texts, asked=PROMPT) == [0.0, 0.0]


def test_what_the_teacher_is_told_is_what_is_rewarded():
    """The instructions name the headings in their order, each at the start of a line; they are a
    scaffold with something to say."""
    lines = [line.partition(":")[0] for line in INSTRUCTIONS.splitlines()[1:]]
    assert lines == list(SECTIONS)
    assert worth(INSTRUCTIONS, words=4) > 0.9
