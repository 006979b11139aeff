"""Any optimizer as it is written: its step is played over all steps of a job on tensors without data, and noted operator by operator.

In: an optimizer, its schedulers (or the job's schedule), the number of steps. Out: for each parameter group and shape the operators of a
step, the numbers in them at every step, and what the optimizer's state starts from. `vgame.program.optimizer_step` makes operators of a
program of that. Nothing is computed here but what the optimizer computes with Python's numbers.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from vgame.errors import ProgramError
from vgame.program.outside import line_of
from vgame.report import SILENCE, Silence

aten = torch.ops.aten

MOST_FORMS = 4  # kinds of steps of one optimizer: the first one, those before and after a threshold
EVERY = 200  # steps between two words about how far playing is

#: Overloads that make a tensor of one number.
FILLS = {
    "zeros": lambda args, kwargs: 0.0,
    "zeros_like": lambda args, kwargs: 0.0,
    "new_zeros": lambda args, kwargs: 0.0,
    "ones": lambda args, kwargs: 1.0,
    "ones_like": lambda args, kwargs: 1.0,
    "new_ones": lambda args, kwargs: 1.0,
    "full": lambda args, kwargs: float(args[1]),
    "full_like": lambda args, kwargs: float(args[1]),
    "new_full": lambda args, kwargs: float(args[2]),
}

Label = tuple[Any, ...]  # ("p",), ("g",), ("slot", key), ("fill", number, shape, n) or ("out", n, k)


@dataclass(frozen=True)
class Number:
    """The place of the n-th number of a step."""

    n: int


@dataclass(frozen=True)
class Operation:
    """One call: `arguments` are the leaves of (args, kwargs), with a Label for a tensor and a Number for a number."""

    function: Any
    tree: Any
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Form:
    """The operators of a step without their numbers; `results`: where the parameter (key "") and each slot are after it."""

    operations: tuple[Operation, ...]
    results: tuple[tuple[str, Label], ...]


@dataclass
class Played:
    """All steps of the parameters of one group and shape. `which[t]`: the form of step t + 1; `numbers[form]`: one row per step of it."""

    shape: tuple[int, ...]
    forms: list[Form] = field(default_factory=list)
    which: array = field(default_factory=lambda: array("b"))
    numbers: list[list[array]] = field(default_factory=list)
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes
    initial: dict[str, float] = field(
        default_factory=dict
    )  # of slots that a step makes; others are the optimizer's own


Rates = Callable[[int], Sequence[float]]  # step -> the learning rate of each group


def play(
    optimizer: torch.optim.Optimizer,
    trained: set[int],
    schedulers: Sequence[LRScheduler],
    rates: Rates | None,
    steps: int,
    listener: Silence = SILENCE,
) -> dict[tuple[int, tuple[int, ...]], Played]:
    """By (group, shape) of the parameters whose `id` is in `trained`. With `rates` they are set before each step; with
    schedulers, each of them steps after each step, as in torch's own loop."""
    stage = _Stage(optimizer, trained, schedulers)
    for step in range(1, steps + 1):
        for group, rate in zip(stage.optimizer.param_groups, rates(step) if rates else (), strict=bool(rates)):
            group["lr"] = rate
        stage.step(step)
        if step % EVERY == 0:
            listener.progress("plays the optimizer", step, steps)
    return stage.played


def scheduled(
    optimizer: torch.optim.Optimizer, schedulers: Sequence[LRScheduler], steps: int
) -> Iterator[list[dict[str, Any]]]:
    """The options of every group at each step, as the schedulers set them."""
    copied, followers = _copied(optimizer, set(), schedulers)
    for _ in range(steps):
        yield [{k: v for k, v in group.items() if k != "params"} for group in copied.param_groups]
        _follow(followers)


class _Stage:
    """A copy of an optimizer over tensors without data: one parameter for each group and shape."""

    def __init__(self, optimizer: torch.optim.Optimizer, trained: set[int], schedulers: Sequence[LRScheduler]) -> None:
        self.name = type(optimizer).__name__
        self.optimizer, self.schedulers = _copied(optimizer, trained, schedulers)
        self.parameters, self.played = {}, {}
        for number, group in enumerate(self.optimizer.param_groups):
            for p in group["params"]:
                self.parameters[number, tuple(p.shape)] = p
                self.played[number, tuple(p.shape)] = Played(tuple(p.shape))

    def step(self, step: int) -> None:
        recorder = _Recorder(self.name)
        for key, p in self.parameters.items():
            p.grad = torch.empty_like(p, requires_grad=False)
            recorder.begin(key, p, _slots(self.optimizer, p))
        with _told(self.name), recorder:
            type(self.optimizer).step(self.optimizer)
        for key, p in self.parameters.items():
            slots = _slots(self.optimizer, p)
            form, numbers, made = recorder.end(key, slots)
            self._shapes(self.played[key], step, slots, made)
            self._note(self.played[key], step, form, numbers)
        _follow(self.schedulers)

    def _shapes(self, played: Played, step: int, slots: dict[str, torch.Tensor], made: dict[str, Label]) -> None:
        """What slots there are, and what those start from that the optimizer makes in a step."""
        for slot, tensor in slots.items():
            if not tensor.dtype == torch.float32:
                raise ProgramError(f"the optimizer {self.name} holds {slot} as {tensor.dtype}; vgame trains in float32")
            if played.slots.setdefault(slot, tuple(tensor.shape)) != tuple(tensor.shape):
                raise ProgramError(
                    f"the optimizer {self.name} changes the shape of its {slot} from {played.slots[slot]} to {tuple(tensor.shape)} in "
                    f"step {step}"
                )
        for slot, label in made.items():
            played.initial.setdefault(slot, label[1] if label[0] == "fill" else 0.0)

    def _note(self, played: Played, step: int, form: Form, numbers: list[float]) -> None:
        if form not in played.forms:
            if len(played.forms) == MOST_FORMS:
                raise ProgramError(
                    f"the optimizer {self.name} computes step {step} in a {MOST_FORMS + 1}th way; a program has room for {MOST_FORMS}"
                )
            played.forms.append(form)
            played.numbers.append([array("d") for _ in numbers])
        which = played.forms.index(form)
        played.which.append(which)
        for column, number in zip(played.numbers[which], numbers, strict=True):
            column.append(number)


class _Recorder(TorchDispatchMode):
    """Notes every operator that touches a tensor without data; all others just happen."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.labels: dict[tuple[Any, ...], tuple[Any, Label]] = {}  # memory -> (whose, label)
        self.alive: list[torch.Tensor] = []  # no memory is used twice
        self.operations: dict[Any, list[Operation]] = {}
        self.numbers: dict[Any, list[float]] = {}
        self.known: dict[Any, set[str]] = {}  # slots that were there before the step
        self.fills = 0

    def begin(self, key: Any, p: torch.Tensor, slots: dict[str, torch.Tensor]) -> None:
        self.operations[key], self.numbers[key], self.known[key] = [], [], set(slots)
        self._name(p, key, ("p",))
        self._name(p.grad, key, ("g",))
        for slot, tensor in slots.items():
            self._name(tensor, key, ("slot", slot))

    def end(self, key: Any, slots: dict[str, torch.Tensor]) -> tuple[Form, list[float], dict[str, Label]]:
        """The form of the step, its numbers, and the labels of the slots that it made."""
        after = {slot: self._label(tensor) for slot, tensor in slots.items()}
        made = {slot: label for slot, (_, label) in after.items() if slot not in self.known[key]}
        fresh = {label: ("slot", slot) for slot, label in made.items() if label[0] == "fill"}
        renamed = [
            Operation(o.function, o.tree, tuple(_renamed(a, fresh) for a in o.arguments)) for o in self.operations[key]
        ]
        results = [("", ("p",)), *((slot, _renamed(label, fresh)) for slot, (_, label) in after.items())]
        return Form(tuple(renamed), tuple(results)), self.numbers[key], made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = self._counted(args, kwargs or {})
        result = func(*args, **kwargs)
        outputs = [t for t in tree_leaves(result) if _without_data(t)]
        inputs = [t for t in tree_leaves((args, kwargs)) if _without_data(t)]
        if not outputs and not inputs:
            return result
        name = func._schema.name.split("::")[1]
        if name in ("detach", "alias"):  # the same words by another name
            return result
        if name in FILLS:
            self._fill(outputs[0], FILLS[name](args, kwargs), [self._label(t)[0] for t in inputs])
        else:
            self._operation(func, args, kwargs, inputs, outputs)
        return result

    @staticmethod
    def _counted(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Counters that an optimizer makes on its parameter's device have their value: numbers follow from them."""
        made = kwargs.get("device") is not None and not any(_without_data(t) for t in tree_leaves((args, kwargs)))
        size = args[0] if args else ()
        single = not (size.dim() if isinstance(size, torch.Tensor) else isinstance(size, list | tuple) and len(size))
        return kwargs | {"device": torch.device("cpu")} if made and single else kwargs

    def _fill(self, tensor: torch.Tensor, number: float, owners: list[Any]) -> None:
        self.fills += 1
        self._name(tensor, owners[0] if owners else None, ("fill", number, tuple(tensor.shape), self.fills))

    def _operation(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        owners = {owner for owner, _ in map(self._label, inputs)} - {None}
        if len(owners) != 1:
            raise ProgramError(
                f"the optimizer {self.name} computes with several parameters at once ({func}); only what it does to each one by "
                "itself can be captured"
            )
        (key,) = owners
        leaves, tree = tree_flatten((args, kwargs))
        numeric = _numeric(func, args, kwargs)
        arguments = tuple(self._argument(key, leaf, free) for leaf, free in zip(leaves, numeric, strict=True))
        self.operations[key].append(Operation(func, tree, arguments))
        for k, output in enumerate(outputs):
            if _memory(output) not in self.labels:
                self._name(output, key, ("out", len(self.operations[key]) - 1, k))

    def _argument(self, key: Any, leaf: Any, numeric: bool) -> Any:
        if _without_data(leaf):
            return self._label(leaf)[1]
        if isinstance(leaf, torch.Tensor):
            if leaf.dim():
                raise ProgramError(
                    f"the optimizer {self.name} computes with a tensor of its own of shape {tuple(leaf.shape)}"
                )
            leaf, numeric = leaf.item(), True
        if numeric and type(leaf) in (int, float):
            self.numbers[key].append(float(leaf))
            return Number(len(self.numbers[key]) - 1)
        return "device" if isinstance(leaf, torch.device) else leaf

    def _name(self, tensor: torch.Tensor, key: Any, label: Label) -> None:
        self.alive.append(tensor)
        self.labels[_memory(tensor)] = (key, label)

    def _label(self, tensor: torch.Tensor) -> tuple[Any, Label]:
        if (found := self.labels.get(_memory(tensor))) is None:
            raise ProgramError(
                f"the optimizer {self.name} computes with a tensor of shape {tuple(tensor.shape)} that is neither a parameter, a gradient "
                "nor in its state; keep it in state[parameter]"
            )
        return found


def _renamed(value: Any, names: dict[Label, Label]) -> Any:
    return names.get(value, value) if isinstance(value, tuple) and value and value[0] == "fill" else value


def _without_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same words in the same order (`p` and `p.data`)."""
    return tensor.untyped_storage()._cdata, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


def _numeric(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[bool]:
    """Of each leaf: may it be a number that changes from step to step? (A dimension or a size may not.)"""
    types = {a.name: str(a.type).removeprefix("Optional[").rstrip("]") for a in func._schema.arguments}
    named = [*zip(types.values(), args, strict=False), *((types[k], v) for k, v in kwargs.items())]
    return [kind in ("number", "Tensor", "float") for kind, value in named for _ in tree_leaves(value)]


def _slots(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> dict[str, torch.Tensor]:
    return {key: value for key, value in optimizer.state.get(p, {}).items() if _without_data(value)}


def _copied(
    optimizer: torch.optim.Optimizer, trained: set[int], schedulers: Sequence[LRScheduler]
) -> tuple[torch.optim.Optimizer, list[LRScheduler]]:
    """Optimizer and schedulers again, over one parameter without data for each group and shape of the trained ones."""
    copied = object.__new__(type(optimizer))
    memo: dict[int, Any] = {id(optimizer): copied}
    kept = []
    for group in optimizer.param_groups:
        first: dict[tuple[int, ...], torch.Tensor] = {}
        for p in group["params"]:
            if id(p) in trained and tuple(p.shape) not in first:
                first[tuple(p.shape)] = p
                memo[id(p)] = torch.nn.Parameter(torch.empty_like(p, device="meta"))
        kept.append(list(first.values()))
    parts = {k: v for k, v in vars(optimizer).items() if k not in ("param_groups", "state", "step")}
    vars(copied).update(deepcopy(parts, memo))
    copied.param_groups = [
        deepcopy({k: v for k, v in group.items() if k != "params"}, memo) | {"params": [memo[id(p)] for p in firsts]}
        for group, firsts in zip(optimizer.param_groups, kept, strict=True)
    ]
    for group in copied.param_groups:  # the plain loops: other ones differ by how they are launched
        group.update({key: False for key in ("foreach", "fused", "capturable", "differentiable") if key in group})
    copied.state = type(optimizer.state)(dict)
    for p in (p for firsts in kept for p in firsts):
        copied.state[memo[id(p)]] = {key: _empty(key, value, p) for key, value in optimizer.state.get(p, {}).items()}
        if not copied.state[memo[id(p)]]:
            del copied.state[memo[id(p)]]
    followers = [_follower(s, memo) for s in schedulers]
    return copied, followers


def _empty(key: str, value: Any, p: torch.Tensor) -> Any:
    """A tensor of the state without its data; counters keep their value."""
    counter = not isinstance(value, torch.Tensor) or key == "step" or (value.dim() == 0 and p.dim() > 0)
    return deepcopy(value) if counter else torch.empty_like(value, device="meta")


def _follower(scheduler: LRScheduler, memo: dict[int, Any]) -> LRScheduler:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ProgramError(
            "ReduceLROnPlateau decides by the values of a metric, which cannot be captured; use a scheduler that depends on the step alone"
        )
    if not isinstance(scheduler, LRScheduler):
        raise ProgramError(
            f"the scheduler is a {type(scheduler).__name__}; a torch.optim.lr_scheduler.LRScheduler is expected"
        )
    if id(scheduler.optimizer) not in memo:
        raise ProgramError(f"the scheduler {type(scheduler).__name__} belongs to another optimizer than the task's")
    return deepcopy(scheduler, memo)


def _follow(schedulers: Sequence[LRScheduler]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the copy's step is not the one that the scheduler has wrapped
        for scheduler in schedulers:
            scheduler.step()


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What an optimizer does with values that are not there, as one sentence."""
    try:
        yield
    except ProgramError:
        raise
    except Exception as error:
        what = " ".join(str(error).split("\n")[0].split())
        by_values = "meta" in what.lower() or "item" in what.lower()
        raise ProgramError(
            f"the optimizer {name} decides by the values of its tensors{line_of(error)}, which cannot be captured; compute with tensors "
            "(torch.where, torch.clamp) instead"
            if by_values
            else f"the step of the optimizer {name} fails{line_of(error)}: {type(error).__name__}: {what}"
        ) from None
