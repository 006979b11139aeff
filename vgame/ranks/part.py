"""The program of one rank: ordinary operators on its parts, and exchanges between them.

In: a program, its plan, a rank's share. Out: `Part`, which `vgame.ranks.executor` runs. The same list of exchanges on
every rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from vgame.program.operators import (
    Access,
    ArgMax,
    Contract,
    Copy,
    Dim,
    Gather,
    Map,
    Operator,
    ReduceMax,
    Ref,
    RefClass,
    identity_access,
    operand_refs,
)
from vgame.program.program import Labels, Program, Source
from vgame.ranks.plan import Form, Node, Plan, copied_from
from vgame.ranks.split import Share, Slice, Split, from_part, from_whole, nested, part_sizes, place, same_part


@dataclass(frozen=True, slots=True)
class Exchange:
    """Change the form of a tensor of `whole` words: every rank gives its part and gets another part, or all. Not an
    operator of a program."""

    operand: Ref
    given: Split
    wanted: Form
    whole: int
    elements: int
    integer: bool
    origin: int  # operator of the program whose output it is

    @property
    def reads(self) -> tuple[tuple[Ref, int, bool | None], ...]:
        """As vgame.program.operators.operand_refs."""
        return ((self.operand, self.elements, self.integer),)


@dataclass(frozen=True, slots=True)
class Summed:
    """Sums of a program's operator with terms on all ranks: `operator` is over this rank's terms, `length` counts all
    of them. The output is this rank's part of the sums (None: all). Not an operator of a program."""

    operator: Contract
    split: Form
    length: int
    elements: int
    empty: bool  # whether this rank has no terms
    integer = False

    @property
    def reads(self) -> tuple[tuple[Ref, int, bool | None], ...]:
        """As vgame.program.operators.operand_refs."""
        return operand_refs(self.operator)


@dataclass(frozen=True, slots=True)
class Looked:
    """Rows of a table that is distributed over the ranks as `held`; `operator` has this rank's indices into the whole
    table of `rows` rows, and its part of it. Not an operator of a program."""

    operator: Gather
    held: Split
    rows: int

    @property
    def elements(self) -> int:
        return self.operator.elements

    @property
    def integer(self) -> bool:
        return self.operator.integer

    @property
    def reads(self) -> tuple[tuple[Ref, int, bool | None], ...]:
        """As vgame.program.operators.operand_refs."""
        return operand_refs(self.operator)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The output of an operator with words that depend on its number in the program: PHILOX."""

    operator: Operator
    origin: int
    integer = True

    @property
    def elements(self) -> int:
        return self.operator.elements


@dataclass(frozen=True)
class Part(Program):
    """A rank's step. `origins`: for each operator, its operator of the program; -1: a slice or an exchange."""

    must_be_finite: frozenset[int] = frozenset()
    origins: tuple[int, ...] = ()

    @property
    def finite(self) -> frozenset[int]:
        return self.must_be_finite


def part_of(program: Program, plan: Plan, rank: int) -> Part:
    """The part of one of the plan's ranks."""
    return _Maker(program, plan, Share(rank, plan.world)).make()


@dataclass
class _Maker:
    program: Program
    plan: Plan
    share: Share
    operators: list[Operator] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    made: dict[tuple[Ref, Form], Ref] = field(default_factory=dict)  # index of each form of a tensor of the program

    def make(self) -> Part:
        finite = set()
        for node in self.plan.nodes:
            here = self._operator(node)
            if node.index in self.program.finite:
                finite.add(here.index)
        sources = tuple(self._source(t, source) for t, source in enumerate(self.program.sources))
        loss = self._form(Ref(RefClass.OPERATOR, self.program.loss), 1, None)
        return Part(
            tuple(self.operators), sources, self.program.constants, self.program.data, self.program.scalars, loss.index,
            Labels(), frozenset(finite), tuple(self.origins),
        )  # fmt: skip

    def _source(self, tensor: int, source: Source) -> Source:
        form = self.plan.state[tensor]
        return Source(
            self._form(source.ref, source.elements, form), self.share.elements(form, source.elements), source.integer
        )

    def _emit(self, operator: Operator, origin: int = -1) -> Ref:
        self.operators.append(operator)
        self.origins.append(origin)
        return Ref(RefClass.OPERATOR, len(self.operators) - 1)

    # ---- operators ----

    def _operator(self, node: Node) -> Ref:
        operator = self.program.operators[node.index]
        if isinstance(node.held, Slice):
            made = self._sliced(operator, node.held)
        elif isinstance(operator, Map | Copy):
            made = self._indexed(operator, node)
        else:
            reads = zip(operand_refs(operator), node.reads, strict=True)
            refs = [self._form(ref, n, form) for (ref, n, _), form in reads]
            made = self._summed(operator, node, refs) if node.terms else self._rows(operator, node, refs)
        ref, here = Ref(RefClass.OPERATOR, node.index), self._emit(made, node.index)
        self.made[ref, node.split] = here
        if isinstance(node.held, Slice):
            del self.made[ref, None]
            self.made[ref, node.held] = here
        elif node.held != node.split:
            self._form(ref, operator.elements, node.held)
        return here

    def _indexed(self, operator: Map | Copy, node: Node) -> Operator:
        accesses = tuple(self._access(operator, n, node) for n in range(len(operator.accesses)))
        if node.split is None:
            return replace(operator, accesses=accesses)
        sizes = part_sizes(operator.sizes, node.split, self.share.width(node.split.digit))
        return replace(operator, sizes=sizes, accesses=accesses)

    def _access(self, operator: Map | Copy, number: int, node: Node) -> Access:
        access, split, form = operator.accesses[number], node.split, node.reads[number]
        ref = self._form(access.ref, access.elements, form)
        if split is None:
            return replace(access, ref=ref)
        low, high = self.share.cut(split.digit)
        if form is None:
            return replace(from_whole(access, operator.sizes, split, low), ref=ref)
        part = from_part(access, operator.sizes, split, form, high - low)
        assert part is not None, "the plan has looked"
        return replace(part, ref=ref)

    def _rows(self, operator: Operator, node: Node, refs: list[Ref]) -> Operator:
        """An operator that reads whole rows, on this rank's rows."""
        split = node.split
        width = 0 if split is None else self.share.width(split.digit)
        match operator:
            case Contract(batch=batch, m=m, n=n):
                sizes = _fewer((batch, m, n), split, width)
                b = refs[1] if len(refs) > 1 else operator.b
                return replace(operator, batch=sizes[0], m=sizes[1], n=sizes[2], a=refs[0], b=b)
            case Gather(count=count, width=columns):
                sizes = _fewer((count, columns), split, width)
                if node.reads[1] and (split is None or place((count, columns), split).axis == 0):
                    words = self.share.elements(node.reads[1], operator.rows * columns)
                    here = replace(operator, count=sizes[0], rows=words // columns, index=refs[0], table=refs[1])
                    return Looked(here, node.reads[1], operator.rows)
                return replace(operator, count=sizes[0], width=sizes[1], index=refs[0], table=refs[1])
            case ReduceMax() | ArgMax():
                per_row = operator.elements // operator.rows
                return replace(operator, rows=_fewer((operator.rows, per_row), split, width)[0], operand=refs[0])
        return Drawn(operator, node.index)

    def _sliced(self, operator: Operator, held: Slice) -> Operator:
        """This rank's words of a slice; one unread word if it has none."""
        assert isinstance(operator, Copy), "slices are copies"
        access, (low, high) = operator.accesses[0], held.range(self.share)
        here = self._form(access.ref, access.elements, held.base)
        begin = self.share.cut(held.base.digit)[0] * held.base.inner
        dim = Dim(self.share.elements(held.base, access.elements), low - begin if high > low else 0)
        return Copy((max(high - low, 1),), (replace(access, ref=here, dims=(dim,)),), operator.integer)

    def _summed(self, operator: Operator, node: Node, refs: list[Ref]) -> Summed:
        """Sums over this rank's terms."""
        assert isinstance(operator, Contract) and node.terms, "only sums have terms"
        k = self.share.elements(node.terms, operator.k)
        empty, k = k == 0, max(k, 1)
        b = refs[1] if len(refs) > 1 else operator.b
        elements = self.share.elements(node.split, operator.elements)
        return Summed(replace(operator, k=k, a=refs[0], b=b), node.split, operator.k, elements, empty)

    # ---- forms ----

    def _form(self, ref: Ref, elements: int, form: Form) -> Ref:
        """The operand for a form of a tensor: present already, or cut out of the whole, or exchanged."""
        if ref.cls in (RefClass.IMMEDIATE, RefClass.DATA, RefClass.SCALAR):
            return ref
        if (ref, form) not in self.made:
            self.made[ref, form] = self._make(ref, elements, form)
        return self.made[ref, form]

    def _make(self, ref: Ref, elements: int, form: Form) -> Ref:
        held = self._held(ref)
        if held == form:
            return ref
        if held and form and same_part(held, form, self.share.world):
            return self._form(ref, elements, held)
        if held is None or (ref, None) in self.made:
            return self._slice(self._form(ref, elements, None), elements, form, self._is_integer(ref))
        if form is None and (source := copied_from(self.program, ref)):
            copy, whole = self.program.operators[ref.index], self._form(source.ref, source.elements, None)
            return self._emit(replace(copy, accesses=(replace(source, ref=whole),)))
        if form is not None and not nested(held, form) and not nested(form, held):
            return self._slice(self._form(ref, elements, None), elements, form, self._is_integer(ref))
        integer, here = self._is_integer(ref), self._form(ref, elements, held)
        count = self.share.elements(form, elements)
        return self._emit(Exchange(here, held, form, elements, count, integer, ref.index), -1)

    def _held(self, ref: Ref) -> Form:
        if ref.cls is RefClass.OPERATOR:
            return self.plan.nodes[ref.index].split
        return self.plan.state[ref.index] if ref.cls is RefClass.STATE else None

    def _slice(self, ref: Ref, elements: int, split: Split, integer: bool) -> Ref:
        whole = identity_access(ref, elements)
        sizes = split.shape(elements, split.digit)
        low, high = self.share.cut(split.digit)
        dims = tuple(Dim(size, low if axis == 1 else 0) for axis, size in enumerate(sizes))
        access = replace(whole, dims=dims, targets=((0, 1), (1, 1), (2, 1)))
        return self._emit(Copy(split.shape(elements, high - low), (access,), integer))

    def _is_integer(self, ref: Ref) -> bool:
        if ref.cls is RefClass.OPERATOR:
            return self.program.operators[ref.index].integer
        if ref.cls is RefClass.STATE:
            return self.program.sources[ref.index].integer
        return self.program.constants[ref.index].dtype == torch.int32


def _fewer(sizes: tuple[int, ...], split: Form, width: int) -> tuple[int, ...]:
    """The sizes of a part, with its split dimension as one dimension."""
    if split is None:
        return sizes
    at = place(sizes, split)
    assert at is not None, f"{split} lies in no one dimension of {sizes}"
    return (*sizes[: at.axis], at.high * width * at.low, *sizes[at.axis + 1 :])
