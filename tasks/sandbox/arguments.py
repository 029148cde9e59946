"""Arguments that a call of the answer changed. Runs inside the sandbox.

An answer gets copies of its arguments. Its changes come back as data, and the tests see them in two
cases: the call returned nothing and had one argument to change (as `list.sort`), or every use of
the variable in the tests compares it with the tests' own data (`reading.Reading.changeable`). They
never see a change of an argument that they compare with the answer's results
(`flow.Flow.measures`): otherwise an answer could clear its input and pass `r = f(xs); assert r ==
sorted(xs)`. When an answer passes while the tests kept such a copy, they run once more with the
changes (`tasks.sandbox.examination`), so that an answer that changes `xs` fails `assert f(xs) == 4;
assert xs == before`.
"""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.sandbox.plain import MUTABLE
from tasks.sandbox.reading import Reading


def check(given: Mapping[int | str, Any], changed: Sequence[tuple[Any, Any]]) -> None:
    """Raise an Exception for changes that no call could have made."""
    if len({place for place, _ in changed}) < len(changed):
        raise ValueError("an argument that was changed twice")
    for place, after in changed:
        kind = next((kind for kind in MUTABLE if isinstance(given[place], kind)), None)
        if type(place) not in (int, str) or kind is None or not isinstance(after, kind):
            raise ValueError("an argument that was changed to something else")


def apply(
    given: Mapping[int | str, Any],
    changed: Sequence[tuple[Any, Any]],
    reading: Reading,
    *,
    sure: bool,
    nothing: bool,
) -> bool:
    """Copy the call's changes into the tests' arguments, where they may see them. Return whether a
    variable of theirs kept its old value although the call changed it.

    Args:
        given: the arguments by place or name.
        changed: places or names, with what is there now.
        reading: the tests, which know the variables whose every use shows what became of them.
        sure: whether the tests see all changes.
        nothing: whether the call returned nothing.
    """
    alone = nothing and sum(isinstance(one, MUTABLE) for one in given.values()) == 1
    variables = _variables() if changed else []
    unseen = False
    for place, after in changed:
        item = given[place]
        names = {name for name, value in variables if value is item}
        measured = names & reading.flow.measures if names else reading.flow.measures
        changeable = names and names <= reading.changeable
        if not (sure or changeable or (alone and not measured)):
            unseen = True
        elif isinstance(item, list | bytearray):
            item[:] = after
        else:
            item.clear()
            (item.extend if isinstance(item, deque) else item.update)(after)
    return unseen


def _variables() -> list[tuple[str, Any]]:
    """The variables of the tests' code that called the answer."""
    frame: Any = sys._getframe()
    while frame and frame.f_code.co_filename != "<tests>":
        frame = frame.f_back
    return [*frame.f_globals.items(), *frame.f_locals.items()] if frame else []
