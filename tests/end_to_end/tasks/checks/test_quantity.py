"""Check `quantity` on the references of SciBench."""

from tasks.verification.quantities import parse_quantity
from tests.end_to_end.tasks.records import SHARED, needs_records, rows
from tests.tasks.checks.test_quantity import ok

SCIBENCH = SHARED / "scibench"


@needs_records
def test_every_reference_of_scibench_is_read_and_agrees_with_itself_only() -> None:
    """580 problems: number and unit as the files have them; the same with another factor, or with a
    strange unit, is wrong."""
    paths = [path for path in sorted(SCIBENCH.glob("*.json")) if not path.stem.endswith("_sol")]
    problems = [row for path in paths for row in rows(f"scibench/{path.name}")]
    assert len(problems) == 580
    for row in problems:
        reference = f"{row['answer_number']} {row['unit']}".strip()
        assert ok(reference, reference), reference
        assert ok(row["answer_number"].replace("−", "-"), f"{row['answer_number']} m"), reference
        quantity, *_ = parse_quantity(reference)
        if quantity.number:
            assert not ok(
                str(2 * float(row["answer_number"].replace("−", "-").replace(",", ""))),
                f"{row['answer_number']} m",
            ), reference
        if quantity.dimension:
            assert not ok(f"{row['answer_number']} candela", reference), reference
