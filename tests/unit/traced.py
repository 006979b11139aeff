"""Torch models compared with their lowered programs: the same steps in binary64 by torch and in exact binary32 by the
executor.

Here, and only here, a relative tolerance is right: torch is not exact; the programs' bits are checked against the
reference elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vgame.arithmetic.reference.philox import shuffle_index
from vgame.execute.executor import Executor
from vgame.program.lower import Lowered, lower_task
from vgame.program.lowering import graph
from vgame.program.schedule import Schedule, to_binary32
from vgame.program.validate import validate
from vgame.tasks.task import Batch, Task

SEED, TOLERANCE = 11, 1e-4
EXERCISED: set[Any] = set()  # ATen operators whose handlers have run

Loss = Callable[[nn.Module, Batch], torch.Tensor]


def weighted(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Sum of the output's elements with weights that are all different; the model keeps its output in a buffer."""
    output = model(*batch.values())
    weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view(output.shape)
    return (output * weights).sum()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Parameter = parameter - gradient."""
    return torch.optim.SGD(parameters, lr=1.0)


@dataclass(frozen=True)
class Case:
    """A model factory and its data [samples, ...]; by default one step whose update is the gradient."""

    model: Callable[[], nn.Module]
    data: Callable[[], Mapping[str, torch.Tensor]]
    loss: Loss = weighted
    optimizer: Callable[[Any], torch.optim.Optimizer] = sgd
    schedule: Schedule = field(default_factory=lambda: Schedule(lr="1"))
    steps: int = 1
    batch: int = 4
    recorded: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)  # of the Task


class Recorded(nn.Module):
    """A model that keeps its last output in a buffer, so that the output becomes state."""

    def __init__(self, model: nn.Module, output: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("output", torch.zeros_like(output.detach()))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        output = self.model(*inputs)
        self.output.copy_(output.detach())
        return output


def make(case: Case) -> Task:
    """The case's task, with a model that records its output; deterministic."""
    torch.manual_seed(0)
    data = dict(case.data())
    model = case.model().train()
    if case.recorded:
        with torch.no_grad():
            model = Recorded(model, copy.deepcopy(model)(*(t[: case.batch] for t in data.values())))
    return Task(model, case.loss, case.optimizer(model.parameters()), data, case.batch, **case.options)


@contextmanager
def noting_handlers() -> Iterator[None]:
    """Record the handlers that run in EXERCISED."""

    class Noted(dict):
        def get(self, key: Any, default: Any = None) -> Any:
            if key in self:
                EXERCISED.add(key)
            return super().get(key, default)

    before = graph.HANDLERS
    graph.HANDLERS = Noted(before)
    try:
        yield
    finally:
        graph.HANDLERS = before


def lowered(case: Case) -> Lowered:
    """The program of a case, validated."""
    with noting_handlers():
        result = lower_task(make(case), case.schedule, case.steps)
    validate(result.program, [(t.numel(), not t.is_floating_point()) for t in result.data], case.steps)
    return result


def executed(case: Case, program: Lowered) -> tuple[dict[str, torch.Tensor], list[float]]:
    """State by name after the case's steps, and the losses."""
    executor = Executor(program.program, program.data, program.scalars, SEED)
    state, losses = executor.initial(program.state), []
    for step in range(1, case.steps + 1):
        result = executor.step(step, state)
        assert result.not_finite is None, program.program.operator_name(result.not_finite)
        state = result.state
        losses.append(float(result.loss))
    labels = program.program.labels.state
    return {l.name: t.reshape(l.shape) for l, t in zip(labels, state, strict=True)}, losses


def by_torch(case: Case) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The same in binary64 by torch, on the same batches; the optimizer's slots go by `slot.parameter`."""
    task = make(case)
    model, optimizer = task.model.double(), task.optimizer
    factors = [g["lr"] / optimizer.param_groups[0]["lr"] for g in optimizer.param_groups]
    losses = []
    for step in range(1, case.steps + 1):
        for group, factor in zip(optimizer.param_groups, factors, strict=True):
            group["lr"] = float(to_binary32(case.schedule.rate(step, case.steps))) * factor
        optimizer.zero_grad()
        losses.append(0.0)
        for batch in batches_of(task, step):
            loss = task.loss(model, batch) / task.accumulate
            losses[-1] += float(loss.detach())  # before the step: a loss may be a parameter
            loss.backward()
        if task.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
    names = {id(p): n for n, p in model.named_parameters()}
    slots = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for parameter, values in optimizer.state.items():
        state |= {f"{slots[k]}.{names[id(parameter)]}": v for k, v in values.items() if k in slots and v is not None}
    return {name: t.detach() for name, t in state.items()}, losses


def batches_of(task: Task, step: int) -> Iterator[dict[str, torch.Tensor]]:
    """The batches of a step, in binary64."""
    count = task.batch * task.accumulate
    chosen = torch.tensor([shuffle_index(SEED, step, e, count, task.population) for e in range(count)])
    for indices in chosen.split(task.batch):
        yield {name: t.double() if t.is_floating_point() else t for name, t in task.samples(indices).items()}


def compare(case: Case) -> Lowered:
    """Losses, updates of the state (so gradients) and recorded outputs agree; the program."""
    program = lowered(case)
    (state, losses), (wanted, wanted_losses) = executed(case, program), by_torch(case)
    initial = {l.name: t.view(l.shape) for l, t in zip(program.program.labels.state, program.state, strict=True)}
    assert set(state) == set(wanted) == set(initial)
    for name, tensor in wanted.items():
        close(name, state[name], tensor, initial[name])
    moved = max(float((wanted[n].double() - initial[n]).abs().max()) for n in wanted if not n.endswith("output"))
    assert moved > 1e-3, "nothing is trained, so nothing is tested"
    for step, (a, b) in enumerate(zip(losses, wanted_losses, strict=True), 1):
        close(f"loss of step {step}", torch.tensor(a), torch.tensor(b), torch.zeros(()))
    return program


def close(name: str, actual: torch.Tensor, wanted: torch.Tensor, before: torch.Tensor) -> None:
    """The changes since `before` differ by at most TOLERANCE of the largest, and by a rounding or two of the values."""
    assert actual.shape == wanted.shape, name
    if torch.equal(actual.double(), wanted.double()):  # infinities too
        return
    actual, wanted, before = actual.double(), wanted.double(), before.double()
    error, change = (float(x.abs().max()) for x in (actual - wanted, wanted - before))
    rounding = 2.0**-22 * float(before.abs().max()) + 1e-6
    assert error <= TOLERANCE * change + rounding, f"{name} is off by {error:.3g}; it changes by {change:.3g}"


# ---- parts of models ----


class On(nn.Module):
    """function(a * x, ...) with a trained factor of x's shape (without the batch): its gradient is the function's."""

    def __init__(self, shape: tuple[int, ...], function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.a = nn.Parameter(1 + 0.2 * torch.randn(shape))
        self.function = function

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return self.function(self.a * x, *others)


def on(shape: tuple[int, ...], function: Callable[..., torch.Tensor], scale: float = 1.0) -> Case:
    """A function of normal data of this shape."""
    return Case(lambda: On(shape, function), lambda: {"x": scale * torch.randn(10, *shape)})


def over(model: Callable[[], nn.Module], *shape: int, **fields: Any) -> Case:
    """A module over normal data of this shape, behind a trained factor (so its input's gradient counts too)."""
    return Case(
        lambda: nn.Sequential(On(shape, lambda x: x), model()), lambda: {"x": torch.randn(10, *shape)}, **fields
    )
