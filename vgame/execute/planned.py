"""A step of small tensors, planned once: every word has a fixed place, every call has fixed arguments, and a step runs
the list of calls.

In: an executor on a CPU, in mode `correct`. Out: the same steps with the same words. Everything that depends only on
shapes (views, layouts, tiles, memory, order) is computed with the plan. Twin: vgame/execute/ordinary.py, which also
computes operators without a planned call. The same idea on a GPU: vgame/execute/graph.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import numpy as np
import torch

from vgame.arithmetic import certified
from vgame.arithmetic.functions import ELEMENTARY
from vgame.arithmetic.numba import chains, philox, rows
from vgame.arithmetic.numba.compiled import batch_stride, flat
from vgame.arithmetic.reference.philox import WORD_MASK, split_key
from vgame.arithmetic.torch.planned import plan_product, plan_sum
from vgame.arithmetic.torch.rounding_test import weigh
from vgame.arithmetic.torch.sums import LEAST_RUN
from vgame.arithmetic.workspace import Workspace
from vgame.execute.chains import Fused, Unit
from vgame.execute.layout import box, signed
from vgame.execute.places import Call, Places, Value
from vgame.execute.results import Launched
from vgame.program.operators import (
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
from vgame.system.threads import bind_share

#: Limit of words of state, and of live words in a step, for a plan: above it, Python's share of the time is small.
MOST = 1 << 23

#: Limit of words of all outputs of a step for a plan, which holds up to 28 bytes per word.
MOST_MADE = 1 << 24

#: Computes an operator without a plan: (step, state, scalars, outputs, its index) -> flat words.
Ordinary = Callable[[int, Sequence[torch.Tensor], torch.Tensor, list[Value | None], int], torch.Tensor]


class Planned:
    """The steps of one program over the same data, from states of the same form."""

    def __init__(
        self,
        program: Program,
        units: Sequence[Unit],
        checked: tuple[int, ...],
        state: Sequence[torch.Tensor],
        data: Sequence[torch.Tensor],
        constants: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        seed: int,
        ordinary: Ordinary,
    ) -> None:
        self.program, self.seed, self.checked, self.ordinary = program, seed, checked, ordinary
        self.table, self.scalars = scalars, scalars[0].clone()
        self.state = [torch.empty_like(tensor) for tensor in state]
        self.finite = np.ones(len(checked), np.bool_)
        self.step, self.memory, self._one_at_a_time = 0, Workspace(), Lock()
        self.spoilt = False  # a step was interrupted: helping threads may still write into this memory
        self.places = Places(len(program.operators), self.state, self.scalars, constants, data)
        self.marks = {index: mark for mark, index in enumerate(checked)}
        self.ends = [self._plan(unit) for unit in units]
        self.units, self.calls = units, self.places.calls
        self.results = [self.places.flat(s.ref) for s in program.sources]
        self.loss = self.places.output(program.loss).reshape(())
        self.ends[-1] = len(self.calls)

    def launch(
        self, step: int, state: Sequence[torch.Tensor], watch: Callable[[Unit, float], None] | None = None
    ) -> Launched | None:
        """The step's state, loss and finiteness check, in new memory; None if the plan can no longer be used."""
        with self._one_at_a_time, torch.inference_mode(False), torch.no_grad():
            if self.spoilt:
                return None
            try:
                return self._launch(step, state, watch)
            except BaseException:
                self.spoilt = True
                raise

    def _launch(
        self, step: int, state: Sequence[torch.Tensor], watch: Callable[[Unit, float], None] | None
    ) -> Launched:
        self.step = step
        self.scalars.copy_(self.table[step - 1])
        _copy_all(self.state, state)
        if watch:
            self._watched(watch)
        else:
            for call in self.calls:
                call()
        return Launched(self._new(state), self.loss.clone(), self.checked, torch.from_numpy(self.finite.copy()))

    def _new(self, state: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The new state; tensors without an operator are unchanged."""
        refs = [s.ref for s in self.program.sources]
        made = [i for i, ref in enumerate(refs) if ref.cls in (RefClass.OPERATOR, RefClass.SCALAR)]
        new = [state[ref.index] if ref.cls is RefClass.STATE else self.results[i] for i, ref in enumerate(refs)]
        fresh = [torch.empty_like(self.results[i]) for i in made]
        _copy_all(fresh, [self.results[i] for i in made])
        for i, tensor in zip(made, fresh, strict=True):
            new[i] = tensor
        return tuple(new)

    def _watched(self, watch: Callable[[Unit, float], None]) -> None:
        first = 0
        for unit, last in zip(self.units, self.ends, strict=True):
            start = time.perf_counter()
            for call in self.calls[first:last]:
                call()
            watch(unit, time.perf_counter() - start)
            first = last

    # ---- planning ----

    def _plan(self, unit: Unit) -> int:
        """Plan a unit; returns the number of calls so far."""
        if unit.fused:
            self._chain(unit.fused)
        elif not self._operator(unit.index, unit.operator):
            self._ordinarily(unit.index, unit.operator)
        if unit.fused is None:
            self._mark(unit.index)
        for index in unit.free:
            self.places.free(index)
        self.places.end_unit()
        return len(self.places.calls)

    def _mark(self, index: int) -> None:
        if index in self.marks:
            words = self.places.flat(Ref(RefClass.OPERATOR, index)).view(torch.int32).numpy()
            self.places.calls.append(partial(rows.all_finite, words, self.finite, self.marks[index]))

    def _ordinarily(self, index: int, operator: Operator) -> None:
        out, outputs = self.places.place(operator.elements, operator.integer), list(self.places.values)

        def compute() -> None:
            out.copy_(self.ordinary(self.step, self.state, self.scalars, list(outputs), index))

        self.places.calls.append(compute)
        self.places.put(index, out)

    def _chain(self, fused: Fused) -> None:
        places = self.places
        inputs = [self._lines(places.words(*source)) for source in fused.sources]
        results = [places.place(fused.elements, integer) for integer in fused.chain.results]
        compute = chains.bind(fused.chain, fused.elements, inputs, results)
        if fused.checked:
            found = self.finite[self.marks[fused.checked[0]] :][: len(fused.checked)]
            places.calls.append(lambda: np.copyto(found, compute()))
        else:
            places.calls.append(compute)
        for index, result in zip(fused.results, results, strict=True):
            places.put(index, result)

    def _lines(self, x: torch.Tensor) -> torch.Tensor:
        """Words that a chain can read in place."""
        return x if chains.is_in_lines(x) else self.places.copied(x)

    def _operator(self, index: int, operator: Operator) -> bool:
        """Plan an operator's calls; returns whether it has planned calls."""
        match operator:
            case Map():
                return self._map(index, operator)
            case Copy():
                return self._copy(index, operator)
            case Contract(variant=Variant.DOT):
                return self._product(index, operator)
            case Contract(variant=Variant.SUM):
                return self._sum(index, operator)
            case Contract():
                return self._select(index, operator)
            case Gather():
                words = (self.places.flat(ref).view(torch.int32).numpy() for ref in (operator.index, operator.table))
                rest = *words, operator.rows, operator.width, np.int32(signed(operator.fill))
                return self._filled(index, operator, lambda out: partial(rows.gather, *rest, out.view(np.int32)))
            case ReduceMax(integer=integer):
                a, loop = self.places.flat(operator.operand).numpy(), rows.largest_integer if integer else rows.largest
                return self._filled(index, operator, lambda out: partial(loop, a, operator.length, operator.block, out))
            case ArgMax():
                a, length = self.places.flat(operator.operand).numpy(), operator.length
                return self._filled(
                    index,
                    operator,
                    lambda out: bind_share(out.size, 4 * length, partial(rows.place_of_largest, a, length, out)),
                )
            case Philox():
                return self._filled(index, operator, lambda out: partial(self._draw, out.view(np.uint32), index))
            case Shuffle():
                return self._filled(index, operator, lambda out: partial(self._shuffle, out, operator.population))
        return False

    def _filled(self, index: int, operator: Operator, call_of: Callable[[np.ndarray], Call]) -> bool:
        """An output filled by one loop."""
        out = self.places.place(operator.elements, operator.integer)
        self.places.calls.append(call_of(out.numpy()))
        self.places.put(index, out)
        return True

    def _draw(self, out: np.ndarray, index: int) -> None:
        philox.fill_words(out, index, self.step & WORD_MASK, self.step >> 32, *split_key(self.seed))

    def _shuffle(self, out: np.ndarray, population: int) -> None:
        philox.fill_shuffle(out, (self.step - 1) * out.size, population, *split_key(self.seed))

    def _map(self, index: int, operator: Map) -> bool:
        fixed = operator.accesses[0].ref.cls is RefClass.IMMEDIATE
        if operator.function not in ELEMENTARY or operator.bfloat16 or fixed:
            return False
        from vgame.arithmetic.numba.elementary import fill  # compiled only where it runs

        x = self.places.words(operator.accesses[0], operator.sizes)
        source = (x if x.is_contiguous() else self.places.copied(x)).reshape(-1).numpy()

        def call_of(out: np.ndarray) -> Call:
            def run(first: int, last: int) -> None:
                fill(operator.function, source[first:last], out[first:last])

            return bind_share(source.size, 8, run)

        return self._filled(index, operator, call_of)

    def _copy(self, index: int, operator: Copy) -> bool:
        *front, behind = operator.accesses
        if front:
            return self._joined(index, operator)
        if behind.ref.cls is RefClass.IMMEDIATE:
            return False
        fixed = behind.ref.cls is RefClass.SCALAR
        found = self.places.flat(behind.ref).view((1,) * len(operator.sizes)).expand(operator.sizes) if fixed else None
        self.places.put(index, self.places.seen(behind, operator.sizes) if found is None else found)
        return True

    def _joined(self, index: int, operator: Copy) -> bool:
        """A copy whose accesses each fill a box, written from the last access to the first, which overwrites the
        others."""
        boxes = [box(access, operator.sizes) for access in operator.accesses]
        if not all(boxes):
            return False
        places, out = self.places, self.places.place(operator.elements, operator.integer)
        words = out.view(torch.int32).view(operator.sizes)
        places.calls.append(partial(words.numpy().fill, np.int32(signed(operator.accesses[-1].fill))))
        for access, filled in zip(reversed(operator.accesses), reversed(boxes), strict=True):
            if access.ref.cls is RefClass.IMMEDIATE:
                places.calls.append(partial(words[filled.slices].numpy().fill, np.int32(signed(access.fill))))
            else:
                places.copy(words[filled.slices], filled.of(places.flat(access.ref).view(torch.int32)))
        places.put(index, out.view(operator.sizes))
        return True

    def _product(self, index: int, operator: Contract) -> bool:
        shape_a = (1 if operator.shared_a else operator.batch, operator.m, operator.k)
        shape_b = (1 if operator.shared_b else operator.batch, operator.n, operator.k)
        a, b = self.places.matrix(operator.a, shape_a), self.places.matrix(operator.b, shape_b)
        if certified.is_filtered(a, b):
            return False
        out = self.places.place(operator.distinct * operator.m * operator.n, False)
        out = out.view(operator.distinct, operator.m, operator.n)
        self.places.calls.append(plan_product(a, b, out, operator.bfloat16, self.memory))
        self.places.put(index, out.expand(operator.batch, -1, -1))
        return True

    def _sum(self, index: int, operator: Contract) -> bool:
        if operator.bfloat16:
            return False
        count = operator.distinct * operator.m
        a, out = self.places.matrix(operator.a, (1, count, operator.k), LEAST_RUN), self.places.place(count, False)
        self.places.calls.append(plan_sum(a, out))
        self.places.put(index, out.view(-1, operator.m).expand(operator.batch, -1))
        return True

    def _select(self, index: int, operator: Contract) -> bool:
        if operator.bfloat16:
            return False
        terms = (1 if operator.shared_b else operator.batch, operator.n, operator.k)
        chosen = self.places.flat(operator.a).view(-1, operator.k)
        b = self.places.matrix(operator.b, terms, operator.k + 1)  # runs are at most K: nothing is folded
        batches, m = operator.distinct, operator.m
        out = self.places.place(batches * m * operator.n, False).view(batches, m, operator.n)
        shape = batches, m, operator.n, operator.k
        strides = operator.k if len(chosen) > 1 else 0, batch_stride(b), b.stride(1), b.stride(2)
        rest = weigh(2) / 2, np.empty((3, m)), np.empty(m, np.int64), out.view(-1).numpy()
        loop = partial(rows.select, chosen.reshape(-1).numpy(), flat(b), shape, strides, *rest)

        def add_up() -> None:
            if loop():
                out.copy_(certified.one_hot_sum(chosen, b, m))

        self.places.calls.append(add_up)
        self.places.put(index, out.expand(operator.batch, -1, -1))
        return True


def _copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    if targets:
        torch._foreach_copy_(list(targets), list(sources))
