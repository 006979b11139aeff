"""Record one step of an optimizer over tensors without data, operator by operator.

In: parameters, gradients and slots by name, then the step inside the recorder. Out: for each parameter an `Outcome`, or
a ProgramError about an unsupported operation.
"""

from __future__ import annotations

import traceback
from array import array
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from vgame.errors import ProgramError
from vgame.program.caught import Caught
from vgame.program.hidden_state import own_line
from vgame.program.lists import PREFIX, by_tensor
from vgame.program.slots import Slots

#: Overloads that create a tensor filled with one number.
FILLS = {
    "empty": lambda args, kwargs: 0.0,  # any number will do: it is written before it is read
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

#: Whether a tensor is made with the size of another one, so that it is not a counter.
OF_TENSOR: ContextVar[bool] = ContextVar("of_tensor", default=False)

Label = tuple[Any, ...]  # ("p",), ("g",), ("slot", key), ("fill", number, shape, type, given, n) or ("out", n, k)
Key = tuple[int, int]  # group, place in it


@dataclass(frozen=True)
class Number:
    """The place of the n-th number of a step; `kind`: its type if the operator reads a tensor instead of a number;
    `real`: whether it is a float, in the first step."""

    n: int
    kind: torch.dtype | None = None
    real: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Operation:
    """One call: `arguments` are the leaves of (args, kwargs), with a Label for a tensor and a Number for a number."""

    function: Any
    tree: Any
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Form:
    """The operators of a step without their numbers; `results`: places of the parameter (key "") and of each slot after
    it."""

    operations: tuple[Operation, ...]
    results: tuple[tuple[str, Label], ...]


@dataclass(frozen=True)
class Outcome:
    """The effect of one step on one parameter. `numbers`: doubles as bytes, so that they are compared by bits."""

    form: Form
    numbers: bytes
    slots: tuple[tuple[str, tuple[int, ...]], ...]
    made: tuple[tuple[str, float], ...]


class Counters(TorchDispatchMode):
    """Keeps the values of counters that a step creates on its parameter's device, which has no data here."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **_counted(args, kwargs or {}))


def _counted(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keep the values of counters that an optimizer creates on its parameter's device, since numbers depend on
    them."""
    if OF_TENSOR.get():
        return kwargs
    made = kwargs.get("device") is not None and not any(without_data(t) for t in tree_leaves((args, kwargs)))
    size = args[0] if args else ()
    single = not (size.dim() if isinstance(size, torch.Tensor) else isinstance(size, list | tuple) and len(size))
    return kwargs | {"device": torch.device("cpu")} if made and single else kwargs


class Recorder(TorchDispatchMode):
    """Records every operator on tensors without data; all others are executed."""

    def __init__(self, name: str, slots: Slots) -> None:
        super().__init__()
        self.name, self.slots = name, slots
        self.parameters: dict[Any, torch.Tensor] = {}
        self.labels: dict[tuple[Any, ...], tuple[Any, Label]] = {}  # memory -> (parameter, label)
        self.places: dict[int, tuple[Any, ...]] = {}  # memory of parameters and slots -> parameter
        self.alive: list[torch.UntypedStorage] = []  # kept alive, so that no address is used twice
        self.operations: dict[Any, list[Operation]] = {}
        self.numbers: dict[Any, list[float]] = {}
        self.known: dict[Any, set[str]] = {}  # slots before the step
        self.fills = 0
        self.caught = Caught()
        self.foreign: dict[int, str] = {}  # memory of other optimizers' tensors -> what it is

    def begin(self, key: Any, p: torch.Tensor, slots: dict[str, torch.Tensor], known: set[str]) -> None:
        self.operations[key], self.numbers[key], self.known[key] = [], [], known
        self.parameters[key] = p
        for tensor in (p, *slots.values()):
            own = (key, _memory(tensor))
            if self.places.setdefault(tensor.untyped_storage()._cdata, own) != own:
                raise ProgramError(
                    f"the optimizer {self.name} keeps two tensors in the same memory (a view, or a tensor shared by "
                    "two parameters), but a program stores them separately; clone one"
                )
        self._name(p, key, ("p",))
        if p.grad is not None:
            self._name(p.grad, key, ("g",))
        for slot, tensor in slots.items():
            self._name(tensor, key, ("slot", slot))

    def refuse_changed(self, key: Any, p: torch.Tensor) -> None:
        """Raise ProgramError if a parameter without a gradient is changed by the step."""
        if self.operations[key] or self.labels.get(_memory(p)) != (key, ("p",)):
            raise ProgramError(
                f"the optimizer {self.name} computes with a parameter of shape {tuple(p.shape)} without a gradient "
                "(frozen, or not used by the loss); skip parameters whose grad is None"
            )

    def end(self, key: Any, p: torch.Tensor, slots: dict[str, torch.Tensor]) -> Outcome:
        for what, tensor in (("parameter", p), *slots.items()):
            if tensor.dtype != torch.float32:
                raise ProgramError(f"the optimizer {self.name} holds {what} as {tensor.dtype}; vgame trains in float32")
        results = {"": self._own(key, p), **{slot: self._own(key, tensor) for slot, tensor in slots.items()}}
        made = {slot: label for slot, label in results.items() if slot and slot not in self.known[key]}
        names: dict[Label, Label] = {label: ("slot", slot) for slot, label in made.items() if label[0] == "fill"}
        for argument in (*(a for o in self.operations[key] for a in o.arguments), *results.values()):
            if _is_fill(argument) and argument not in names:  # numbered in the order of this parameter's step
                names[argument] = (argument[0], self._number(key, argument), *argument[2:-1], len(names))
        renamed = [
            Operation(o.function, o.tree, tuple(_renamed(a, names) for a in o.arguments)) for o in self.operations[key]
        ]
        return Outcome(
            Form(tuple(renamed), tuple((slot, _renamed(label, names)) for slot, label in results.items())),
            array("d", self.numbers[key]).tobytes(),
            tuple((slot, tuple(tensor.shape)) for slot, tensor in slots.items()),
            tuple((slot, label[1] if label[0] == "fill" else 0.0) for slot, label in made.items()),
        )

    def _number(self, key: Any, fill: Label) -> Any:
        """The number of a fill: one of the step, if it was given and may change from step to step."""
        if not fill[4]:
            return fill[1]
        self.numbers[key].append(fill[1])
        return Number(len(self.numbers[key]) - 1)

    def _own(self, key: Any, tensor: torch.Tensor) -> Label:
        """The label of a parameter or its slot after the step."""
        owner, label = self._label(tensor)
        if owner is None:  # a fill, which belongs to this parameter from here on
            self._name(tensor, key, label)
        elif owner != key:
            raise self._several("its state")
        return label

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.caught.noting():
            return self._record(func, args, _counted(args, kwargs or {}))

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        inputs = [t for t in tree_leaves((args, kwargs)) if without_data(t)]
        if inputs and func._schema.name.startswith(PREFIX):
            with self:
                return by_tensor(func, args, kwargs)
        if inputs and any(_is_written_list(a) for a in func._schema.arguments):
            raise ProgramError(
                f"the optimizer {self.name} calls {func}{own_line(traceback.extract_stack())}, one kernel for a whole "
                "step, which a program does not have; compute with functions of tensors, or let a step of torch.optim "
                "do it (super().step())"
            )
        before = [_memory(t) for t in inputs]
        if inputs and (written := [t for t in _written(func, args, kwargs) if not without_data(t)]):
            raise ProgramError(
                f"the optimizer {self.name} writes what it computes from a parameter into a tensor of shape "
                f"{tuple(written[0].shape)} that it made as a number{own_line(traceback.extract_stack())}; make it "
                "with torch.zeros_like(p), or write `new = ...` in place of an operation in place"
            )
        result = func(*args, **kwargs)
        outputs = [t for t in tree_leaves(result) if without_data(t)]
        if not outputs and not inputs:
            return result
        name = func._schema.name.split("::")[1]
        if name in ("detach", "alias"):  # an alias of the same words
            return result
        if [_memory(t) for t in inputs] != before:
            raise ProgramError(
                f"the optimizer {self.name} changes the memory or the shape of a tensor in place ({func}); create a "
                "new tensor"
            )
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ProgramError(
                f"the optimizer {self.name} draws random numbers ({func}){own_line(traceback.extract_stack())}, which "
                "a program does not draw in an optimizer's step; let it compute without chance"
            )
        if name == "empty_like" and self._label(inputs[0])[0] is None:
            name = "empty"
        if name in FILLS:
            owners = [self._label(t)[0] for t in inputs]
            self._fill(outputs[0], FILLS[name](args, kwargs), "full" in name, owners)
        else:
            self._operation(func, args, kwargs, inputs, outputs)
        return result

    def _fill(self, tensor: torch.Tensor, number: float, given: bool, owners: list[Any]) -> None:
        self.fills += 1
        label = ("fill", number, tuple(tensor.shape), tensor.dtype, given, self.fills)
        self._name(tensor, owners[0] if owners else None, label)

    def _operation(
        self, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        owners = {owner for owner, _ in map(self._label, inputs)} - {None}
        if not owners and (held := [key for t in inputs if (key := self._holder(t)) is not None]):
            self._name(inputs[0], held[0], self._label(inputs[0])[1])
            owners = {*held}
        if not owners:
            usual = f", or use torch.optim.{self.name}" if hasattr(torch.optim, self.name) else ""
            raise ProgramError(
                f"the optimizer {self.name} computes with tensors that belong to no parameter; keep them in "
                f"state[parameter], or compute with Python numbers{usual}"
            )
        if len(owners) > 1:
            raise self._several(func)
        (key,) = owners
        leaves, tree = tree_flatten((args, kwargs))
        numeric = _numeric(func, args, kwargs)
        numbers = torch._C._should_allow_numbers_as_tensors(func._schema.name.split("::")[1])
        arguments = tuple(self._argument(key, leaf, free, numbers) for leaf, free in zip(leaves, numeric, strict=True))
        self.operations[key].append(Operation(func, tree, arguments))
        for k, output in enumerate(outputs):
            owner, label = self.labels.get(_memory(output), (None, ("out", len(self.operations[key]) - 1, k)))
            if owner is None:  # a new tensor, or a written fill
                self._name(output, key, label)

    def _several(self, what: Any) -> ProgramError:
        return ProgramError(
            f"the optimizer {self.name} computes with several parameters at once ({what}), which cannot be captured; "
            "compute with one parameter at a time"
        )

    def _holder(self, tensor: torch.Tensor) -> Any:
        """The parameter whose state holds a tensor."""
        place, slots = _memory(tensor), {key: self.slots.of(p) for key, p in self.parameters.items()}
        held = (key for key, own in slots.items() for t in own.values() if without_data(t) and _memory(t) == place)
        return next(held, None)

    def _argument(self, key: Any, leaf: Any, numeric: bool, numbers: bool) -> Any:
        """`numbers`: whether the operator reads numbers in place of tensors."""
        kind = None
        if without_data(leaf):
            return self._label(leaf)[1]
        if isinstance(leaf, torch.Tensor):
            if leaf.dim():
                raise ProgramError(
                    f"the optimizer {self.name} computes with a tensor of shape {tuple(leaf.shape)} that belongs to no "
                    "parameter; keep it in state[parameter]"
                )
            kind = None if numbers else leaf.dtype
            leaf, numeric = leaf.item(), True
        if numeric and (type(leaf) in (int, float) or kind is not None):
            self.numbers[key].append(float(leaf))
            return Number(len(self.numbers[key]) - 1, kind, isinstance(leaf, float))
        return "device" if isinstance(leaf, torch.device) else leaf

    def _name(self, tensor: torch.Tensor, key: Any, label: Label) -> None:
        self.alive.append(tensor.untyped_storage())
        self.labels[_memory(tensor)] = (key, label)

    def _label(self, tensor: torch.Tensor) -> tuple[Any, Label]:
        if (found := self.labels.get(_memory(tensor))) is None:
            if (owner := self.foreign.get(tensor.untyped_storage()._cdata)) is not None:
                raise ProgramError(
                    f"the optimizer {self.name} computes with a parameter of shape {tuple(tensor.shape)} of {owner}, "
                    "another optimizer of the task, or with its gradient; let each optimizer step its own parameters"
                )
            raise ProgramError(
                f"the optimizer {self.name} computes with a tensor of shape {tuple(tensor.shape)} that is neither a "
                "parameter, a gradient nor in its state; keep it in state[parameter]"
            )
        return found


def _is_fill(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and value[0] == "fill"


def _renamed(value: Any, names: dict[Label, Label]) -> Any:
    return names.get(value, value) if _is_fill(value) else value


def without_data(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key that is equal for tensors with the same words in the same order (`p` and `p.data`)."""
    place = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return *place, tuple(tensor.shape), tensor.stride(), tensor.dtype


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator changes in place, or writes as `out`."""
    schema = func._schema.arguments
    named = [*zip(schema, args, strict=False), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)]
    found = [leaf for a, value in named if a.alias_info and a.alias_info.is_write for leaf in tree_leaves(value)]
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]


def _is_written_list(argument: Any) -> bool:
    written = argument.alias_info is not None and argument.alias_info.is_write
    return bool(written) and str(argument.type).startswith("List[")


def _numeric(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[bool]:
    """For each leaf: whether it may be a number that changes from step to step. (A dimension or a size may not.)"""
    types = {a.name: str(a.type).removeprefix("Optional[").rstrip("]") for a in func._schema.arguments}
    named = [*zip(types.values(), args, strict=False), *((types[k], v) for k, v in kwargs.items())]
    return [kind in ("number", "Tensor", "float") for kind, value in named for _ in tree_leaves(value)]
