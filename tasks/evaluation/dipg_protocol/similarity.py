"""How much of a text stands in another one, as the gym counts it with `difflib`.

`difflib.SequenceMatcher` leaves characters that are frequent in a long text out of account
(`autojunk`): literal quotations can come out as dissimilar. The gym has it so, and its figures
depend on it.
"""

from difflib import SequenceMatcher

_STOPWORDS = frozenset(
    (" the ", " and ", " that ", " with ", " for ", " was ", " were ", " this ", " from ")
)


def is_quoted_v3(proof: str, context: str) -> bool:
    """Version 3: the proof is in the context, or in 85 % agreement with the place around its
    longest piece."""
    if proof in context:
        return True
    longest = SequenceMatcher(None, proof, context).find_longest_match(
        0, len(proof), 0, len(context)
    )
    if not longest.size:
        return False
    place = context[max(0, longest.b - 10) : longest.b + len(proof) + 10]
    return SequenceMatcher(None, proof, place).ratio() >= 0.85


def similarity_v4(needle: str, haystack: str) -> float:
    """Version 4: the part of `needle` that is in `haystack` in one piece, or, of less than 85 %, in
    pieces around the longest one."""
    if not needle:
        return 0.0
    blocks = sorted(
        SequenceMatcher(None, needle, haystack).get_matching_blocks(),
        key=lambda block: block.size,
        reverse=True,
    )
    telling = (
        one
        for one in blocks
        if one.size >= 4
        and f" {needle[one.a : one.a + one.size].lower().strip()} " not in _STOPWORDS
    )
    best = next(telling, blocks[0])
    if not best.size:
        return 0.0
    if best.size / len(needle) >= 0.85:
        return best.size / len(needle)
    place = haystack[max(0, best.b - len(needle)) : best.b + 2 * len(needle)]
    return sum(
        block.size for block in SequenceMatcher(None, needle, place).get_matching_blocks()
    ) / len(needle)
