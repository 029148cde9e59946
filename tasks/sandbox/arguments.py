"""Arguments that a call of the answer changed. Runs inside the sandbox.

An answer gets copies. What it made of them comes back as data and counts only where a function that
works in place would be looked at: where the call returned nothing and had one argument to change
(as `list.sort`), or where every use of the variable in the tests compares it with the tests' own
data (`reading.Reading.changeable`). It never counts where tests hold the argument against what
comes of the answer (`flow.Flow.measures`). Else an answer could clear its input and be right: `r =
f(xs); assert r == sorted(xs)`. Tests that an answer passes while they keep such a copy are run once
more, with the changes (`tasks.sandbox.examination`): `assert f(xs) == 4; assert xs == before` is no
test that an answer passes by changing `xs`.
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
    """Make arguments what the call made of them, where that counts. Whether the tests kept a copy
    of a variable where it does not.

    Args:
        given: the arguments by place or name.
        changed: places or names, with what is there now.
        reading: the tests, which know the variables whose every use shows what became of them.
        sure: whether all changes count.
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
