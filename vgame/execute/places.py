"""Memory of a planned step: reused blocks, views of them, and copies for accesses that no view can express.

In: operators' outputs in order, and their reads. Out: tensors in fixed memory, and the calls that fill it in every
step. Twin: vgame/execute/ordinary.py, whose values are new tensors in every step.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from vgame.arithmetic.indexed_matrix import Matrix, Mirrored, in_place
from vgame.arithmetic.workspace import outermost
from vgame.execute.chains import is_identity
from vgame.execute.layout import gathered, look, plan, spread
from vgame.program.operators import Access, Ref, RefClass
from vgame.system.threads import bind_share

#: Least number of words of a copy for a thread.
WORTH = 1 << 15

Value = torch.Tensor | Mirrored
Call = Callable[[], object]


class Memory:
    """A pool of blocks of a few sizes."""

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._all: dict[int, torch.Tensor] = {}  # by storage
        self._users: Counter[int] = Counter()

    def take(self, words: int) -> torch.Tensor:
        """int32, flat, uninitialised."""
        quarter = 1 << max(words.bit_length() - 3, 0)
        size = -(-words // quarter) * quarter
        found = self._free[size].pop() if self._free[size] else torch.empty(size, dtype=torch.int32)
        self._all[_storage(found)] = found
        return found[:words]

    def hold(self, value: torch.Tensor) -> None:
        """Count one more reader of this view."""
        self._users[_storage(value)] += 1

    def release(self, value: torch.Tensor) -> None:
        """Count one reader less."""
        place = _storage(value)
        self._users[place] -= 1
        if not self._users[place] and place in self._all:
            found = self._all.pop(place)
            self._free[found.numel()].append(found)


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


class Places:
    """The values of a step, while it is planned. `calls`: the calls that fill them, in order."""

    def __init__(
        self,
        operators: int,
        state: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        constants: Sequence[torch.Tensor],
        data: Sequence[torch.Tensor],
    ) -> None:
        self.values: list[Value | None] = [None] * operators
        self.calls: list[Call] = []
        self._leaving: list[torch.Tensor] = []
        self.memory = Memory()
        self.scalars = scalars
        self._others = {RefClass.STATE: state, RefClass.CONSTANT: constants, RefClass.DATA: data}

    # ---- outputs ----

    def place(self, elements: int, integer: bool) -> torch.Tensor:
        """Flat memory for an output."""
        words = self.memory.take(elements)
        return words if integer else words.view(torch.float32)

    def put(self, index: int, value: Value) -> None:
        """The output of an operator."""
        self.memory.hold(_view(value))
        self.values[index] = value

    def free(self, index: int) -> None:
        """Free an operator's output after this unit."""
        value, self.values[index] = self.values[index], None
        if value is not None:
            self._leaving.append(_view(value))

    def end_unit(self) -> None:
        """Free memory at the end of a unit. SAFETY: not earlier, since a unit's results must not be placed in the
        memory of its operands."""
        for view in self._leaving:
            self.memory.release(view)
        self._leaving.clear()

    def copy(self, target: torch.Tensor, source: Value) -> None:
        """target = source in every step; both have the same shape and type."""
        view = _view(source)
        to, words = (x.numpy().view(np.int32) for x in (target, view))
        if isinstance(source, Mirrored):
            words = words[tuple(slice(None, None, -1 if d in source.backwards else 1) for d in range(view.dim()))]
        shared = outermost(to.shape)
        parts = tuple(np.moveaxis(np.atleast_1d(x), shared, 0) for x in (to, words))
        count = len(parts[0])

        def run(first: int, last: int) -> None:
            np.copyto(parts[0][first:last], parts[1][first:last])

        self.calls.append(bind_share(count, to.size // max(count, 1), run, WORTH))

    def copied(self, source: Value) -> torch.Tensor:
        """The words in row-major order, flat. Memory without an output (`put`) is never freed."""
        view = _view(source)
        result = self.place(view.numel(), view.dtype == torch.int32)
        self.copy(result.view(view.shape), source)
        return result

    # ---- operands ----

    def flat(self, ref: Ref) -> torch.Tensor:
        """A tensor as a flat row-major one."""
        if ref.cls is RefClass.SCALAR:
            return self.scalars[ref.index : ref.index + 1]
        if ref.cls is not RefClass.OPERATOR:
            return self._others[ref.cls][ref.index]
        value = self.values[ref.index]
        if isinstance(value, Mirrored) or not value.is_contiguous():
            copy = self.copied(value)
            self.free(ref.index)
            self.put(ref.index, copy)
            return copy
        return value.reshape(-1)

    def output(self, index: int) -> torch.Tensor:
        """An operator's output as a tensor."""
        value = self.values[index]
        return self.flat(Ref(RefClass.OPERATOR, index)) if isinstance(value, Mirrored) else value

    def words(self, access: Access, sizes: tuple[int, ...]) -> torch.Tensor:
        """A view with the row-major order of the index space."""
        if access.ref.cls is RefClass.SCALAR:
            return self.flat(access.ref).expand(math.prod(sizes))
        if access.ref.cls is RefClass.OPERATOR and is_identity(access, sizes):
            return self.output(access.ref.index)
        found = self.seen(access, sizes)
        return self.copied(found).view(sizes) if isinstance(found, Mirrored) else found

    def seen(self, access: Access, sizes: tuple[int, ...]) -> Value:
        """The view of an access; padding is written once, since its memory is not shared."""
        base = self.flat(access.ref)
        if plan(access, sizes):
            found = look(base, access, sizes)
        elif padded := spread(base, access, sizes):
            found, copies = padded
            for target, source in copies:
                self.copy(target, source)
        else:
            found = Mirrored(torch.empty(sizes, dtype=base.dtype), ())
            self.calls.append(lambda: found.view.copy_(gathered(base, access, sizes)))
        return found if found.backwards else found.view

    def matrix(self, ref: Ref, shape: tuple[int, int, int], least_run: int = 1) -> Matrix:
        """Rows for products and sums: a view, folded if its runs have at least `least_run` words, else a copy."""
        if ref.cls is not RefClass.OPERATOR:
            return self.flat(ref).view(shape)
        found = in_place(self.values[ref.index], shape, 0, least_run)
        return self.flat(ref).view(shape) if found is None else found


def _view(value: Value) -> torch.Tensor:
    return value.view if isinstance(value, Mirrored) else value
