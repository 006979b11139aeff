"""Locate the first difference between the user's code and the program: the first torch operator with a result that no
operator of the program has.

In: a loss and its gradients with a differing tensor, executed again on both sides. Out: the module and the user's line,
as the end of an error message. Results are identified by sums that do not depend on the order of their elements.
"""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from vgame.program.hidden_state import is_library_file
from vgame.validation import user
from vgame.validation.budget import Budget, Exhausted
from vgame.validation.shadow import CannotCheck, Shadows

T = torch.Tensor
Sums = tuple[float, float, float]
LONGEST = 60.0  # seconds for each side
SAME = 2.0**-36  # relative to the sum of sizes: above roundings of binary64, below an ulp of binary32


@dataclass(frozen=True)
class Site:
    """A module, and a line of the user's code."""

    module: str
    line: str

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"in the module {self.module}" if self.module else "", self.line)))


@dataclass(frozen=True)
class Result:
    """The result of one operator. `parents`: indices of the operators whose results it read."""

    name: str
    site: Site | None
    sums: Sums
    elements: int
    parents: tuple[int, ...]
    numbers: bool  # whether it holds floating-point numbers, not a mask or indices
    type: torch.dtype | None  # None: not compared, such as statistics of norms and numbers that fit every type


#: Operators that return statistics after their result.
NORMS = ("native_layer_norm", "native_group_norm", "native_batch_norm")


def is_short(tensor: T) -> bool:
    """Whether every number is representable in bfloat16."""
    return tensor.is_floating_point() and bool((tensor.to(torch.bfloat16).to(tensor.dtype) == tensor).all())


def sums_of(tensor: T) -> Sums:
    x = tensor.detach().to(torch.float64).nan_to_num(0.0, 1e300, -1e300)
    return float(x.sum()), float(x.abs().sum()), float(x.square().sum())


def same_sums(a: Sums, b: Sums) -> bool:
    sizes = (max(a[1], b[1]), max(a[1], b[1]), max(a[2], b[2]))
    return all(abs(x - y) <= SAME * size for x, y, size in zip(a, b, sizes, strict=True))


class Noted(Shadows):
    """Shadows that record each operator's result with its calling line and module; for a gradient, those of its forward
    pass."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.results: list[Result] = []
        self.running: list[str] = []  # modules, the innermost last
        self.called: dict[str, str] = {}  # module -> the line of its first call
        self._made: dict[int, int] = {}  # memory -> the operator that wrote it last
        self._forward: dict[int, Site] = {}  # number of a gradient function -> its forward operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        read = [_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, T) and not _of_shape_alone(name)]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        parents = tuple({self._made[m]: None for m in read if m in self._made})
        site = self._site()
        for place, tensor in enumerate(tree_leaves(result)):
            if isinstance(tensor, T):
                shadow = self.of(tensor)
                numbers, kind = shadow.is_floating_point(), self._type_of(name, place, tensor)
                self.results.append(
                    Result(name.removesuffix("_"), site, sums_of(shadow), shadow.numel(), parents, numbers, kind)
                )
                self._made[_memory(tensor)] = len(self.results) - 1
        return result

    def _type_of(self, name: str, place: int, tensor: T) -> torch.dtype | None:
        """The compared type; None for sums over batches, which a program adds in binary32 (docs/capture.md)."""
        node = torch._C._current_autograd_node()
        added = node is not None and node.name() == "torch::autograd::AccumulateGrad"
        private = added or (name in NORMS and place)
        return None if private or not tensor.is_floating_point() or is_short(self.of(tensor)) else tensor.dtype

    def _site(self) -> Site | None:
        node = torch._C._current_autograd_node()
        line = _line()
        if node is not None and not line:
            return self._forward.get(node._sequence_nr())
        site = Site(self.running[-1] if self.running else "", line)
        self._forward.setdefault(torch.autograd._get_sequence_nr() - 1, site)
        return site

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Context that records the running modules by name."""

        def enter(name: str) -> Callable:
            def hook(module: nn.Module, args: Any) -> None:
                self.called.setdefault(name, _line())
                self.running.append(name)

            return hook

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self.running.pop()

        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(enter(name)))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    # ---- the first that differs ----

    def first(self, program: Sequence[tuple[int, Sums]], differs: T | None) -> Result | None:
        """The first operator on the way to the differing tensor for which the program has neither its result nor any
        result computed from it."""
        known: dict[int, list[Sums]] = defaultdict(list)
        for elements, sums in program:
            known[elements].append(sums)
        has = [any(same_sums(r.sums, sums) for sums in known[r.elements]) for r in self.results]
        way = self._way(differs)
        proven = [False] * len(self.results)  # the program has a later result
        for place in sorted(way, reverse=True):
            result = self.results[place]
            for parent in result.parents:
                proven[parent] |= proven[place] or (has[place] and result.numbers and result.sums[1] > 0)
        wrong = (p for p in sorted(way) if not has[p] and not proven[p] and str(self.results[p].site or ""))
        return next((self.results[p] for p in wrong), None)

    def _way(self, differs: T | None) -> set[int]:
        """The operators that a tensor depends on; all operators if no operator computes it."""
        return self.leading_to([] if differs is None else [differs]) or set(range(len(self.results)))

    def leading_to(self, tensors: Sequence[T]) -> set[int]:
        """Indices of the operators that these tensors depend on."""
        wanted: dict[int, list[Sums]] = defaultdict(list)
        for tensor in tensors:
            wanted[tensor.numel()].append(sums_of(tensor))
        todo: list[int] = []
        for place in reversed(range(len(self.results))):
            result = self.results[place]
            left = [sums for sums in wanted[result.elements] if not same_sums(result.sums, sums)]
            if len(left) < len(wanted[result.elements]):
                todo.append(place)  # the last one with these numbers
                wanted[result.elements] = left
        seen: set[int] = set()
        while todo:
            place = todo.pop()
            if place not in seen:
                seen.add(place)
                todo += self.results[place].parents
        return seen


def _of_shape_alone(name: str) -> bool:
    """Whether an operator reads no numbers of its tensors: ones_like, new_zeros."""
    return name.endswith("_like") or name.startswith("new_")


def _memory(tensor: T) -> int:
    return tensor.untyped_storage()._cdata


def _line() -> str:
    """The innermost line of the user's code inside the validation."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not user.gradients.__code__:
        file = frame.f_code.co_filename
        if not is_library_file(file):
            return f"{Path(file).name} line {frame.f_lineno}"
        frame = frame.f_back
    return ""


def place_of(
    name: str, theirs: Mapping[str, T | None], ours: Mapping[str, T | None], model: nn.Module,
    play: Callable[[Noted], Any], again: Callable[[Callable[[int, T], None]], Any],
) -> str:  # fmt: skip
    """Module and line of the first differing result; for a tensor that only one side has, those of its module. `play`
    executes the user's side again, `again` the program's."""
    noted = Noted(Budget(LONGEST))
    program: list[tuple[int, Sums]] = []
    result = None
    try:
        with noted.watching(model):
            play(noted)
        if theirs.get(name) is not None and ours.get(name) is not None:
            again(lambda _, t: program.append((t.numel(), sums_of(t))))
            result = noted.first(program, theirs[name])
    except (CannotCheck, Exhausted):
        pass  # the difference is reported without its place
    if result is not None:
        return f"; the first result that differs is that of {result.name} {result.site}"
    owner = name.partition(".")[2].rpartition(".")[0]
    while owner not in noted.called and owner:
        owner = owner.rpartition(".")[0]
    line = noted.called.get(owner, "")
    return f"; the module {owner or 'of the model'} is called in {line}" if line else ""


def step_of(optimizer: torch.optim.Optimizer) -> str:
    """The optimizer, and the line of its step if it is the user's code."""
    kind = type(optimizer)
    code = inspect.unwrap(kind.step).__code__
    line = "" if is_library_file(code.co_filename) else f", {Path(code.co_filename).name} line {code.co_firstlineno}"
    return f"; it is a step of {kind.__name__}{line}"
