"""A played optimizer becomes operators: each form of its step is traced like the model, and a scalar selects the form
of a step.

In: the record of `vgame.program.play`. Out: the parameter and the slots after the step, as values of the builder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_unflatten

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.capture import core_graph
from vgame.program.lowering.builder import Builder, Value
from vgame.program.play import Played
from vgame.program.recorder import Form, Key, Label, Number, Operation
from vgame.program.schedule import to_binary32

# name, one word per step, the numbers before rounding -> the scalar of the step
Column = Callable[[str, np.ndarray, Callable[[int], float] | None], Value]

#: Operators with changing numbers -> the same with tensors for them (rounded to binary32 once, like every scalar).
WITH_TENSORS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda x, y, alpha=1: x + (y if _is_one(alpha) else y * alpha),
    "sub": lambda x, y, alpha=1: x - (y if _is_one(alpha) else y * alpha),
    "rsub": lambda x, y, alpha=1: y - (x if _is_one(alpha) else x * alpha),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "addcmul": lambda x, a, b, value=1: x + a * b * value,
    "addcdiv": lambda x, a, b, value=1: x + a / b * value,
    "lerp": lambda x, y, weight: x + (y - x) * weight,
    "fill": lambda x, y: torch.zeros_like(x) + y,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda x, least=None, most=None: _at_most(_at_least(x, least), most),
    "clamp_min": lambda x, least: torch.maximum(x, least),
    "clamp_max": lambda x, most: torch.minimum(x, most),
}


def _at_least(x: torch.Tensor, least: Any) -> torch.Tensor:
    return torch.maximum(x, least) if isinstance(least, torch.Tensor) else x if least is None else x.clamp_min(least)


def _at_most(x: torch.Tensor, most: Any) -> torch.Tensor:
    return torch.minimum(x, most) if isinstance(most, torch.Tensor) else x if most is None else x.clamp_max(most)


def _is_one(number: Any) -> bool:
    return isinstance(number, int | float) and number == 1


class OptimizerStep:
    """The step of parameters with the same treatment, as graphs over (parameter, gradient, slots, scalars)."""

    def __init__(self, name: str, played: Played, key: Key, column: Column) -> None:
        self.name, self.played, self.key, self.column = name, played, key, column

    @property
    def slots(self) -> list[str]:
        return list(self.played.slots)

    def initial(self, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Initial slots: the optimizer's own tensors, or those of its first step."""
        made = self.played.initial
        return {
            slot: torch.full(shape, made[slot]) if slot in made else state[slot].detach()
            for slot, shape in self.played.slots.items()
        }

    def update(
        self, b: Builder, run: Callable[..., list[Value]], p: Value, g: Value, slots: dict[str, Value]
    ) -> tuple[Value, dict[str, Value]]:
        """(new parameter, new slots). `run(graph, values)` lowers a graph."""
        before = {"": p, **slots}
        after: dict[str, Value] = {}
        for number, (graph, scalars) in enumerate(self._graphs):
            form = self.played.forms[number]
            results = run(graph, [p, g, *slots.values(), *scalars])
            new = before | dict(zip((slot for slot, _ in form.results), results, strict=True))
            chosen = b.map(Function.NE, self._chosen(number), 0.0) if number else None
            after = {k: b.select(chosen, v, after[k]) for k, v in new.items()} if chosen else new
        return after.pop(""), after

    def _chosen(self, number: int) -> Value:
        """1 in the steps of this form, else 0."""
        words = (np.frombuffer(self.played.which, np.int8) == number).astype(np.float32)
        return self.column(f"form{number}.{self._place}", words, None)

    @property
    def _place(self) -> str:
        return f"{self.key[0]}.{self.key[1]}"

    @cached_property
    def _graphs(self) -> list[tuple[torch.fx.GraphModule, list[Value]]]:
        return [self._graph(number, form) for number, form in enumerate(self.played.forms)]

    def _graph(self, number: int, form: Form) -> tuple[torch.fx.GraphModule, list[Value]]:
        """The graph of a form, and its scalars: the numbers that differ between its steps."""
        columns = [np.frombuffer(column, np.float64) for column in self.played.numbers[number]]
        changing = [n for n, column in enumerate(columns) if len(column) and (column != column[0]).any()]
        fixed = {n: float(column[0]) for n, column in enumerate(columns) if n not in changing}
        shapes = [self.played.shape, self.played.shape, *self.played.slots.values(), *[()] * len(changing)]
        self._warn_of_short_numbers(form)
        replay = _Replay(self.name, form, self.slots, changing, fixed)
        graph = core_graph(replay, [torch.ones(shape) for shape in shapes])
        return graph, [self._scalar(number, n, columns[n]) for n in changing]

    def _warn_of_short_numbers(self, form: Form) -> None:
        kinds = {a for o in form.operations for a in o.arguments if a in (torch.bfloat16, torch.float16)}
        for kind in sorted(map(str, kinds)):
            warnings.warn(f"the optimizer {self.name} computes in {kind}; vgame computes this in float32", stacklevel=2)

    def _scalar(self, number: int, n: int, values: np.ndarray) -> Value:
        """RN of the numbers; steps of other forms have the first number, which is not read."""
        words = np.array([to_binary32(_exact(self.name, value)) for value in values], np.float32)
        table, exact = (
            np.full(len(self.played.which), first[0], kind) for first, kind in ((words, "f"), (values, "d"))
        )
        here = np.frombuffer(self.played.which, np.int8) == number
        table[here], exact[here] = words, values
        return self.column(f"number{n}.{self._place}", table, lambda t: float(exact[t - 1]))


def _exact(name: str, value: float) -> Fraction:
    if not np.isfinite(value):
        raise ProgramError(f"the optimizer {name} computes with the number {value}; finite numbers are expected")
    return Fraction(float(value))


class _Replay:
    """A form as a function of (parameter, gradient, slots, changing numbers): the operators in their order."""

    def __init__(self, name: str, form: Form, slots: list[str], changing: list[int], fixed: dict[int, float]) -> None:
        self.name, self.form, self.slots, self.changing, self.fixed = name, form, slots, changing, fixed

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        count = 2 + len(self.slots)
        keys: list[Label] = [("p",), ("g",), *(("slot", slot) for slot in self.slots)]
        self.known = {key: tensor.clone() for key, tensor in zip(keys, inputs[:count], strict=True)}
        self.numbers = {**self.fixed, **dict(zip(self.changing, inputs[count:], strict=True))}
        for n, operation in enumerate(self.form.operations):
            for k, output in enumerate(_flat(self._call(operation))):
                self.known[("out", n, k)] = output
        return [self._value(label) for _, label in self.form.results]

    def _call(self, operation: Operation) -> Any:
        known = [self._value(a) for a in operation.arguments]
        if not all(t.is_floating_point() for t in known if isinstance(t, torch.Tensor)):  # the result has its type
            known = [self._real(a, v) for a, v in zip(operation.arguments, known, strict=True)]
        args, kwargs = tree_unflatten(known, operation.tree)
        out, name = kwargs.pop("out", None), operation.function._schema.name.split("::")[1]
        numbers = [a for a in operation.arguments if isinstance(a, Number) and a.n in self.changing]
        changes = any(a.kind is None or name.rstrip("_") in WITH_TENSORS for a in numbers)
        writes = name.endswith("_")
        if out is None and not changes and name not in ("index_put_", "_to_copy"):
            return operation.function(*args, **kwargs)
        result = self._composed(name.rstrip("_"), changes, operation, args, kwargs)
        target = out if out is not None else args[0] if writes else None
        return result if target is None else target.copy_(result)

    def _composed(
        self, name: str, changes: bool, operation: Operation, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        if name == "_to_copy":
            return args[0].to(kwargs.get("dtype") or args[0].dtype, copy=True)
        if name == "index_put":
            return self._masked(*args, **kwargs)
        if not changes:
            return getattr(torch, name)(*args, **kwargs)
        if name not in WITH_TENSORS:
            raise ProgramError(
                f"the optimizer {self.name} computes {operation.function} with a number that changes from step to "
                "step, which is not supported; write it with products and sums"
            )
        return WITH_TENSORS[name](*args, **kwargs)

    def _masked(self, x: torch.Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False) -> torch.Tensor:
        if accumulate or len(indices) != 1 or indices[0].dtype != torch.bool or indices[0].shape != x.shape:
            raise ProgramError(f"the optimizer {self.name} writes to single elements; write it with torch.where")
        return torch.where(indices[0], values, x)

    def _real(self, argument: Any, value: Any) -> Any:
        """The value, as a float if the optimizer computed with a float."""
        return float(value) if isinstance(argument, Number) and argument.real and type(value) is int else value

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Number):
            number = self.numbers[argument.n]
            if argument.kind is not None:
                fixed = isinstance(number, float)
                return _of_type(torch.full((), number) if fixed else number, _type(argument.kind))
            return int(number) if isinstance(number, float) and number.is_integer() else number
        if argument == "device":
            return torch.device("cpu")
        if not (isinstance(argument, tuple) and argument and argument[0] in ("p", "g", "slot", "fill", "out")):
            return _type(argument) if isinstance(argument, torch.dtype) else argument
        if argument[0] == "fill" and argument not in self.known:
            number = self.numbers[argument[1].n] if isinstance(argument[1], Number) else argument[1]
            fixed = not isinstance(number, torch.Tensor)
            made = torch.full(argument[2], number if fixed else 0.0, dtype=_type(argument[3]))
            self.known[argument] = made if fixed else made + number
        return self.known[argument]


def _of_type(number: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A number in a type, which holds it exactly."""
    return number != 0 if dtype == torch.bool else number if dtype == number.dtype else number.to(dtype)


def _type(dtype: torch.dtype) -> torch.dtype:
    """The type in the program: binary32 for every floating-point type, others unchanged."""
    return torch.float32 if dtype.is_floating_point else dtype


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, list | tuple) else [result]
