"""The distribution of a step: splits of the operators' outputs, and exchanges. Derived from the program and the number
of ranks.

In: a program, the number of ranks. Out: a plan, the same on every rank: per operator its split (None: every rank
computes the whole output) and the form in which it reads each operand; the splits of the state tensors.

A step's data are cut by samples; every operator follows its operands as long as a rank's part of its output reads the
rank's parts only. A sum over the samples cannot follow: its operands are exchanged, so that each rank has all terms of
some of its elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from vgame.errors import VgameError
from vgame.execute.layout import row_major
from vgame.program.operators import (
    BROADCAST,
    Access,
    ArgMax,
    Contract,
    Copy,
    Gather,
    Map,
    Operator,
    ReduceMax,
    Ref,
    RefClass,
    Variant,
    operand_refs,
)
from vgame.program.program import Program
from vgame.ranks.split import Slice, Split, follow, from_part, nested, part_sizes, place, same_part

#: A sum over the samples with fewer elements is sent to all ranks at once: computing with it everywhere costs less than
#: sending it later.
FEW = 1024
#: The same limit for sums of numbers in norms over the samples: all ranks need them at once.
FEW_MEANS = 4096
#: Multiply-adds above which a product of operands that all ranks hold is split.
WORTH = 1 << 16

Form = Split | None  # form of a tensor: split, or whole


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of the program: how its output is computed, the form of each operand, and the form of the output.
    terms: the split of the terms, for a sum of each rank's own terms."""

    index: int
    split: Form
    reads: tuple[Form, ...]
    held: Form | Slice
    terms: Split | Slice | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`state`: the form of each state tensor between steps; `nodes`: one per operator."""

    world: int
    nodes: tuple[Node, ...]
    state: tuple[Form, ...]


def make_plan(program: Program, world: int) -> Plan:
    """Make the plan. State tensors that are read and written in the same split stay split, except weights, which would
    split the layers. Found by trial: a tensor that needed another form is whole in the next trial."""
    kept: dict[int, Split] = {}
    weights = {
        ref.index
        for operator in program.operators
        if isinstance(operator, Contract | Gather | Copy)
        for ref, _, _ in operand_refs(operator)
        if ref.cls is RefClass.STATE
    }
    planner = _Planner(program, world, kept)
    planner.run()
    kept = {
        t: form
        for t, s in enumerate(program.sources)
        if (form := planner.form(s.ref)) and s.ref.cls is RefClass.OPERATOR and t not in weights
    }
    while True:
        planner = _Planner(program, world, kept)
        planner.run()
        same = {
            t: form
            for t, form in kept.items()
            if t not in planner.moved and planner.form(program.sources[t].ref) == form
        }
        if same == kept:
            state = tuple(kept.get(t) for t in range(len(program.sources)))
            return Plan(world, tuple(planner.nodes), state)
        kept = same


@dataclass
class _Planner:
    program: Program
    world: int
    kept: dict[int, Split]
    nodes: list[Node] = field(default_factory=list)
    hints: dict[int, Split] = field(default_factory=dict)  # possible splits of whole outputs
    known: set[tuple[Ref, Form]] = field(default_factory=set)  # forms already exchanged
    moved: set[int] = field(default_factory=set)  # split state tensors that were needed in another form

    @cached_property
    def readers(self) -> list[list[Operator]]:
        """Readers of each operator's output."""
        found: list[list[Operator]] = [[] for _ in self.program.operators]
        for operator in self.program.operators:
            for ref, _, _ in operand_refs(operator):
                if ref.cls is RefClass.OPERATOR:
                    found[ref.index].append(operator)
        return found

    def run(self) -> None:
        for index, operator in enumerate(self.program.operators):
            if piece := self._slice(index, operator):
                self.nodes.append(Node(index, None, (piece.base,), piece))
                continue
            split, terms = self._choose(operator)
            reads = (terms,) * len(operand_refs(operator)) if terms else self.reads(operator, split)
            assert reads is not None, f"operator {index} cannot be split as {split}"
            for (ref, elements, _), form in zip(operand_refs(operator), reads, strict=True):
                if self._cost(ref, elements, form) and ref.cls is RefClass.STATE:
                    self.moved.add(ref.index)
                self._note(ref, form)
            few = isinstance(operator, Contract) and operator.elements < FEW and split not in self._followed(operator)
            self.nodes.append(Node(index, split, reads, None if few else split, terms))
            if isinstance(operator, Gather) and operator.table.cls is RefClass.DATA:
                self.hints[index] = self._samples(operator)

    def _note(self, ref: Ref, form: Form) -> None:
        """Record that a tensor exists in a form."""
        self.known.add((ref, form))
        if form is None and (source := copied_from(self.program, ref)):
            self._note(source.ref, None)

    def form(self, ref: Ref) -> Form:
        """The form in which a tensor is produced."""
        if ref.cls is RefClass.OPERATOR:
            held = self.nodes[ref.index].held
            return None if isinstance(held, Slice) else held
        return self.kept.get(ref.index) if ref.cls is RefClass.STATE else None

    def _samples(self, operator: Gather) -> Split:
        """The split of gathered data into samples: by the first dimension of the row indices."""
        rows = self.program.operators[operator.index.index] if operator.index.cls is RefClass.OPERATOR else None
        wide = isinstance(rows, Map) and len(rows.sizes) > 1 and rows.sizes[0] > 1
        digit = rows.sizes[0] if wide else operator.count
        return Split(digit, operator.elements // digit)

    def _read(self, access: Access, sizes: tuple[int, ...], split: Split) -> Form:
        """The form in which a part of a map or a copy reads an operand: its current form if possible, else another
        split, else whole."""
        held = self.form(access.ref)
        if held is None or from_part(access, sizes, split, held, split.digit):
            return held
        return None if (access.ref, None) in self.known else _wanted(access, sizes, split)

    def _rows_held(self, operator: Gather) -> Form:
        """The form of the table, if ranks hold whole consecutive rows of it."""
        held = self.form(operator.table)
        whole = operator.rows * operator.width
        rows = held and held.digit * held.inner == whole and held.inner % operator.width == 0
        return held if rows else None

    # ---- one operator ----

    def _choose(self, operator: Operator) -> tuple[Form, Form]:
        """(the split with the fewest words to exchange, the split of the terms); whole only if no split is possible."""
        options = [(s, None) for s in dict.fromkeys(self._options(operator)) if s.digit >= self.world]
        options += self._by_terms(operator)
        costs = [(self._price(operator, *option), n) for n, option in enumerate(options)]
        costs = [c for c in costs if c[0] is not None]
        return options[min(costs)[1]] if costs else (None, None)

    def _slice(self, index: int, operator: Operator) -> Slice | None:
        """A slice of a tensor that is too long for one sum, if sums are its only readers."""
        if not isinstance(operator, Copy) or len(operator.accesses) > 1 or len(operator.sizes) > 1:
            return None
        access, readers = operator.accesses[0], self.readers[index]
        held = self.form(access.ref)
        plain = access.targets == ((0, 1),) and access.dims[0].divisor == 1 and access.dims[0].offset >= 0
        if held is None or not plain or held.digit * held.inner != access.dims[0].size:
            return None
        only_added = readers and all(
            isinstance(op, Contract) and op.variant is Variant.SUM and op.k == operator.elements and not op.bfloat16
            for op in readers
        )
        return Slice(held, access.dims[0].offset, access.dims[0].offset + operator.elements) if only_added else None

    def _by_terms(self, operator: Operator) -> list[tuple[Form, Split | Slice]]:
        """(split of the output, of the terms) if each rank may add up its own terms."""
        if isinstance(operator, Contract) and operator.a.cls is RefClass.OPERATOR:
            held = self.nodes[operator.a.index].held
            if isinstance(held, Slice):
                return [(None, held)]
        if not isinstance(operator, Contract) or operator.variant is Variant.ONE_HOT or operator.bfloat16:
            return []
        if operator.batch > 1 and (operator.shared_a or operator.shared_b):
            return []
        found = []
        for ref, elements, _ in operand_refs(operator):
            form = self.form(ref)
            at = form and place((elements // operator.k, operator.k), form)
            if at and at.axis == 1:
                few = FEW_MEANS if operator.variant is Variant.SUM else FEW
                own = [s for s in _own(operator) if s.digit >= self.world and operator.elements >= few]
                found += [(split, Split(form.digit, at.low)) for split in own or [None]]
        return found

    def _options(self, operator: Operator) -> list[Split]:
        found = self._followed(operator)
        if isinstance(operator, Contract) and not found and self._is_worth(operator):
            return _own(operator)
        return found

    def _followed(self, operator: Operator) -> list[Split]:
        """Splits that follow an operand's. A state tensor leads only if nothing else does: else weights would split the
        layers."""
        found, by_state = [], []
        for n, (ref, elements, _) in enumerate(operand_refs(operator)):
            split = self.form(ref) or (self.hints.get(ref.index) if ref.cls is RefClass.OPERATOR else None)
            if split is not None:
                (by_state if ref.cls is RefClass.STATE else found).extend(_follow(operator, n, split, elements))
        return found or by_state

    def _is_worth(self, operator: Contract) -> bool:
        """Whether a split product is worth it: small products of whole operands are computed by all ranks."""
        split = any(self.form(ref) for ref, _, _ in operand_refs(operator))
        return split or operator.distinct * operator.m * operator.n * operator.k >= WORTH

    def _price(self, operator: Operator, split: Form, terms: Form) -> int | None:
        """Words that a rank receives, times N / (N - 1)."""
        operands = operand_refs(operator)
        if terms:
            sizes = self.world * sum(n // operator.k for _, n, _ in operands)  # binary64 sums, of two words
            sums = operator.elements * (1 if split else self.world)
            return 2 * (sums + sizes) + sum(self._cost(ref, n, terms) for ref, n, _ in operands)
        reads = self.reads(operator, split)
        if reads is None:
            return None
        return sum(self._cost(ref, n, form) for (ref, n, _), form in zip(operands, reads, strict=True))

    def _cost(self, ref: Ref, elements: int, form: Form) -> int:
        """Words that a rank receives."""
        held = self.form(ref)
        if held is None or held == form or (ref, form) in self.known:
            return 0
        if form is not None and same_part(held, form, self.world):
            return 0
        if form is None and (source := copied_from(self.program, ref)):
            return self._cost(source.ref, source.elements, None)
        return elements if form is None or not _direct(held, form) else elements // self.world

    def reads(self, operator: Operator, split: Form) -> tuple[Form, ...] | None:
        """The form of each operand for a part of the output; None if there is no such part."""
        if split is None:
            return (None,) * len(operand_refs(operator))
        if isinstance(operator, Gather) and (table := self._rows_held(operator)):
            at = place((operator.count, operator.width), split)
            return (Split(split.digit, at.low), table) if at and at.axis == 0 else None
        if isinstance(operator, Map | Copy):
            if part_sizes(operator.sizes, split, split.digit) is None:
                return None
            return tuple(self._read(a, operator.sizes, split) for a in operator.accesses)
        return _reads(operator, split)


def _wanted(access: Access, sizes: tuple[int, ...], split: Split) -> Form:
    """The split of an operand such that a part of the output reads only the rank's part; None if there is none."""
    at = place(sizes, split)
    target, c = access.targets[at.axis] if at else (BROADCAST, 0)
    if target == BROADCAST or c <= 0:
        return None
    stride = row_major(tuple(d.size for d in access.dims))[target]
    wanted = Split(split.digit, at.low * c * stride)
    return wanted if from_part(access, sizes, split, wanted, split.digit) else None


def copied_from(program: Program, ref: Ref) -> Access | None:
    """The source of a copy that is larger than its source (the patches of a convolution): exchanged instead of the copy
    if all ranks need the whole."""
    operator = program.operators[ref.index] if ref.cls is RefClass.OPERATOR else None
    if not isinstance(operator, Copy) or len(operator.accesses) > 1:
        return None
    access = operator.accesses[0]
    fewer = access.ref.cls is RefClass.OPERATOR and access.elements < operator.elements
    return access if fewer else None


def _direct(held: Split, form: Split) -> bool:
    return nested(held, form) or nested(form, held)


def _follow(operator: Operator, operand: int, split: Split, elements: int) -> list[Split]:
    """Possible splits of the output for the split of an operand."""
    if isinstance(operator, Map | Copy):
        return follow(operator.accesses[operand], operator.sizes, split)
    for shape, scales in _axes(operator)[operand] if operand < len(_axes(operator)) else ():
        at = place(shape, split)
        if at is not None and scales[at.axis]:
            return [Split(split.digit, at.low * scales[at.axis])]
    return []


def _axes(operator: Operator) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Per operand: its shape, and for each dimension its stride in the output (0: none)."""
    match operator:
        case Contract(m=m, n=n, k=k):
            rows = 1 if operator.variant is Variant.ONE_HOT else m
            a = (1 if operator.shared_a else operator.batch, rows, k), (m * n, n if rows == m else 0, 0)
            b = (1 if operator.shared_b else operator.batch, n, k), (m * n, 1, 0)
            return [[a], [b]]
        case Gather():
            return [[((operator.count,), (operator.width,))], [((operator.rows, operator.width), (0, 1))]]
        case ReduceMax():
            return [[((operator.rows, operator.length), (-(-operator.length // operator.block), 0))]]
        case ArgMax():
            return [[((operator.rows, operator.length), (1, 0))]]
    return []


def _own(operator: Contract) -> list[Split]:
    """Splits of a sum by batches, rows or columns."""
    found = [] if operator.distinct < operator.batch else [Split(operator.batch, operator.m * operator.n)]
    if operator.variant is not Variant.ONE_HOT:  # there, the words of an operand select the rows
        found.append(Split(operator.m, operator.n))
    return [*found, Split(operator.n, 1)]


def _reads(operator: Operator, split: Split) -> tuple[Form, ...] | None:
    """Operand forms of an operator that reads whole rows."""
    match operator:
        case Contract(m=m, n=n, k=k):
            one_hot = operator.variant is Variant.ONE_HOT
            at = place((operator.batch, m, n), split)
            if at is None or (one_hot and at.axis == 1):
                return None
            rows = 1 if one_hot else m
            a = (
                None if operator.shared_a else Split(split.digit, at.low * rows * k),
                Split(split.digit, at.low * k),
                None,
            )
            b = (
                None if operator.shared_b else Split(split.digit, at.low * n * k),
                None,
                Split(split.digit, at.low * k),
            )
            return (a[at.axis],) if operator.variant is Variant.SUM else (a[at.axis], b[at.axis])
        case Gather():
            at = place((operator.count, operator.width), split)
            if at is None:
                return None
            return (Split(split.digit, at.low), None) if at.axis == 0 else (None, Split(split.digit, at.low))
        case ReduceMax() | ArgMax():
            per_row = operator.elements // operator.rows
            at = place((operator.rows, per_row), split)
            return (Split(split.digit, at.low * operator.length),) if at is not None and at.axis == 0 else None
    return None


def refuse_more_ranks(program: Program, world: int) -> None:
    """VgameError if a step has fewer samples than there are ranks."""
    tables = (op for op in program.operators if isinstance(op, Gather) and op.table.cls is RefClass.DATA)
    planner = _Planner(program, world, {})
    samples = max((planner._samples(op).digit for op in tables), default=0)
    if world > max(samples, 1):
        raise VgameError(
            f"{world} ranks were started, but a step of this job has {samples} samples: start at most {max(samples, 1)}"
        )


def shared_work(program: Program, nodes: Sequence[Node]) -> float:
    """The share of the multiply-adds of all sums that is split."""
    sums = [
        (op.distinct * op.m * op.n * op.k, n.split or n.terms)
        for n in nodes
        if isinstance(op := program.operators[n.index], Contract)
    ]
    return sum(w for w, s in sums if s) / max(1, sum(w for w, _ in sums))
