"""One step of a program, executed without a plan: every operator's output is a new tensor.

In: an executor, a step, a state. Out: the words of any operator or chain. Twin: vgame/execute/planned.py, for small
steps, with reused memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch

from vgame.arithmetic import certified, gate
from vgame.arithmetic.indexed_matrix import LEAST, Matrix, Mirrored, fold
from vgame.arithmetic.numba import chains, pointwise
from vgame.arithmetic.torch.philox import random_words, shuffle_indices
from vgame.arithmetic.workspace import copy_shared, in_words, new
from vgame.execute.chains import Unit, is_identity
from vgame.execute.halves import is_half
from vgame.execute.kernels import Kernels, integer_max
from vgame.execute.layout import Box, box, inside, integers_of, look, read
from vgame.execute.results import Pending
from vgame.program.operators import (
    Access,
    ArgMax,
    Contract,
    Copy,
    Gather,
    Map,
    Operator,
    Philox,
    ReduceMax,
    Ref,
    RefClass,
    Shuffle,
    Variant,
    operand_types,
)
from vgame.program.program import Program
from vgame.system.threads import Later, Runner, each

#: Limit of pending products.
MOST_PENDING = 4


class Owner(Protocol):
    """The executor of a step: vgame/execute/executor.py, or a rank's."""

    program: Program
    data: Sequence[torch.Tensor]
    constants: Sequence[torch.Tensor]
    scalars: torch.Tensor
    seed: int
    device: torch.device
    kernels: Kernels
    clock: torch.Tensor

    def immediate(self, word: int, integer: bool) -> torch.Tensor: ...
    def rank_operator(self, run: Run, index: int, operator: Operator) -> torch.Tensor: ...


class Run:
    """The values of one step."""

    def __init__(
        self,
        executor: Owner,
        step: int,
        state: Sequence[torch.Tensor],
        checked: tuple[int, ...],
        halves: frozenset[int],
        defers: bool,
        traced: bool,
    ) -> None:
        self.executor, self.step, self.state = executor, step, state
        self.outputs: list[torch.Tensor | Mirrored | None] = [None] * len(executor.program.operators)
        self.halves = halves  # operators whose outputs are stored as bfloat16
        self.defers = defers  # whether products may be finished later
        self.traced = traced  # whether every output is finished immediately
        self.pending: dict[int, Pending] = {}  # work to finish before an output is read, oldest first
        self.found: dict[int, bool] = {}  # outputs of chains that must be finite -> whether they are
        self.never_waits = gate.in_use(executor.device)
        table, clock = executor.scalars, executor.clock
        self.scalars = table.index_select(0, clock - 1)[0] if self.never_waits else table[step - 1]
        self.mark_of = {index: mark for mark, index in enumerate(checked)}
        #: Marks of outputs that are not finite, in the device's memory; written by kernels only.
        self.marks = torch.zeros(len(checked), dtype=torch.int32, device=clock.device) if self.never_waits else None

    @staticmethod
    def flat_output(value: torch.Tensor | Mirrored) -> torch.Tensor:
        return (value.tensor() if isinstance(value, Mirrored) else value).contiguous().reshape(-1)

    def finished(self, index: int) -> torch.Tensor | Mirrored:
        """An operator's output, complete."""
        if index in self.pending:
            self.pending.pop(index).finish()
        return self.outputs[index]

    def stored(self, index: int) -> torch.Tensor:
        """An operator's output as a tensor of words or, for those in `halves`, bfloat16."""
        value = self.finished(index)
        if isinstance(value, Mirrored):
            value = self.outputs[index] = value.tensor()
        return value

    def output(self, index: int) -> torch.Tensor:
        """An operator's output as a tensor of words."""
        return in_words(self.stored(index))

    def flat(self, ref: Ref, halves: bool = False) -> torch.Tensor:
        """A tensor as a flat row-major one; halves: bfloat16 where it is stored so, else words."""
        match ref.cls:
            case RefClass.OPERATOR:
                value = self.stored(ref.index)
                if value.dim() != 1 or not value.is_contiguous():
                    value = self.outputs[ref.index] = self.flat_output(value)
                return value if halves else in_words(value)
            case RefClass.STATE:
                return self.state[ref.index]
            case RefClass.CONSTANT:
                return self.executor.constants[ref.index]
            case RefClass.DATA:
                return self.executor.data[ref.index]
        return self.scalars[ref.index : ref.index + 1]

    def shaped(self, ref: Ref, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor in a row-major shape; a view of a strided output if possible."""
        if ref.cls is RefClass.OPERATOR:
            return self.output(ref.index).reshape(shape)
        return self.flat(ref).view(shape)

    def matrix(self, ref: Ref, shape: tuple[int, int, int]) -> Matrix:
        """A tensor as rows for products and sums; large ones that strides cannot express are read in place."""
        if ref.cls is RefClass.OPERATOR and self.executor.kernels.folds:
            return fold(self.finished(ref.index), shape)
        return self.shaped(ref, shape)

    def operand(self, access: Access, sizes: tuple[int, ...], integer: bool, halves: bool = False) -> torch.Tensor:
        """The words of an access, perhaps of one word per dimension; halves: as in `flat`."""
        if access.ref.cls is RefClass.IMMEDIATE:
            return self.executor.immediate(access.fill, integer).view((1,) * len(sizes))
        if access.ref.cls is RefClass.SCALAR:
            return self.flat(access.ref).view((1,) * len(sizes))
        value = self.stored(access.ref.index) if access.ref.cls is RefClass.OPERATOR else None
        if value is not None and value.shape == sizes and is_identity(access, sizes):
            return value if halves else in_words(value)
        return read(self.flat(access.ref, halves), access, sizes)

    def compute_unit(self, unit: Unit) -> None:
        """The outputs of an operator or of a chain."""
        if unit.patient and self.defers:
            self._begin(unit.index, unit.operator)
            return
        if unit.fused is None:
            self.outputs[unit.index] = self.compute(unit.index, unit.operator)
            return
        fused, inputs = unit.fused, [self.words(access, sizes) for access, sizes in unit.fused.sources]
        if self.never_waits:
            from vgame.arithmetic.triton import pointwise as by_kernel  # imported only where it runs

            first = self.mark_of[fused.checked[0]] if fused.checked else 0
            results = by_kernel.run(fused.chain, fused.elements, inputs, self.marks, first)
            self.found.update(dict.fromkeys(fused.checked, True))  # the kernel has written their marks
        else:
            halves = [n for n, index in enumerate(fused.results) if index in self.halves]
            results, finite = chains.run(fused.chain, fused.elements, inputs, halves)
            self.found.update(zip(fused.checked, finite.tolist(), strict=True))
        for index, result in zip(fused.results, results, strict=True):
            self.outputs[index] = result

    def are_finite(self, checked: tuple[int, ...]) -> torch.Tensor:
        """Whether every word of each of these outputs is finite; chains have checked theirs already."""
        if self.never_waits:
            from vgame.arithmetic.triton import pointwise as by_kernel  # imported only where it runs

            for index in checked:
                if index not in self.found:
                    by_kernel.look(self.flat(Ref(RefClass.OPERATOR, index)), self.marks, self.mark_of[index])
            return self.marks == 0
        known = (self.found.get(index) for index in checked)
        return torch.stack(
            [
                pointwise.all_finite(self.output(i)) if k is None else torch.tensor(k)
                for i, k in zip(checked, known, strict=True)
            ]
        )

    def words(self, access: Access, sizes: tuple[int, ...]) -> torch.Tensor:
        """An operand of a chain: a view with the row-major order of the index space."""
        if access.ref.cls is RefClass.SCALAR:
            return self.flat(access.ref).expand(math.prod(sizes))
        if access.ref.cls is RefClass.OPERATOR and is_identity(access, sizes):
            return self.stored(access.ref.index)
        return read(self.flat(access.ref, is_half(access)), access, sizes)

    def compute(self, index: int, operator: Operator) -> torch.Tensor | Mirrored:
        """The operator's output, row-major in some shape (perhaps a strided view)."""
        kernels = self.executor.kernels
        match operator:
            case Map():
                return self._map(operator)
            case Copy():
                return self._copy(operator, index in self.halves)
            case Contract(variant=Variant.DOT):
                return self._product(index, operator, partial(each, patient=True))
            case Contract(variant=Variant.SUM):
                sums = kernels.sum_rows(self.rows(operator), bfloat16=operator.bfloat16)
                return sums.view(-1, operator.m).expand(operator.batch, -1)
            case Contract():
                index_shape = (1 if operator.shared_a else operator.batch, operator.k)
                shape_b = (1 if operator.shared_b else operator.batch, operator.n, operator.k)
                indices, values = self.shaped(operator.a, index_shape), self.shaped(operator.b, shape_b)
                sums = kernels.one_hot_sum(indices, values, operator.m, bfloat16=operator.bfloat16)
                return sums.expand(operator.batch, -1, -1)
            case Gather():
                return self._gather(operator)
            case ReduceMax():
                return self._reduce_max(operator)
            case ArgMax():
                return certified.argmax(self.shaped(operator.operand, (operator.rows, operator.length)))
            case Philox():
                return random_words(self.executor.seed, self.step, index, operator.elements, self.executor.clock)
            case Shuffle():
                return shuffle_indices(
                    self.executor.seed, self.step, operator.elements, operator.population, self.executor.clock
                )
        return self.executor.rank_operator(self, index, operator)

    def factors(self, operator: Contract) -> tuple[Matrix, Matrix]:
        """The operands of a product."""
        shape_a = (1 if operator.shared_a else operator.batch, operator.m, operator.k)
        shape_b = (1 if operator.shared_b else operator.batch, operator.n, operator.k)
        return self.matrix(operator.a, shape_a), self.matrix(operator.b, shape_b)

    def rows(self, operator: Contract) -> Matrix:
        """The operand of a sum."""
        return self.matrix(operator.a, (1, (1 if operator.shared_a else operator.batch) * operator.m, operator.k))

    def _product(self, index: int, operator: Contract, run: Runner) -> torch.Tensor:
        a, b = self.factors(operator)
        out = self.executor.kernels.dot(a, b, run, bfloat16=operator.bfloat16, halves=index in self.halves)
        return out.expand(operator.batch, -1, -1)  # both may be shared

    def _begin(self, index: int, operator: Contract) -> None:
        """Begin a product that idle threads finish; its operands stay in memory, so only a few may be pending."""
        while len(products := [i for i, work in self.pending.items() if isinstance(work, Later)]) >= MOST_PENDING:
            self.finished(products[0])
        self.pending[index] = work = Later()
        self.outputs[index] = self._product(index, operator, work.start)

    def _map(self, operator: Map) -> torch.Tensor:
        types = operand_types(operator)
        operands = [self.operand(a, operator.sizes, t) for a, t in zip(operator.accesses, types, strict=True)]
        out = self.executor.kernels.map(operator.function, *operands, bfloat16=operator.bfloat16)
        return out.expand(operator.sizes)

    def _copy(self, operator: Copy, halves: bool = False) -> torch.Tensor | Mirrored:
        """halves: of bfloat16 operands, as bfloat16 (`halves_of` names the copies for which this holds)."""
        *front, behind = operator.accesses
        plain = not front and behind.ref.cls not in (RefClass.IMMEDIATE, RefClass.SCALAR)
        if plain and operator.elements >= LEAST and any(coefficient < 0 for _, coefficient in behind.targets):
            return look(self.flat(behind.ref, halves), behind, operator.sizes)
        boxes = [box(access, operator.sizes) for access in operator.accesses] if front else []
        if boxes and all(boxes):
            return self._joined(operator, boxes, halves)
        result = self.operand(behind, operator.sizes, operator.integer, halves).expand(operator.sizes)
        for access in reversed(front):
            mask = inside(access, operator.sizes, self.executor.device)
            result = torch.where(mask, self.operand(access, operator.sizes, operator.integer), result)
        return result

    def _joined(self, operator: Copy, boxes: list[Box], halves: bool) -> torch.Tensor:
        """A copy whose accesses each fill a box, written from the last access to the first, which overwrites the
        others."""
        dtype = torch.bfloat16 if halves else torch.int32 if operator.integer else torch.float32
        result = new(operator.sizes, dtype, self.executor.device)
        bits, fill = integers_of(dtype, operator.accesses[-1].fill)
        words = result.view(bits).fill_(fill)
        for access, filled in zip(reversed(operator.accesses), reversed(boxes), strict=True):
            if access.ref.cls is RefClass.IMMEDIATE:
                words[filled.slices].fill_(integers_of(dtype, access.fill)[1])
            else:
                copy_shared(words[filled.slices], filled.of(self.flat(access.ref, halves).view(bits)))
        return result

    def _gather(self, operator: Gather) -> torch.Tensor:
        index = self.shaped(operator.index, (operator.count,)).to(torch.int64)
        table = self.flat(operator.table).view(operator.rows, operator.width)
        valid = (index >= 0) & (index < operator.rows)
        rows = table.index_select(0, torch.where(valid, index, 0))
        if not self.never_waits and bool(valid.all()):
            return rows
        return torch.where(valid[:, None], rows, self.executor.immediate(operator.fill, operator.integer))

    def _reduce_max(self, operator: ReduceMax) -> torch.Tensor:
        rows = self.shaped(operator.operand, (operator.rows, operator.length))
        return (integer_max if operator.integer else certified.reduce_max)(rows, operator.block)
