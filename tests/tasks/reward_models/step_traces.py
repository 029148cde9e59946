"""Traces of two sums in three steps, for the tests of what scores them."""

from schemas.examples import Domain, Example, PreferencePair, Rejection, prompt_id
from tasks.models.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
LENGTHS = {"prompt_length": 24, "response_length": 64}


def example(number: int) -> Example:
    """Three steps, two of which are equations."""
    prompt = f"What is {number} + 1 + 1?"
    reasoning = (
        f"{number} + 1 = {number + 1}, {number + 1} + 1 = {number + 2}. So it is {number + 2}"
    )
    fields = {"prompt": prompt, "answer": str(number + 2), "reasoning": reasoning}
    return Example(id=prompt_id(prompt), domain=Domain.MATH, **fields)


EXAMPLES = [example(number) for number in range(10, 70)]


def preference(chosen: str, rejected: str, because: Rejection = "wrong") -> PreferencePair:
    """A pair of a teacher's responses."""
    fields = {"id": "0" * 16, "prompt": "p", "domain": Domain.MATH, "chosen_from": "teacher"}
    return PreferencePair(**fields, chosen=chosen, rejected=rejected, rejected_because=because)
