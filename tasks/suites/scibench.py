"""SciBench: 692 problems of college textbooks in chemistry, physics and mathematics (Wang et al.
2024, 2307.10635). The answer is a number with a unit, right within the 5 % that its authors allow.

`path` is the files of `dataset/original` of github.com/mandyyyyii/scibench; one subject is e.g.
`scibench/thermo*.json`. An answer in another unit is converted (check `quantity`), where SciBench
itself compares numbers alone. Two of the problems stand twice in the files, and are asked twice.
"""

from tasks.evaluation.suite_prompts import FileSuite, file_suite, published

_PUBLISHED = {
    "atkins": 121, "calculus": 52, "chemmc": 47, "class": 63, "diff": 55, "fund": 81, "matter": 57,
    "quan": 41, "stat": 92, "thermo": 83,
}  # fmt: skip
"""Problems of each textbook, those with solutions included."""


def expected(config: FileSuite) -> int:
    file = config.path.rpartition("/")[2]
    of_file = sum(count for book, count in _PUBLISHED.items() if file.startswith(book))
    return of_file or sum(_PUBLISHED.values())


SUITE = file_suite(
    version=1,
    config=published("scibench", "scibench/*.json"),
    expected=expected,
    mapping={
        "domain": "science",
        "difficulty": 5,
        "prompt": {"template": "{problem_text}[ Answer in {unit}.]"},
        "answer": {"template": "{answer_number}[ {unit}]"},
        "check": "quantity",
        "tolerance": 0.05,
    },
)
