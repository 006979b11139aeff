"""Runs a program, one training step at a time, on a torch device.

In: the program, the data, the scalars, a state. Out: the next state and the loss, the same bits on every device (mode
`correct`). Twin: vgame/execute/reference.py computes any single element, slowly and exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from vgame.arithmetic import certified, gate
from vgame.arithmetic.numba import chains, pointwise
from vgame.arithmetic.torch.indexed_matrix import LEAST, Matrix, Mirrored, fold
from vgame.arithmetic.torch.philox import random_words, shuffle_indices
from vgame.arithmetic.workspace import copy_shared, keep_pages
from vgame.commit.mapped import source_of
from vgame.execute.chains import ALONE, ALONE_ON_GPU, Unit, is_identity, units_of
from vgame.execute.kernels import MODES, Correct, integer_max
from vgame.execute.layout import Box, box, inside, look, read, signed
from vgame.execute.memory import refuse_too_large, words_at_once
from vgame.execute.planned import MOST, Planned
from vgame.execute.results import Launched, Pending, StepResult, Tap
from vgame.execute.work import refuse_too_long
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
)
from vgame.program.program import Program
from vgame.system.threads import Later, Runner, each, ours

#: So many products may wait at a time.
MOST_PENDING = 4


class Executor:
    """One program on one device in one rounding mode."""

    plans = True  # whether small steps are planned (vgame/execute/planned.py)

    def __init__(
        self,
        program: Program,
        data: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        seed: int,
        mode: str = "correct",
        device: str = "cpu",
    ) -> None:
        keep_pages()
        self.program, self.seed = program, seed
        self.device = torch.device(device)
        refuse_too_long(program, self.device)  # here: before a bond is put on the job
        self.kernels = MODES[mode]()
        self.data, self.scalars = [t.to(self.device) for t in data], scalars.to(self.device)
        self.constants = [t.to(self.device) for t in program.constants]
        #: Told every operator's index and seconds (vgame/execute/profile.py); None: nobody looks.
        self.watch: Callable[[int, float], None] | None = None
        #: The step in the device's memory, for kernels that a recorded step replays (vgame/execute/graph.py).
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._immediates: dict[tuple[int, bool], torch.Tensor] = {}
        self._plan: Planned | bool | None = None
        self._plans: dict[tuple[bool, bool, bool], tuple[list[Unit], tuple[int, ...]]] = {}

    def to_device(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [t.to(self.device) for t in state]

    def initial(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The state that the first step starts from."""
        return self.to_device(state)

    def step(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None = None) -> StepResult:
        """State after step `step` (counted from 1). `state` is flat tensors on the executor's device."""
        self.clock.fill_(step)
        return self.finish(self.launch(step, state, tap))

    def launch(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None = None) -> Launched:
        """The same, started only: with the Triton kernels nothing waits for the device, and the step is the clock's."""
        with ours() if self.device.type == "cpu" else nullcontext():
            return self._launch(step, state, tap)

    def _launch(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None) -> Launched:
        if tap is None and (planned := self._planned(state)):
            return planned.launch(step, state, self._told if self.watch else None)
        shared = tap is None and pointwise.in_use(self.device)
        fuses = self.kernels.fuses and (shared or (tap is None and gate.in_use(self.device)))
        units, checked = self._units(fuses, tap is not None)
        run = _Run(self, step, state, checked, defers=shared and self.watch is None, looked_at=tap is not None)
        try:
            for unit in units:
                if self.watch:
                    self._watched(run, unit)
                else:
                    run.compute_unit(unit)
                if tap:
                    run.outputs[unit.index] = tap(unit.index, run.flat_output(run.outputs[unit.index]))
                for index in unit.free:
                    run.outputs[index] = None
            finite = run.are_finite(checked)
            new = tuple(run.flat(s.ref) for s in self.program.sources)
            return Launched(new, run.output(self.program.loss).reshape(()), checked, finite)
        finally:
            for work in run.pending.values():
                work.stop()

    def finish(self, launched: Launched) -> StepResult:
        """Wait for the verdict of a step."""
        verdicts = zip(launched.checked, launched.finite.tolist(), strict=True)
        return StepResult(launched.state, launched.loss, min((i for i, finite in verdicts if not finite), default=None))

    def _units(self, fuse: bool, traced: bool = False) -> tuple[list[Unit], tuple[int, ...]]:
        """What a step consists of, and the outputs that must be finite, those of a chain beside each other; found
        once."""
        key = fuse, gate.in_use(self.device), traced
        if key not in self._plans:
            operators, finite = self.program.operators, self.program.finite
            sources = {s.ref.index for s in self.program.sources if s.ref.cls is RefClass.OPERATOR}
            units = units_of(operators, sources | finite, finite, fuse, ALONE_ON_GPU if key[1] else ALONE)
            if self.device.type == "cpu":
                held = sum(t.numel() for t in self.data if source_of(t) is None)  # others stay in their files
                refuse_too_large(self.program, units, held, traced)
            by_chains = [i for unit in units if unit.fused for i in unit.fused.checked]
            self._plans[key] = units, (*by_chains, *sorted(finite.difference(by_chains)))
        return self._plans[key]

    def _planned(self, state: Sequence[torch.Tensor]) -> Planned | None:
        """The step as a plan, where it is small and computed in the ordinary way."""
        ordinary = self.plans and pointwise.in_use(self.device) and certified.is_native()
        if not ordinary or type(self.kernels) is not Correct:
            return None
        if self._plan is None:
            units, checked = self._units(True)
            words = sum(t.numel() for t in state), words_at_once(units, self.program.operators, False)
            self._plan = max(words) <= MOST and Planned(
                self.program, units, checked, state, self.data, self.constants, self.scalars, self.seed, self._ordinary
            )
        return self._plan or None

    def _ordinary(
        self,
        step: int,
        state: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        outputs: list[torch.Tensor | Mirrored | None],
        index: int,
    ) -> torch.Tensor:
        """The words of one operator, from the outputs so far."""
        run = _Run(self, step, state, (), defers=False, looked_at=False)
        run.scalars, run.outputs = scalars, outputs
        return run.flat_output(run.compute(index, self.program.operators[index]))

    def foreign(self, run: _Run, index: int, operator: Operator) -> torch.Tensor:
        """The output of an operator that is of no program (vgame/ranks)."""
        raise AssertionError(f"unknown operator {operator}")

    def _watched(self, run: _Run, unit: Unit) -> None:
        start = time.perf_counter()
        run.compute_unit(unit)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self._told(unit, time.perf_counter() - start)

    def _told(self, unit: Unit, seconds: float) -> None:
        """A chain's time is shared by its operators in equal parts."""
        for index in unit.members:
            self.watch(index, seconds / len(unit.members))

    def immediate(self, word: int, integer: bool) -> torch.Tensor:
        """A one-word tensor on the device (never a Python number: CUDA divides by those differently)."""
        key = (word, integer)
        if key not in self._immediates:
            value = torch.tensor([signed(word)], dtype=torch.int32).to(self.device)
            self._immediates[key] = value if integer else value.view(torch.float32)
        return self._immediates[key]


class _Run:
    """The values of one step."""

    def __init__(
        self,
        executor: Executor,
        step: int,
        state: Sequence[torch.Tensor],
        checked: tuple[int, ...],
        defers: bool,
        looked_at: bool,
    ) -> None:
        self.executor, self.step, self.state = executor, step, state
        self.outputs: list[torch.Tensor | Mirrored | None] = [None] * len(executor.program.operators)
        self.defers = defers  # whether products may be finished later
        self.looked_at = looked_at  # whether every output is, as soon as it is there
        self.pending: dict[int, Pending] = {}  # what has to be finished before an output is read, oldest first
        self.found: dict[int, bool] = {}  # outputs of chains that must be finite: whether they are
        self.never_waits = gate.in_use(executor.device)
        table, clock = executor.scalars, executor.clock
        self.scalars = table.index_select(0, clock - 1)[0] if self.never_waits else table[step - 1]
        self.mark_of = {index: mark for mark, index in enumerate(checked)}
        #: Of outputs that are not finite, in the device's memory; written by kernels only.
        self.marks = torch.zeros(len(checked), dtype=torch.int32, device=clock.device) if self.never_waits else None

    @staticmethod
    def flat_output(value: torch.Tensor | Mirrored) -> torch.Tensor:
        return (value.tensor() if isinstance(value, Mirrored) else value).contiguous().reshape(-1)

    def finished(self, index: int) -> torch.Tensor | Mirrored:
        """An operator's output, complete."""
        if index in self.pending:
            self.pending.pop(index).finish()
        return self.outputs[index]

    def output(self, index: int) -> torch.Tensor:
        """An operator's output as a tensor."""
        value = self.finished(index)
        if isinstance(value, Mirrored):
            value = self.outputs[index] = value.tensor()
        return value

    def flat(self, ref: Ref) -> torch.Tensor:
        """A tensor as a flat row-major one."""
        match ref.cls:
            case RefClass.OPERATOR:
                value = self.output(ref.index)
                if value.dim() != 1 or not value.is_contiguous():
                    value = self.outputs[ref.index] = self.flat_output(value)
                return value
            case RefClass.STATE:
                return self.state[ref.index]
            case RefClass.CONSTANT:
                return self.executor.constants[ref.index]
            case RefClass.DATA:
                return self.executor.data[ref.index]
        return self.scalars[ref.index : ref.index + 1]

    def shaped(self, ref: Ref, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor in a row-major shape; a strided output is viewed where it can be."""
        if ref.cls is RefClass.OPERATOR:
            return self.output(ref.index).reshape(shape)
        return self.flat(ref).view(shape)

    def matrix(self, ref: Ref, shape: tuple[int, int, int]) -> Matrix:
        """A tensor as rows to be multiplied or added up; large ones that no strides can say are read where they lie."""
        if ref.cls is RefClass.OPERATOR and self.executor.kernels.folds:
            return fold(self.finished(ref.index), shape)
        return self.shaped(ref, shape)

    def operand(self, access: Access, sizes: tuple[int, ...], integer: bool) -> torch.Tensor:
        if access.ref.cls is RefClass.IMMEDIATE:
            return self.executor.immediate(access.fill, integer).view((1,) * len(sizes))
        if access.ref.cls is RefClass.SCALAR:
            return self.flat(access.ref).view((1,) * len(sizes))
        value = self.output(access.ref.index) if access.ref.cls is RefClass.OPERATOR else None
        if value is not None and value.shape == sizes and is_identity(access, sizes):
            return value
        return read(self.flat(access.ref), access, sizes)

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
            self.found.update(dict.fromkeys(fused.checked, True))  # their marks say it
        else:
            results, finite = chains.run(fused.chain, fused.elements, inputs)
            self.found.update(zip(fused.checked, finite.tolist(), strict=True))
        for index, result in zip(fused.results, results, strict=True):
            self.outputs[index] = result

    def are_finite(self, checked: tuple[int, ...]) -> torch.Tensor:
        """Whether every word of each of these outputs is finite; where a chain made it, that is known."""
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
        """An operand of a chain: a view whose row-major order is the index space's."""
        if access.ref.cls is RefClass.SCALAR:
            return self.flat(access.ref).expand(math.prod(sizes))
        if access.ref.cls is RefClass.OPERATOR and is_identity(access, sizes):
            return self.output(access.ref.index)
        return read(self.flat(access.ref), access, sizes)

    def compute(self, index: int, operator: Operator) -> torch.Tensor | Mirrored:
        """The operator's output, row-major in some shape (perhaps a strided view)."""
        kernels = self.executor.kernels
        match operator:
            case Map():
                return self._map(operator)
            case Copy():
                return self._copy(operator)
            case Contract(variant=Variant.DOT):
                return self._product(operator, partial(each, patient=True))
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
        return self.executor.foreign(self, index, operator)

    def factors(self, operator: Contract) -> tuple[Matrix, Matrix]:
        """The operands of a product."""
        shape_a = (1 if operator.shared_a else operator.batch, operator.m, operator.k)
        shape_b = (1 if operator.shared_b else operator.batch, operator.n, operator.k)
        return self.matrix(operator.a, shape_a), self.matrix(operator.b, shape_b)

    def rows(self, operator: Contract) -> Matrix:
        """The operand of a sum."""
        return self.matrix(operator.a, (1, (1 if operator.shared_a else operator.batch) * operator.m, operator.k))

    def _product(self, operator: Contract, run: Runner) -> torch.Tensor:
        a, b = self.factors(operator)
        out = self.executor.kernels.dot(a, b, run, bfloat16=operator.bfloat16)
        return out.expand(operator.batch, -1, -1)  # both may be shared

    def _begin(self, index: int, operator: Contract) -> None:
        """A product that waits for threads with nothing to do; its operands wait with it, so only a few may."""
        while len(products := [i for i, work in self.pending.items() if isinstance(work, Later)]) >= MOST_PENDING:
            self.finished(products[0])
        self.pending[index] = work = Later()
        self.outputs[index] = self._product(operator, work.start)

    def _map(self, operator: Map) -> torch.Tensor:
        from vgame.program.operators import operand_types

        types = operand_types(operator)
        operands = [self.operand(a, operator.sizes, t) for a, t in zip(operator.accesses, types, strict=True)]
        out = self.executor.kernels.map(operator.function, *operands, bfloat16=operator.bfloat16)
        return out.expand(operator.sizes)

    def _copy(self, operator: Copy) -> torch.Tensor | Mirrored:
        *front, behind = operator.accesses
        plain = not front and behind.ref.cls not in (RefClass.IMMEDIATE, RefClass.SCALAR)
        if plain and operator.elements >= LEAST and any(coefficient < 0 for _, coefficient in behind.targets):
            return look(self.flat(behind.ref), behind, operator.sizes)
        boxes = [box(access, operator.sizes) for access in operator.accesses] if front else []
        if boxes and all(boxes):
            return self._joined(operator, boxes)
        result = self.operand(behind, operator.sizes, operator.integer).expand(operator.sizes)
        for access in reversed(front):
            mask = inside(access, operator.sizes, self.executor.device)
            result = torch.where(mask, self.operand(access, operator.sizes, operator.integer), result)
        return result

    def _joined(self, operator: Copy, boxes: list[Box]) -> torch.Tensor:
        """A copy whose accesses each fill a box: the last one first, the first one over all others."""
        result = torch.empty(operator.sizes, dtype=torch.int32, device=self.executor.device)
        result.fill_(signed(operator.accesses[-1].fill))
        for access, filled in zip(reversed(operator.accesses), reversed(boxes), strict=True):
            fixed = access.ref.cls is RefClass.IMMEDIATE
            base = self.executor.immediate(access.fill, True) if fixed else self.flat(access.ref).view(torch.int32)
            copy_shared(result[filled.slices], filled.of(base))
        return result if operator.integer else result.view(torch.float32)

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
