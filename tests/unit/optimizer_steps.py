"""An optimizer in torch's loop in binary64, and the same one as a program in exact binary32."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatch

import torch
from torch import nn

from vgame.arithmetic.reference.philox import shuffle_index
from vgame.execute.executor import Executor
from vgame.program.lower import Lowered, lower_task
from vgame.program.schedule import Schedule
from vgame.program.validate import validate
from vgame.tasks.task import Task
from vgame.validation.report import Order
from vgame.validation.steps import validate as compare_with_task

SEED, STEPS, BATCH = 11, 20, 16


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 3))


def equal_layers() -> nn.Module:
    """Parameters of one shape."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(64, 6, generator=generator),
        "y": torch.randint(0, 3, (64,), generator=generator),
    }


def loss(model: nn.Module, batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def validated(
    make: Callable, schedulers: Callable = lambda o: (), build: Callable[[], nn.Module] = network, steps: int = STEPS
) -> None:
    """`compare`, and vgame's own comparison of the program with the task."""
    compare(make, schedulers, build)
    model = build()
    optimizer = make(model.parameters())
    task = Task(model, loss, optimizer, data(), BATCH, schedulers=schedulers(optimizer))
    program = lower_task(task, None, steps)
    report = compare_with_task(Order(task, program, program.state, None, SEED, steps), 200.0)
    assert not report.unchecked


def lowered(
    make: Callable,
    schedulers: Callable = lambda o: (),
    schedule: Schedule | None = None,
    steps=STEPS,
    build: Callable[[], nn.Module] = network,
    **options,
) -> Lowered:
    model = build()
    optimizer = make(model.parameters())
    task = Task(model, loss, optimizer, data(), BATCH, schedulers=schedulers(optimizer), **options)
    program = lower_task(task, schedule, steps)
    validate(program.program, [(t.numel(), not t.is_floating_point()) for t in program.data], steps)
    return program


def compare(
    make: Callable,
    schedulers: Callable = lambda o: (),
    build: Callable[[], nn.Module] = network,
    frozen: dict | None = None,
    clip: float | None = None,
) -> None:
    """Losses within 1e-6 of torch's loop in binary64, parameters within a few roundings. `make` gives one optimizer or
    a list."""
    program = lowered(make, schedulers, build=build, frozen=frozen or {}, clip=clip)
    executor = Executor(program.program, program.data, program.scalars, SEED)
    state = executor.initial(program.state)
    model = build().double()
    made = make(model.parameters())
    optimizers, followers = made if isinstance(made, list) else [made], schedulers(made)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(1, STEPS + 1):
        result = executor.step(step, state)
        state = result.state
        for name, p in model.named_parameters():  # as a user's loop freezes and thaws
            p.requires_grad_(not any(fnmatch(name, k) and step <= last for k, last in (frozen or {}).items()))
            p.grad = None
        wanted = loss(model, batch_of(step))
        wanted.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for each in (*optimizers, *followers):
            each.step()
        assert math.isclose(float(result.loss), float(wanted.detach()), rel_tol=1e-6), step
    names = [label.name for label in program.program.labels.state]
    for name, p in model.named_parameters():
        ours = state[names.index(name)].view(p.shape).double()
        assert (ours - p.detach()).abs().max() <= 5e-6, name
        assert (p.detach() - start[name]).abs().max() > 1e-4, f"{name} is not trained, so nothing is tested"


def batch_of(step: int) -> dict[str, torch.Tensor]:
    chosen = torch.tensor([shuffle_index(SEED, step, e, BATCH, 64) for e in range(BATCH)])
    return {"x": data()["x"][chosen].double(), "y": data()["y"][chosen]}
