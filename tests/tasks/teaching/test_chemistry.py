"""Chemistry: every answer is counted again in the SMILES that the prompt shows, by a reader that
shares nothing with the families, and by RDKit where it is installed."""

import re
from collections import Counter
from functools import cache

import pytest

from schemas.examples import Domain, Example
from tasks.contract.teacher import TEACHERS
from tasks.teachers import procedural
from tasks.teaching.families import domain_of, families
from tasks.verification.verify import verify

ROWS = 400
_ATOM = re.compile(r"Cl|Br|[CNOSFcnos*]")


@cache
def taught() -> tuple[Example, ...]:
    table = {"name": "procedural", "rows": {"science": ROWS}, "families": ["chemistry"]}
    config = TEACHERS.parse({**table, "grounded": {}}, "test")
    return tuple(procedural.rows(config, 7))


def of(family: str) -> list[Example]:
    return [row for row in taught() if row.family == f"chemistry.{family}"]


def molecules(row: Example) -> list[str]:
    """The SMILES of a prompt: its words that hold nothing but atoms, bonds, branches and digits."""
    words = re.findall(r"(?m)^(?:Molecule \d: )?(\S+)$", row.prompt)
    return [word for word in words if re.fullmatch(r"(?:Cl|Br|[CNOSFcnos*]|[-=#()\d%])+", word)]


def bonds(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Atoms and bonds of a SMILES, read from left to right."""
    atoms: list[str] = []
    found: list[tuple[int, int]] = []
    opened: dict[str, int] = {}
    stack: list[int] = []
    last: int | None = None
    for token in re.findall(r"Cl|Br|%\d\d|.", text):
        if _ATOM.fullmatch(token):
            atoms.append(token)
            if last is not None:
                found.append((last, len(atoms) - 1))
            last = len(atoms) - 1
        elif token == "(":
            assert last is not None
            stack.append(last)
        elif token == ")":
            last = stack.pop()
        elif token not in "-=#":
            assert last is not None
            if token in opened:
                found.append((opened.pop(token), last))
            else:
                opened[token] = last
    assert not opened
    assert not stack
    return atoms, found


def distance(pairs: list[tuple[int, int]], start: int, end: int) -> int:
    """Bonds of a shortest path, by widening a circle."""
    circle, steps = {start}, 0
    while end not in circle:
        circle |= {b for a, b in pairs if a in circle} | {a for a, b in pairs if b in circle}
        steps += 1
    return steps


def test_chemistry_is_a_subject_of_science_with_rows_of_every_family_and_difficulty() -> None:
    assert domain_of("chemistry") == Domain.SCIENCE
    names = ("counting_carbon", "counting_ring", "shortest_path", "atom_mapping")
    assert tuple(families("chemistry")) == names
    assert Counter((row.family, row.difficulty) for row in taught()) == {
        (f"chemistry.{name}", level): ROWS // 20 for name in names for level in range(1, 6)
    }
    assert all(verify(row, row.response()).exact for row in taught())


def test_what_is_counted_is_what_the_smiles_shows() -> None:
    for row in of("counting_carbon"):
        assert row.answer == str(sum(atom in "Cc" for atom in bonds(molecules(row)[0])[0])), row
    for row in of("counting_ring"):
        atoms, found = bonds(molecules(row)[0])
        assert row.answer == str(len(found) - len(atoms) + 1), row
    assert len({row.answer for row in of("counting_ring")}) > 3


def test_the_path_between_the_dummy_atoms_has_so_many_bonds() -> None:
    for row in of("shortest_path"):
        atoms, found = bonds(molecules(row)[0])
        start, end = (place for place, atom in enumerate(atoms) if atom == "*")
        assert row.answer == str(distance(found, start, end)), row


def pairs_of(row: Example) -> dict[int, int]:
    return {int(a): int(b) for a, b in re.findall(r"\((\d+), (\d+)\)", row.answer)}


def test_a_mapping_takes_atoms_to_the_same_and_bonds_to_bonds() -> None:
    for row in of("atom_mapping"):
        (one, one_bonds), (other, other_bonds) = (bonds(text) for text in molecules(row))
        mapping = pairs_of(row)
        assert [other[mapping[place]] for place in range(len(one))] == one, row
        assert {frozenset((mapping[a], mapping[b])) for a, b in one_bonds} == {
            frozenset(pair) for pair in other_bonds
        }, row


def test_rdkit_agrees() -> None:
    """It reads every molecule, counts the same, and knows no other mapping."""
    chem = pytest.importorskip("rdkit.Chem", reason="RDKit is asked where it is installed")
    for row in taught():
        read = [chem.MolFromSmiles(text) for text in molecules(row)]
        assert read, row
        assert all(read), row
        first = read[0]
        if row.family.endswith("carbon"):
            assert row.answer == str(sum(a.GetSymbol() == "C" for a in first.GetAtoms())), row
        elif row.family.endswith("ring"):
            assert row.answer == str(first.GetRingInfo().NumRings()), row
        elif row.family.endswith("path"):
            stars = [a.GetIdx() for a in first.GetAtoms() if a.GetSymbol() == "*"]
            assert row.answer == str(len(chem.GetShortestPath(first, *stars)) - 1), row
        else:
            matches = read[1].GetSubstructMatches(first, uniquify=False)
            assert [tuple(pairs_of(row).values())] == list(matches), row
