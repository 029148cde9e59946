"""Chemistry families, in the forms of ChemIQ's questions (`tasks.suites.chemiq`): counting carbon
atoms and rings, shortest paths, and mapping the atoms of two SMILES of one molecule.

We build a molecule from rings and chains by bonds that valences allow, so that we know its atoms,
rings and paths before we write anything. Its SMILES then begins at any atom and visits the others
in any order. `tests/tasks/teaching/test_chemistry.py` checks all of it against RDKit.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from schemas.examples import Domain
from tasks.teaching.families import Problem

DOMAIN = Domain.SCIENCE

_AROMATIC = 1.5
"""The order of a bond in an aromatic ring."""

_BONDS = {1.0: "", _AROMATIC: "", 2.0: "=", 3.0: "#"}

_RINGS = (
    ("cccccc", (1, 1, 1, 1, 1, 1)), ("nccccc", (0, 1, 1, 1, 1, 1)),
    ("ncnccc", (0, 1, 0, 1, 1, 1)), ("occcc", (0, 1, 1, 1, 1)), ("scccc", (0, 1, 1, 1, 1)),
    ("CCCCCC", (2, 2, 2, 2, 2, 2)), ("CCCCC", (2, 2, 2, 2, 2)), ("CCC", (2, 2, 2)),
    ("NCCCCC", (1, 2, 2, 2, 2, 2)), ("NCCOCC", (1, 2, 2, 0, 2, 2)), ("OCCCC", (0, 2, 2, 2, 2)),
)  # fmt: skip
"""Rings: their atoms, lower case in aromatic ones, and the number of free bonds of each."""

_Chain = tuple[tuple[str, int], ...]

_CHAINS: tuple[_Chain, ...] = (
    (("C", 3),), (("C", 2), ("C", 3)), (("N", 2),), (("O", 1),), (("S", 1),), (("F", 0),),
    (("Cl", 0),), (("Br", 0),), (("C", 0), ("N", 0)), (("C", 1), ("O", 0)), (("C", 2), ("O", 1)),
)  # fmt: skip
"""Chains, which bind by their first atom, in the same form. C and N without a free bond are C#N, C
and O with one are C=O."""

_ORDERS: dict[_Chain, float] = {(("C", 0), ("N", 0)): 3.0, (("C", 1), ("O", 0)): 2.0}


@dataclass
class Molecule:
    """Atoms by number, `bonds[a][b]` the order of the bond between a and b, and the number of free
    bonds of each atom."""

    atoms: list[str] = field(default_factory=list)
    bonds: list[dict[int, float]] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def add(self, atom: str, free: int) -> int:
        """Add an atom; returns its number."""
        self.atoms.append(atom)
        self.bonds.append({})
        self.free.append(free)
        return len(self.atoms) - 1

    def bind(self, a: int, b: int, order: float) -> None:
        self.bonds[a][b] = self.bonds[b][a] = order

    def open_atoms(self) -> list[int]:
        """Atoms with a free bond."""
        return [atom for atom, free in enumerate(self.free) if free > 0]

    @property
    def rings(self) -> int:
        """The number of bonds beyond those that connect the atoms."""
        return sum(map(len, self.bonds)) // 2 - len(self.atoms) + 1

    def path(self, start: int, end: int) -> list[int]:
        """A shortest path, both ends included."""
        before, waiting = {start: start}, deque([start])
        while end not in before:
            here = waiting.popleft()
            for other in self.bonds[here]:
                if other not in before:
                    before[other] = here
                    waiting.append(other)
        found = [end]
        while found[-1] != start:
            found.append(before[found[-1]])
        return found[::-1]

    def is_rigid(self) -> bool:
        """Whether all atoms have different surroundings, so that they map in exactly one way.
        Refines colours until no more become different."""
        colours = list(self.atoms)
        for _ in self.atoms:
            around = [
                sorted((order, colours[other]) for other, order in bonds.items())
                for bonds in self.bonds
            ]
            colours = [f"{colour}{sides}" for colour, sides in zip(colours, around, strict=True)]
            names = {colour: str(place) for place, colour in enumerate(sorted(set(colours)))}
            colours = [names[colour] for colour in colours]
        return len(set(colours)) == len(colours)


def counting_carbon(rng: random.Random, level: int) -> Problem:
    """How many carbon atoms: 2 to 7 pieces."""
    molecule = _molecule(rng, 1 + level, level)
    text, order = _smiles(molecule, rng)
    count, named = 0, []
    for atom in order:
        count += molecule.atoms[atom] in "Cc"
        named.append(f"{molecule.atoms[atom]}{count if molecule.atoms[atom] in 'Cc' else ''}")
    return Problem(
        f"How many carbon atoms are in the molecule:\n\n{text}\n\nGive your answer as an integer.",
        f"From left to right, counting each C and c: {', '.join(named)}. That makes {count}.",
        str(count),
        "numeric",
    )


def counting_ring(rng: random.Random, level: int) -> Problem:
    """How many rings: 2 to 7 pieces, more of them rings."""
    molecule = _molecule(rng, 1 + level, 2 + level)
    text, _ = _smiles(molecule, rng)
    count = molecule.rings
    said = ", ".join(_closures(text)) or "there is none"
    return Problem(
        f"How many rings are in the molecule:\n\n{text}\n\nGive your answer as an integer.",
        f"Each digit that comes again closes a ring: {said}. That makes {count}.",
        str(count),
        "numeric",
    )


def shortest_path(rng: random.Random, level: int) -> Problem:
    """How many bonds lie between two dummy atoms: 2 to 7 pieces."""
    molecule = _molecule(rng, 1 + level, level, open_ends=2)
    stars = []
    for _ in range(2):
        place = rng.choice(molecule.open_atoms())
        stars.append(molecule.add("*", 0))
        molecule.bind(stars[-1], place, 1.0)
        molecule.free[place] -= 1
    text, order = _smiles(molecule, rng)
    places = {atom: place for place, atom in enumerate(order)}
    path = molecule.path(*sorted(stars, key=places.__getitem__))
    steps = " ".join(f"{molecule.atoms[atom]}{places[atom]}" for atom in path)
    bonds = len(path) - 1
    return Problem(
        "Determine the number of bonds along the shortest path connecting the two dummy atoms"
        " (denoted by '*'). Count each bond equally, including those directly attached to the dummy"
        f" atoms.\n\n{text}\n\nGive your answer as an integer.",
        f"With the atoms numbered from left to right, the shortest path is {steps}. It has"
        f" {len(path)} atoms, so {bonds} bonds.",
        str(bonds),
        "numeric",
    )


def atom_mapping(rng: random.Random, level: int) -> Problem:
    """Map the atoms of one SMILES to those of another: molecules of 4 to 13 atoms without
    symmetry."""
    while True:
        molecule = _molecule(rng, rng.randint(2, 4), level)
        if 2 + level <= len(molecule.atoms) <= 3 + 2 * level and molecule.is_rigid():
            break
    (first, one), (second, other) = _smiles(molecule, rng), _smiles(molecule, rng)
    places = {atom: place for place, atom in enumerate(other)}
    answer = ", ".join(f"({place}, {places[atom]})" for place, atom in enumerate(one))
    return Problem(
        "You are given two SMILES strings for the same molecule. Atoms are numbered from left to"
        " right, with the first atom having index 0. Only heavy atoms are numbered and mapped.\n\n"
        f"Molecule 1: {first}\n\nMolecule 2: {second}\n\nDetermine the mapping of atoms from"
        " Molecule 1 to Molecule 2. Provide your answer as a list of tuples, where each tuple"
        " contains the atom index from Molecule 1 and its corresponding atom index from Molecule"
        " 2.",
        f"Atoms and their neighbours. Molecule 1: {_neighbours(molecule, one)}. Molecule 2:"
        f" {_neighbours(molecule, other)}. Atoms with the same surroundings are the same.",
        f"[{answer}]",
        "exact",
    )


def _molecule(rng: random.Random, pieces: int, rings: int, *, open_ends: int = 0) -> Molecule:
    """A molecule of so many pieces, about `rings` in eight of them rings, with at least `open_ends`
    free bonds."""
    while True:
        molecule = Molecule()
        for _ in range(pieces):
            places = molecule.open_atoms()
            if molecule.atoms and not places:
                break
            found = _ring(molecule, rng) if rng.random() < rings / 8 else _chain(molecule, rng)
            if places:
                _joined(molecule, rng.choice(places), found)
        else:
            if len(molecule.atoms) > 3 and sum(molecule.free) >= open_ends:
                return molecule


def _joined(molecule: Molecule, place: int, found: list[int]) -> None:
    """Bind the first of the new atoms that has a free bond."""
    new = next(atom for atom in found if molecule.free[atom])
    molecule.bind(place, new, 1.0)
    molecule.free[place] -= 1
    molecule.free[new] -= 1


def _ring(molecule: Molecule, rng: random.Random) -> list[int]:
    atoms, free = rng.choice(_RINGS)
    turn = rng.randrange(len(atoms))
    found = [molecule.add(atom, left) for atom, left in zip(atoms, free, strict=True)]
    order = _AROMATIC if "c" in atoms else 1.0
    for a, b in zip(found, [*found[1:], found[0]], strict=True):
        molecule.bind(a, b, order)
    return [*found[turn:], *found[:turn]]


def _chain(molecule: Molecule, rng: random.Random) -> list[int]:
    chain = rng.choice(_CHAINS)
    # the bond to the rest of the molecule is not among the free ones
    found = [molecule.add(atom, left + (place == 0)) for place, (atom, left) in enumerate(chain)]
    for a, b in pairwise(found):
        molecule.bind(a, b, _ORDERS.get(chain, 1.0))
    return found


def _smiles(molecule: Molecule, rng: random.Random) -> tuple[str, list[int]]:
    """A SMILES of the molecule, from any atom and in any order, and its atoms in their order
    there."""
    order: list[int] = []
    closing: dict[int, list[tuple[int, int]]] = {}  # atom -> (digit, other), as they are written
    children: dict[int, list[int]] = {}
    digits = iter(range(1, 100))

    def walk(atom: int, parent: int | None) -> None:
        order.append(atom)
        children[atom] = []
        for other in rng.sample(sorted(molecule.bonds[atom]), len(molecule.bonds[atom])):
            if other == parent:
                continue
            if other not in children:
                children[atom].append(other)
                walk(other, atom)
            elif not any(end == atom for _, end in closing.get(other, ())):
                digit = next(digits)
                closing.setdefault(other, []).append((digit, atom))
                closing.setdefault(atom, []).append((digit, other))

    def written(atom: int, parent: int | None) -> str:
        bond = _BONDS[molecule.bonds[parent][atom]] if parent is not None else ""
        if parent is not None and molecule.bonds[parent][atom] == 1.0:
            both = molecule.atoms[atom] + molecule.atoms[parent]
            bond = "-" if both.isalpha() and both.islower() else ""
        ends = "".join(
            str(digit) if digit < 10 else f"%{digit}" for digit, _ in closing.get(atom, ())
        )
        *branches, last = [written(child, atom) for child in children[atom]] or [""]
        return f"{bond}{molecule.atoms[atom]}{ends}{''.join(f'({one})' for one in branches)}{last}"

    start = rng.randrange(len(molecule.atoms))
    walk(start, None)
    return written(start, None), order


def _closures(text: str) -> list[str]:
    """The digits of a SMILES that close rings, in the order in which they open."""
    digits = dict.fromkeys(
        text[at : at + 3] if text[at] == "%" else text[at]
        for at in range(len(text))
        if text[at] == "%" or (text[at].isdigit() and "%" not in text[max(0, at - 2) : at])
    )
    return [f"digit {digit}" for digit in digits]


def _neighbours(molecule: Molecule, order: list[int]) -> str:
    """`0 C-1; 1 N-0 2`: each atom with the numbers of its neighbours."""
    places = {atom: place for place, atom in enumerate(order)}
    beside = [sorted(places[other] for other in molecule.bonds[atom]) for atom in order]
    return "; ".join(
        f"{place} {molecule.atoms[atom]}-{' '.join(map(str, beside[place]))}"
        for place, atom in enumerate(order)
    )
