"""Optimizer steps as operators, derived from a torch optimizer object; one rounding per operation, in the written
order.

A rule owns its slots (state tensors kept for each parameter) and its scalars (tables over the steps).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import Any, Protocol

import torch

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.lowering.builder import Builder, Value
from vgame.program.schedule import Ends, Rate, Real, ends, power
from vgame.system.installed import folders

Scalar = Callable[[Rate, int], Rate]  # (learning rate, step) -> value at that step


@dataclass(frozen=True)
class Slot:
    """A state tensor kept for each parameter, initially zero."""

    name: str
    torchs: str  # key of `state[parameter]` under which the optimizer's class keeps it
    square: bool = False  # non-negative, with the scale of the gradient's square: used by the validation


class Rule(Protocol):
    """The step of one parameter group, and the slots of each parameter."""

    slots: tuple[Slot, ...]
    counters: tuple[str, ...]  # keys of `state[parameter]` under which the class counts its steps
    scalars: Mapping[str, Scalar]

    def update(
        self, b: Builder, p: Value, g: Value, slots: Mapping[str, Value], scalars: Mapping[str, Value]
    ) -> tuple[Value, dict[str, Value]]:
        """(new parameter, new slots): functions of a MAP, or handlers of vgame/program/lowering/ such as `sign`."""
        ...


def _decayed(b: Builder, p: Value, g: Value, decay: float) -> Value:
    return b.map(Function.ADD, g, b.map(Function.MUL, p, decay)) if decay else g


def _averaged(b: Builder, average: Value, x: Value, beta: float) -> Value:
    """beta * average + (1 - beta) * x."""
    old = b.map(Function.MUL, average, beta)
    return b.map(Function.ADD, old, b.map(Function.MUL, x, float(1 - Fraction(str(beta)))))


@dataclass(frozen=True)
class SGD:
    """v = momentum v + (1 - dampening) (g + decay p); p = p - lr v (Nesterov: p - lr (g + momentum v))."""

    momentum: float
    dampening: float
    decay: float
    nesterov: bool
    counters = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot("momentum", "momentum_buffer"),) if self.momentum else ()

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        scalars: dict[str, Scalar] = {"lr": lambda rate, step: rate}
        if self.momentum and self.dampening:
            share = 1 - Fraction(str(self.dampening))
            scalars["share"] = lambda rate, step: Fraction(1) if step == 1 else share
        return scalars

    def update(
        self, b: Builder, p: Value, g: Value, slots: Mapping[str, Value], scalars: Mapping[str, Value]
    ) -> tuple[Value, dict[str, Value]]:
        g, new = _decayed(b, p, g, self.decay), {}
        if self.momentum:
            share = b.map(Function.MUL, g, scalars["share"]) if "share" in scalars else g
            v = b.map(Function.ADD, b.map(Function.MUL, slots["momentum"], self.momentum), share)
            new["momentum"] = v
            g = b.map(Function.ADD, g, b.map(Function.MUL, v, self.momentum)) if self.nesterov else v
        return b.map(Function.SUB, p, b.map(Function.MUL, g, scalars["lr"])), new


@dataclass(frozen=True)
class Adam:
    """m, v averages; p = p - rate m / (sqrt(v) / root + eps), rate = lr / (1 - beta1^t), root = sqrt(1 - beta2^t).

    Weight decay: decoupled (AdamW) p = p keep with keep = 1 - lr decay; else added to the gradient.
    """

    betas: tuple[float, float]
    eps: float
    decay: float
    decoupled: bool
    slots = (Slot("exp_avg", "exp_avg"), Slot("exp_avg_sq", "exp_avg_sq", square=True))
    counters = ("step",)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        beta1, beta2 = (Fraction(str(beta)) for beta in self.betas)
        scalars: dict[str, Scalar] = {
            "rate": lambda rate, step: _corrected(rate, beta1, step),
            "root": lambda rate, step: _root(beta2, step),
        }
        if self.decoupled and self.decay:
            scalars["keep"] = lambda rate, step: _complement(rate, Fraction(str(self.decay)))
        return scalars

    def update(
        self, b: Builder, p: Value, g: Value, slots: Mapping[str, Value], scalars: Mapping[str, Value]
    ) -> tuple[Value, dict[str, Value]]:
        if "keep" in scalars:
            p = b.map(Function.MUL, p, scalars["keep"])
        elif not self.decoupled:
            g = _decayed(b, p, g, self.decay)
        m = _averaged(b, slots["exp_avg"], g, self.betas[0])
        v = _averaged(b, slots["exp_avg_sq"], b.map(Function.MUL, g, g), self.betas[1])
        scaled = b.map(Function.DIV, b.map(Function.SQRT, v), scalars["root"])
        step = b.map(Function.DIV, m, b.map(Function.ADD, scaled, self.eps))
        return b.map(Function.SUB, p, b.map(Function.MUL, step, scalars["rate"])), {"exp_avg": m, "exp_avg_sq": v}


def _corrected(rate: Rate, beta: Fraction, step: int) -> Real:
    """rate / (1 - beta^step), which grows with rate and with the power."""

    def enclose(bits: int) -> Ends:
        low, high = zip(ends(rate, bits), power(beta, step, bits), strict=True)
        return low[0] / (1 - low[1]), high[0] / (1 - high[1])

    return Real(enclose)


def _root(beta: Fraction, step: int) -> Real:
    """sqrt(1 - beta^step), between multiples of 2^-bits; exact if it is rational."""

    def enclose(bits: int) -> Ends:
        high, low = (1 - end for end in power(beta, step, bits))
        if low == high and (root := Fraction(isqrt(low.numerator), isqrt(low.denominator))) ** 2 == low:
            return root, root
        squares = [(end.numerator << 2 * bits) // end.denominator for end in (low, high)]
        return Fraction(isqrt(squares[0]), 1 << bits), Fraction(isqrt(squares[1]) + 1, 1 << bits)

    return Real(enclose)


def _complement(rate: Rate, decay: Fraction) -> Real:
    """1 - rate decay."""
    return Real(lambda bits: tuple(1 - end * decay for end in reversed(ends(rate, bits))))


#: Least value of a number of a group; torch checks it too, but only when an optimizer is created.
LEAST = {"lr": 0.0, "weight_decay": 0.0, "eps": 0.0, "momentum": 0.0, "dampening": -(2.0**127)}


def _check(name: str, group: Mapping[str, Any]) -> None:
    """Raise ProgramError unless torch accepts every number of a group."""
    for key, least in LEAST.items():
        if key in group and not least <= float(group[key]) < 2.0**127:
            raise ProgramError(f"{name} with {key} = {group[key]}: a number from {least:g} to 2^127 is expected")
    if not all(0 <= float(beta) < 1 for beta in group.get("betas", ())):
        raise ProgramError(f"{name} with betas = {group['betas']}: numbers of at least 0 and below 1 are expected")


def check_rates(optimizer: torch.optim.Optimizer) -> None:
    """Raise ProgramError unless each group's learning rate is a number."""
    for group in optimizer.param_groups:
        if "lr" in group and not isinstance(rate := group["lr"], int | float | torch.Tensor):
            raise ProgramError(
                f"{type(optimizer).__name__} with lr = {rate!r}: a number is expected; for a formula use a scheduler "
                "or the job's [schedule]"
            )


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raise ProgramError for a number that torch would refuse."""
    for group in optimizer.param_groups:
        _check(type(optimizer).__name__, group)


TORCHS = folders([str(Path(torch.__file__).parent)])
#: Methods that a subclass may override without changing the step.
HARMLESS = {"__init__", "__repr__", "state_dict", "load_state_dict", "add_param_group"}


def _sgd(group: Mapping[str, Any]) -> Rule:
    decay = float(group.get("weight_decay", 0.0))
    return SGD(float(group["momentum"]), float(group["dampening"]), decay, bool(group["nesterov"]))


def _adam(group: Mapping[str, Any], decoupled: bool) -> Rule:
    betas = (float(group["betas"][0]), float(group["betas"][1]))
    return Adam(betas, float(group["eps"]), float(group.get("weight_decay", 0.0)), decoupled)


#: The rule of a parameter group, by the optimizer's class; a subclass before its base.
RULES: dict[type[torch.optim.Optimizer], Callable[[Mapping[str, Any]], Rule]] = {
    torch.optim.AdamW: lambda group: _adam(group, True),
    torch.optim.Adam: lambda group: _adam(group, bool(group.get("decoupled_weight_decay"))),
    torch.optim.SGD: _sgd,
}


def _base(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer] | None:
    return next((base for base in RULES if isinstance(optimizer, base)), None)


def _unwrapped(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step inside torch's own wrappers."""
    return inspect.unwrap(step, stop=lambda f: not f.__code__.co_filename.startswith(TORCHS))


def has_rule(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is a plain optimizer of `RULES`. All others are played."""
    base = _base(optimizer)
    if base is None:
        return False
    kinds = type(optimizer).__mro__
    own = {name for kind in kinds[: kinds.index(base)] for name in vars(kind)}.union(vars(optimizer)) - {"step"}
    methods = {name for name in own - HARMLESS if callable(getattr(base, name, None))}
    step = _unwrapped(type(optimizer).step)
    files = {getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in base.__mro__}
    plain = step is _unwrapped(base.step) and step.__code__.co_filename in files  # not patched into torch's class
    if not plain or methods - {"__module__", "__doc__", "__getstate__", "__setstate__"}:
        return False
    return not any(group.get(key) for group in optimizer.param_groups for key in ("maximize", "amsgrad"))


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Rule:
    """The rule of one parameter group of an optimizer that has one."""
    base = _base(optimizer)
    assert base is not None
    return RULES[base](group)
