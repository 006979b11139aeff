"""Faults that are planted in rules, optimizers, clipping, averages and batches: validation finds each.

A fault of a rule multiplies one of its results by 1 + 2^-22, an ulp of binary32 or two: in binary32 it could not be
distinguished from rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from fault_tasks import IMAGES, WORDS, Words, checked, line, made, words
from torch import nn
from wide import of_many

import vgame.program.batches as batches
import vgame.program.frozen as frozen
import vgame.program.lower as lower
import vgame.program.optimizer_step as optimizer_step
import vgame.program.optimizers as optimizers
from vgame.arithmetic.functions import Function
from vgame.errors import ValidationError
from vgame.program.lowering import HANDLERS, conform, precision
from vgame.program.lowering.builder import Builder, Value
from vgame.tasks.task import Task

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
aten, MUL, ADD = torch.ops.aten, Function.MUL, Function.ADD
SLIGHTLY = 1 + 2.0**-22


# ---- faults ----


def moved(operator: Any, place: int | None = None, factor: float = SLIGHTLY) -> Any:
    """A rule whose result, or the one at a place, is a little larger."""
    rule = HANDLERS[operator]

    def wrong(b: Builder, *args: Any, **kwargs: Any) -> Any:
        found = rule(b, *args, **kwargs)
        if place is None:
            return b.map(MUL, found, factor)
        found = list(found)
        found[place] = found[place] and b.map(MUL, found[place], factor)
        return tuple(found)

    return patch.dict(HANDLERS, {operator: wrong})


def instead(operator: Any, rule: Callable[..., Any]) -> Any:
    return patch.dict(HANDLERS, {operator: rule})


def _bernoulli(b: Builder, x: Value, p: float = 0.5, **_: Any) -> Value:
    return RULES[aten.bernoulli.p](b, x, p + 0.125)


def _flipped(b: Builder, x: Value, dims: Any) -> Value:
    return x


def _rolled(b: Builder, x: Value, shifts: Any, dims: Any = ()) -> Value:
    return RULES[aten.roll.default](b, x, [-s for s in shifts], dims)


RULES, NARROWED = dict(HANDLERS), precision.narrowed

#: By name: the task, and the fault.
FAULTS: Mapping[str, tuple[Callable[[], Task], Any]] = {
    # rules, an ulp or two
    **{f"convolution_backward {n}": (IMAGES, moved(aten.convolution_backward.default, n)) for n in (0, 1, 2)},
    **{f"layer_norm_backward {n}": (WORDS, moved(aten.native_layer_norm_backward.default, n)) for n in (0, 1, 2)},
    **{f"group_norm_backward {n}": (IMAGES, moved(aten.native_group_norm_backward.default, n)) for n in (0, 1, 2)},
    **{
        f"{operator}": (IMAGES, moved(operator, place))
        for operator, place in {
            aten.convolution.default: None,
            aten.native_group_norm.default: 0,
            aten.avg_pool2d.default: None,
            aten.avg_pool2d_backward.default: None,
        }.items()
    },
    **{
        f"{operator} of words": (WORDS, moved(operator, place))
        for operator, place in {
            aten.native_layer_norm.default: 0,
            aten.embedding_dense_backward.default: None,
            aten.bmm.default: None,
            aten._softmax_backward_data.default: None,
            aten.gelu.default: None,
            aten.cumsum.default: None,
            aten.sigmoid.default: None,
            aten.amax.default: None,
            aten.pow.Tensor_Scalar: None,
            aten.randn_like.default: None,
        }.items()
    },
    # rules, another meaning
    "dropout keeps more": (WORDS, instead(aten.bernoulli.p, _bernoulli)),
    "roll the other way": (WORDS, instead(aten.roll.default, _rolled)),
    "flip does nothing": (WORDS, instead(aten.flip.default, _flipped)),
    "alpha is left out": (WORDS, instead(aten.add.Tensor, lambda b, x, y, alpha=1: RULES[aten.add.Tensor](b, x, y))),
}


# ---- which results are bfloat16 ----


def short(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"].bfloat16()).float(), batch["y"])


def region(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch["x"]), batch["y"])


def words_in_a_region(model: nn.Module, batch: Any) -> torch.Tensor:
    """Attention gives a second result in bfloat16, which nothing reads."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return words(model, batch)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))


SHORT, REGION = made(lambda: layers().bfloat16(), short, accumulate=2), made(layers, region, accumulate=2)


CASTS: Mapping[str, tuple[Callable[[], Task], Any]] = {
    f"{what}, {name}": (task, fault)
    for name, task in {"parameters": SHORT, "autocast": REGION}.items()
    for what, fault in {
        "no result is rounded": patch.object(conform, "narrowed", lambda b, value: value),
        "GELU is not rounded": patch.object(
            conform, "narrowed", lambda b, value: value if value.shape == (4, 8) else NARROWED(b, value)
        ),
    }.items()
}
CASTS |= {
    "new weights are not rounded": (SHORT, patch.object(lower, "narrowed", lambda b, value: value)),
    "a loss is rounded": (
        SHORT,
        instead(aten._log_softmax.default, lambda b, *a: NARROWED(b, RULES[aten._log_softmax.default](b, *a))),
    ),
}


# ---- optimizers, clipping, averages ----


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1)


def _updated(kind: type, change: Callable[..., Any]) -> Any:
    """An optimizer's rule with other numbers, or other operands."""
    rule = kind.update
    return patch.object(kind, "update", lambda self, *args: change(self, rule, *args))


def _changed(b: Builder, result: tuple[Value, dict[str, Value]], slot: str) -> tuple[Value, dict[str, Value]]:
    return result[0], result[1] | {slot: b.map(MUL, result[1][slot], SLIGHTLY)}


def _less(scalars: Mapping[str, Value], name: str) -> dict[str, Value]:
    return {key: value for key, value in scalars.items() if key != name}


def _later(rate: Any, beta: Any, step: int) -> Any:
    return CORRECTED(rate, beta, step + 1)


CORRECTED, RATE, SAMPLES = optimizers._corrected, lower.Plans.of, batches.rows_of
WORDS_OF, INITIAL, SCALAR = lower.as_words, optimizer_step.OptimizerStep.initial, lower._Lowering._scalar
AVERAGE, LOAD = lower._Lowering._average, lower._Lowering._load_batches


def _rows(b: Builder, task: Task, state: Any) -> Any:
    rows, position = SAMPLES(b, task, state)
    return b.map(Function.IMOD, b.map(Function.IADD, rows, 1), task.population), position


def _without_the_first(b: Builder, task: Task, state: Any) -> Any:
    """Sample 0, which step 3 is the first to read, is never read."""
    rows, position = SAMPLES(b, task, state)
    return b.map(Function.IMAX, rows, 1), position


def _read_on(b: Builder, task: Task, state: Any) -> Any:
    """The read position is one sample too late."""
    rows, position = SAMPLES(b, task, state)
    return rows, b.map(Function.IADD, position, 1)


def _words(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """One initial tensor is different."""
    return patch.object(lower, "as_words", lambda n, t: change(WORDS_OF(n, t)) if n == name else WORDS_OF(n, t))


def _one_sided(b: Builder, x: Value, low: Any = None, high: Any = None) -> Value:
    return RULES[aten.clamp.default](b, x, None, high)


def _without_epsilon(self: Any, gradients: Any, limit: float) -> Any:
    b = self.b
    norms = lower.stack(b, [self._awake(name, lower.vector_norm(b, g)) for name, g in gradients.items()])
    factor = b.map(Function.MIN, b.map(Function.DIV, limit, lower.vector_norm(b, norms)), 1.0)
    return {name: b.map(MUL, g, factor) for name, g in gradients.items()}


def _decaying() -> Task:
    task = line()()
    return replace(task, schedulers=[torch.optim.lr_scheduler.ExponentialLR(task.optimizer, 0.9)])


def _stairs() -> Task:
    task = line()()
    return replace(task, schedulers=[torch.optim.lr_scheduler.MultiStepLR(task.optimizer, [5, 15], 0.1)])


def _later_by_one(first: int) -> Any:
    """The rates of the steps from `first` on are those of the step before."""
    rates = lambda plan: [lambda t, r=r: r(t - 1 if t >= first else t) for r in plan.rates]  # noqa: E731
    return patch.object(lower.Plans, "of", lambda *a: replace(plan := RATE(*a), rates=rates(plan)))


def _averaged(self: Any, name: str, column: Any, exact: Any = None) -> Value:
    """The share of the last step is different."""
    if name == "average":
        column[-1], exact = 0.5, None
    return SCALAR(self, name, column, exact)


STEPS: Mapping[str, tuple[Callable[[], Task], Any]] = {
    "the weights in another order": (line(), _words("weight", lambda t: t.flip(0))),
    "a buffer of other numbers": (IMAGES, _words("batch.running_var", lambda t: t * SLIGHTLY)),
    "a count that begins elsewhere": (IMAGES, _words("batch.num_batches_tracked", lambda t: t + 1)),
    "the first sample is not the first": (line(order="sequential"), _words("data.position", lambda t: t + 1)),
    "slots that begin elsewhere": (
        line(lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1)),
        patch.object(
            optimizer_step.OptimizerStep, "initial", lambda self, s: {k: t * 1.5 for k, t in INITIAL(self, s).items()}
        ),
    ),
    "no momentum is kept": (
        line(momentum),
        patch.multiple(
            optimizers.SGD, slots=(), update=lambda self, b, p, g, slots, s: (b.map(ADD, p, b.map(MUL, g, -0.1)), {})
        ),
    ),
    "samples in order, read on one further": (line(order="sequential"), patch.object(lower, "rows_of", _read_on)),
    "streams, read on one further": (line(order="streams"), patch.object(lower, "rows_of", _read_on)),
    "a list, read on one further": (line(order=[3, 1, 2, 8, 5]), patch.object(lower, "rows_of", _read_on)),
    "the milestones a step late": (_stairs, _later_by_one(6)),
    "the last milestone a step late": (_stairs, _later_by_one(16)),
    "the last share of an average": (line(average="equal"), patch.object(lower._Lowering, "_scalar", _averaged)),
    "clipping parts that are frozen later": (
        line(clip=0.1, frozen={"bias": (5, 6)}),
        patch.object(lower._Lowering, "_awake", lambda self, name, norm: norm),
    ),
    "adam, epsilon": (line(adam), _updated(optimizers.Adam, lambda s, f, *a: f(replace(s, eps=s.eps * 1.001), *a))),
    "adam, betas": (line(adam), _updated(optimizers.Adam, lambda s, f, *a: f(replace(s, betas=s.betas[::-1]), *a))),
    "adam, decay": (line(adam), _updated(optimizers.Adam, lambda s, f, *a: f(s, *a[:-1], _less(a[-1], "keep")))),
    "adam, a slot": (line(adam), _updated(optimizers.Adam, lambda s, f, b, *a: _changed(b, f(s, b, *a), "exp_avg_sq"))),
    "adam, a step later": (line(adam), patch.object(optimizers, "_corrected", _later)),
    "sgd, dampening": (line(momentum), _updated(optimizers.SGD, lambda s, f, *a: f(s, *a[:-1], _less(a[-1], "share")))),
    "sgd, nesterov": (line(momentum), _updated(optimizers.SGD, lambda s, f, *a: f(replace(s, nesterov=True), *a))),
    "sgd, decay": (line(momentum), _updated(optimizers.SGD, lambda s, f, *a: f(replace(s, decay=0.0), *a))),
    "sgd, momentum": (
        line(momentum),
        _updated(optimizers.SGD, lambda s, f, b, *a: _changed(b, f(s, b, *a), "momentum")),
    ),
    "as written, a value": (
        line(lambda p: torch.optim.Adamax(p, lr=0.1)),
        patch.dict(optimizer_step.WITH_TENSORS, {"addcdiv": lambda x, a, b, value=1: x + a / b * value * SLIGHTLY}),
    ),
    "as written, one form": (
        line(torch.optim.RAdam),
        patch.object(optimizer_step.OptimizerStep, "_chosen", lambda self, n: self.column("c", _ones(self), None)),
    ),
    "rates of the step before": (
        _decaying,
        patch.object(lower.Plans, "of", lambda *a: _before(RATE(*a))),
    ),
    "clipping without 1e-6": (line(clip=0.01), patch.object(lower._Lowering, "_clipped", _without_epsilon)),
    "clipping on one side": (line(clip_value=0.01), patch.object(lower, "clamp", _one_sided)),
    "clipping frozen parts": (
        line(clip=0.1, frozen={"bias": 3}),
        patch.object(lower._Lowering, "_awake", lambda self, name, norm: norm),
    ),
    "frozen a step longer": (
        line(adam, frozen={"bias": 3}),
        patch.object(frozen, "_steps", lambda pattern, steps: range(1, 5)),
    ),
    "frozen a step late": (
        line(adam, frozen={"bias": (3, 4)}),
        patch.object(frozen, "_steps", lambda pattern, steps: range(4, 5)),
    ),
    "a sample that is never read": (line(), patch.object(lower, "rows_of", _without_the_first)),
    "average": (
        line(average=0.9),
        patch.object(lower._Lowering, "_average", lambda self, a, t: AVERAGE(self, 0.9001, t)),
    ),
    "samples, one further": (line(), patch.object(lower, "rows_of", _rows)),
    "samples in order, one further": (line(order="sequential"), patch.object(lower, "rows_of", _rows)),
    "rows of the batch before": (
        line(accumulate=2),
        patch.object(lower._Lowering, "_load_batches", lambda self: [LOAD(self)[0]] * 2),
    ),
}  # fmt: skip


def _ones(step: Any) -> Any:
    import numpy as np

    return np.ones(len(step.played.which), np.float32)


def _before(plan: Any) -> Any:
    return replace(plan, rates=[lambda t, rate=rate: rate(max(t - 1, 1)) for rate in plan.rates])


ALL = {**FAULTS, **CASTS, **STEPS}


RIGHT = {
    "images": IMAGES,
    "words": WORDS,
    "adam": line(adam),
    "sgd": line(momentum),
    "bfloat16": SHORT,
    "autocast": REGION,
    "attention under autocast": made(Words, words_in_a_region),
}


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_without_a_fault_nothing_is_found(make: Callable[[], Task]) -> None:
    assert checked(make).complete


@pytest.mark.parametrize(
    "name",
    of_many(
        ALL,
        "roll the other way",
        "adam, epsilon",
        "samples, one further",
        "aten.convolution.default",
        "GELU is not rounded, autocast",
        "no momentum is kept",
    ),
)
def test_a_fault_is_found(name: str) -> None:
    make, fault = ALL[name]
    with ExitStack() as stack:
        stack.enter_context(fault)
        with pytest.raises(ValidationError, match="differs in the stage"):
            checked(make)
