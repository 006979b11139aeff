"""Fuse maps of a program into chains that are computed block by block (vgame/arithmetic/numba/pointwise.py), and find
when values are freed.

In: the operators of a step, and the outputs kept until its end. Out: units in order of execution: single operators, and
chains of maps over the same number of words that read each other's outputs in place. A chain runs at the position of
its last map; no other operator reads its outputs earlier. Outputs that only the chain reads are never written to
memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.numba.chains import Chain
from vgame.arithmetic.numba.pointwise import NARROW
from vgame.arithmetic.torch.tiling import WORTH
from vgame.execute.layout import plan, row_major
from vgame.program.operators import Access, Contract, Map, Operator, RefClass, Variant, operand_refs

#: A product large enough for a thread may be finished later if its first reader comes at least this many operators
#: later.
FAR = 64
#: Functions that are not fused, because their loops have many instructions.
ALONE = frozenset((*ELEMENTARY, Function.FMOD))
#: Functions that the GPU's kernels do not fuse: rare functions of several instructions are left to torch.
ALONE_ON_GPU = ALONE | {
    Function.FLOOR,
    Function.CEIL,
    Function.TRUNC,
    Function.ROUND,
    Function.CAST,
    Function.FTOI,
    Function.IDIV,
    Function.IMOD,
}
#: Most maps of a chain: a thread holds one block per value and constant.
LONGEST = 256

Source = tuple[Access, tuple[int, ...]]  # an access, and the index space that it reads over


@dataclass(frozen=True, slots=True)
class Unit:
    """The operator at `index`, or the chain of `members` that ends there; the operators whose outputs are freed
    afterwards.

    patient: whether it is a product that may be finished later, because its first reader comes much later.
    """

    index: int
    operator: Operator
    members: tuple[int, ...]
    fused: Fused | None
    free: tuple[int, ...]
    patient: bool


@dataclass(frozen=True, slots=True)
class Fused:
    """A chain: the sources of its inputs, the operators of its results, and those checked for infinities."""

    chain: Chain
    elements: int
    sources: tuple[Source, ...]
    results: tuple[int, ...]
    checked: tuple[int, ...]


def units_of(
    operators: Sequence[Operator],
    kept: Collection[int],
    finite: Collection[int],
    fuse: bool,
    alone: Collection[Function] = ALONE,
) -> list[Unit]:
    """The units of a step. kept: operators whose outputs are needed after it; finite: those that must be finite.

    Without `fuse`, every operator is a unit of its own; with it, only maps of the functions in `alone` and operators
    other than maps are.
    """
    groups = _groups(operators, alone) if fuse else []
    last_of = {member: group[-1] for group in groups for member in group}
    place = [last_of.get(i, i) for i in range(len(operators))]
    last, readers = list(place), [[] for _ in operators]
    for i, operator in enumerate(operators):
        for ref, _, _ in operand_refs(operator):
            if ref.cls is RefClass.OPERATOR:
                last[ref.index] = max(last[ref.index], place[i])
                readers[ref.index].append(i)
    free = [[] for _ in operators]
    for i, position in enumerate(last):
        if i not in kept:
            free[position].append(i)
    ends = {group[-1]: group for group in groups}
    outside = {
        i for i in last_of if i in kept or not readers[i] or any(last_of.get(r) != last_of[i] for r in readers[i])
    }
    fused = {i: _compose(operators, group, outside, finite) for i, group in ends.items()}
    return [
        Unit(
            i,
            operators[i],
            tuple(ends.get(i, (i,))),
            fused.get(i),
            tuple(free[i]),
            _is_patient(operators[i], i, readers[i], i in kept),
        )
        for i in range(len(operators))
        if place[i] == i
    ]


def _is_patient(operator: Operator, index: int, readers: Sequence[int], kept: bool) -> bool:
    """Whether a product may be finished later. Not if its output has no reader: it might be left out at the end of a
    step, so the time of a step would vary."""
    if not isinstance(operator, Contract) or operator.variant is not Variant.DOT:
        return False
    first = min(readers, default=index + FAR if kept else index)
    return operator.elements * operator.k >= WORTH and first >= index + FAR


def _groups(operators: Sequence[Operator], alone: Collection[Function]) -> list[list[int]]:
    """The maps of each chain, in rising order.

    A group is open until an operator outside reads from it, so each reader of its outputs comes after its last map.
    """
    groups: dict[int, list[int]] = {}
    owner: dict[int, int] = {}  # operator -> its open group
    for i, operator in enumerate(operators):
        fits = isinstance(operator, Map) and operator.function not in alone and not _is_narrow(operator, alone)
        reads = [(ref.index, n) for n, (ref, _, _) in enumerate(operand_refs(operator)) if ref.cls is RefClass.OPERATOR]
        touched = {owner[r] for r, _ in reads if r in owner}
        others = {r for r, n in reads if not (fits and is_identity(operator.accesses[n], operator.sizes))}
        closed = {owner[r] for r in others if r in owner}
        if sum(len(groups[group]) for group in touched - closed) >= LONGEST:
            closed = touched
        for group in closed:
            for member in groups[group]:
                del owner[member]
        if fits:
            joined = sorted(m for group in touched - closed for m in groups.pop(group))
            groups[i] = [*joined, i]
            owner.update(dict.fromkeys(groups[i], i))
    return list(groups.values())


def _is_narrow(operator: Map, alone: Collection[Function]) -> bool:
    """Whether the map rounds to bfloat16, which the GPU's chains do not support."""
    return operator.bfloat16 and alone is ALONE_ON_GPU


def is_identity(access: Access, sizes: tuple[int, ...]) -> bool:
    """Whether word e of the operand is read at word e of the index space, for all words of both."""
    found = plan(access, sizes)
    if found is None or found[1] or found[2] or access.elements != math.prod(sizes):
        return False
    return all(step == s or n == 1 for step, s, n in zip(found[0], row_major(sizes), sizes, strict=True))


def _compose(
    operators: Sequence[Operator], group: list[int], outside: Collection[int], finite: Collection[int]
) -> Fused:
    """The instructions of a chain. A temporary block is reused after the last read of its value."""
    slots = _Slots(operators, group, [i for i in group if i in outside])
    code = [slots.instruction(i) for i in group]
    words = np.zeros(slots.count, np.uint32)
    for word, slot in slots.constants.items():
        words[slot] = word
    integers = tuple(operators[i].integer for i in slots.results)
    checked = tuple(i for i in slots.results if i in finite)
    at = np.array([slots.values[i] for i in checked], np.int64)
    chain = Chain(np.array(code, np.int64), words, len(slots.sources), integers, at)
    return Fused(chain, operators[group[0]].elements, tuple(slots.sources), tuple(slots.results), checked)


class _Slots:
    """The slots of a chain while it is composed: sources, results, constants, blocks."""

    def __init__(self, operators: Sequence[Operator], group: list[int], results: list[int]) -> None:
        self.operators, self.results, members = operators, results, set(group)
        self.sources: dict[Source, int] = {}
        self.constants: dict[int, int] = {}
        self.last: dict[int, int] = {}
        for i in group:
            for access in operators[i].accesses:
                if access.ref.cls is RefClass.OPERATOR and access.ref.index in members:
                    self.last[access.ref.index] = i
                elif access.ref.cls is RefClass.IMMEDIATE:
                    self.constants.setdefault(access.fill, len(self.constants))
                else:
                    self.sources.setdefault((access, operators[i].sizes), len(self.sources))
        first = len(self.sources) + len(results)
        self.constants = {word: first + number for word, number in self.constants.items()}
        self.values = {i: slot for slot, i in enumerate(results, len(self.sources))}
        self.count, self.unused = first + len(self.constants), []

    def instruction(self, index: int) -> list[int]:
        """The row of one map. Its result never shares a block with its operands, so that its loop can use vectors."""
        operator = self.operators[index]
        operands = [self._operand(access, operator.sizes) for access in operator.accesses]
        if index not in self.values:
            if not self.unused:
                self.unused.append(self.count)
                self.count += 1
            self.values[index] = self.unused.pop()
        for read in {a.ref.index for a in operator.accesses if a.ref.cls is RefClass.OPERATOR}:
            if self.last.get(read) == index and read not in self.results:
                self.unused.append(self.values[read])
        code = int(operator.function) | (NARROW if operator.bfloat16 else 0)
        return [code, self.values[index], *operands, *operands[:1] * (3 - len(operands))]

    def _operand(self, access: Access, sizes: tuple[int, ...]) -> int:
        if access.ref.cls is RefClass.IMMEDIATE:
            return self.constants[access.fill]
        if access.ref.cls is RefClass.OPERATOR and access.ref.index in self.last:
            return self.values[access.ref.index]
        return self.sources[access, sizes]
