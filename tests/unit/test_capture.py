"""What a capture refuses, in one sentence each; that it is deterministic; that parts of tasks mean what torch means."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from vgame.errors import DataError, ProgramError, UnsupportedOperators
from vgame.execute.executor import Executor
from vgame.program.lower import Lowered, lower_task
from vgame.program.operators import Philox, RefClass
from vgame.program.schedule import Schedule
from vgame.tasks.task import Batch, Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Made(nn.Module):
    """A linear layer, then whatever."""

    def __init__(self, then: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(3, 3), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self, self.first(x))


def squares(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch["x"]).square().mean()


def lowered(model: nn.Module, data: Mapping[str, torch.Tensor] | None = None, loss=squares, **options) -> Lowered:
    data = data if data is not None else {"x": torch.ones(8, 3)}
    task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, **{"batch": 4, **options})
    return lower_task(task, Schedule(lr="0.1"), 2)


# ---- models that cannot be captured ----


def _by_value(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def _by_mixture(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Data written into what was a constant, through a view of it."""
    constant = torch.zeros(3)
    part = constant[:2]
    part.copy_(x[0, :2])
    return x if constant.sum() > 0 else -x


def _write_parameter(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.first.weight.mul_(0.9)
    return x


def _set_data(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.first.weight.data = model.first.weight.data.clamp(-0.1, 0.1)
    return x


def _write_data(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.first.weight.data.mul_(0.9)
    return x


def _set_memory(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.first.weight.data.set_(model.first.weight.detach() * 0.9)
    return x


def _new_parameter(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.first.weight = nn.Parameter(torch.ones(3, 3))
    return x


def _new_buffer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(model, "c"):
        model.register_buffer("c", torch.ones(3))
    return x * model.c


def _by_list(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Data written into what was a constant, by an operator on lists."""
    constant = torch.zeros(4, 3)
    torch._foreach_add_([constant], [x.detach()])
    return x if constant.sum() > 0 else -x


def _checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: F.dropout(x * x, 0.5), x, use_reentrant=False)


REFUSED = {
    "a branch on a value": (_by_value, "decides by the values of its tensors"),
    "a branch on data in a constant": (_by_mixture, "decides by the values of its tensors"),
    "a branch on a random number": (
        lambda m, x: x if torch.rand(()) < 0.5 else -x,
        "decides by the values of its tensors",
    ),
    "a branch on a random number that was written to": (
        lambda m, x: x if torch.rand(()).mul_(2) < 1 else -x,
        "decides by the values of its tensors",
    ),
    "a number read from a tensor": (lambda m, x: x * x.max().item(), "decides by the values of its tensors"),
    "a selection whose size is data": (lambda m, x: x[x > 0], "decides by the values of its tensors"),
    "a loop until": (
        lambda m, x: [x := x / 2 for _ in iter(lambda: bool(x.norm() > 1), False)][-1],
        "decides by the values",
    ),
    "a parameter that is written to": (_write_parameter, "writes to its parameters first.weight"),
    "a parameter whose data is another tensor": (_set_data, r"sets .data of a tensor, torch.float32 (3, 3)"),
    "a parameter whose data is written to": (_write_data, "writes to its parameters first.weight"),
    "a parameter whose memory is another": (_set_memory, "sets the memory of a tensor"),
    "a parameter that is made anew": (_new_parameter, "makes its parameters first.weight in the forward pass"),
    "a buffer that is made in the forward pass": (_new_buffer, "makes its buffers c in the forward pass"),
    "a branch on data in a list": (_by_list, "decides by the values of its tensors"),
    "a random number of the backward pass": (_checkpointed, "the backward pass draws random numbers (aten.bernoulli"),
    "half precision inside": (lambda m, x: x.half().float(), "float16 is not supported"),
    "brain floats inside": (lambda m, x: x.bfloat16().float(), "bfloat16 is not supported"),
    "double precision inside": (lambda m, x: x.double().float(), "float64 is not supported"),
    "shapes that do not fit": (lambda m, x: x @ torch.ones(5, 2), "fails while it is traced: RuntimeError"),
    "a device that is not there": (lambda m, x: x.to("cuda"), "fails while it is traced"),
    "no gradient at all": (lambda m, x: x.detach(), "fails while it is traced"),
}


@pytest.mark.parametrize(("then", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_cannot_be_captured_is_refused_in_one_sentence(then, expected: str) -> None:
    with pytest.raises(ProgramError) as caught:
        lowered(Made(then))
    message = str(caught.value)
    assert expected in message and "\n" not in message and len(message) < 400


class Holding(nn.Module):
    """A linear layer and a buffer, a plain tensor, a number, nothing, containers and an object, which `then` may change."""

    def __init__(self, then: Callable[[nn.Module, torch.Tensor], None]) -> None:
        super().__init__()
        self.first, self.then = nn.Linear(3, 3), then
        self.register_buffer("held", torch.ones(3))
        self.plain, self.number, self.nothing = torch.ones(3), 1, None
        self.list, self.table, self.object = [], {}, SimpleNamespace(n=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        self.then(self, y)
        return y * self.held * self.plain * self.number


def _count(model: nn.Module, y: torch.Tensor) -> None:
    model.number += 1


def _begun(model: nn.Module, y: torch.Tensor) -> None:
    model.nothing = y.detach() if model.nothing is None else 0.9 * model.nothing + 0.1 * y.detach()
    y.sub_(model.nothing)


def _made(model: nn.Module, y: torch.Tensor) -> None:
    y.add_(getattr(model, "state", 0.0))
    model.state = y.detach()


def _stale(model: nn.Module, y: torch.Tensor) -> None:
    if not hasattr(model, "state"):
        model.state = model.first.weight.detach() * 2
    y.mul_(model.state.sum())


def _drawn_once(model: nn.Module, y: torch.Tensor) -> None:
    if model.nothing is None:
        model.nothing = torch.rand(3)
    y.mul_(model.nothing)


def _grown(model: nn.Module, y: torch.Tensor) -> None:
    model.nothing = torch.zeros(()) if model.nothing is None else model.nothing + 1
    y.mul_(model.nothing)


def _average(held: list, y: torch.Tensor) -> None:
    """The mean of the last two outputs."""
    held.append(y.detach())
    y.sub_(torch.stack(held[-2:]).mean(0))


def _looked_up(model: nn.Module, y: torch.Tensor) -> None:
    y.add_(model.table.get("state", 0.0))
    model.table["state"] = y.detach()


def _warm(model: nn.Module, y: torch.Tensor) -> None:
    with torch.set_grad_enabled(model.nothing is not None):
        y.mul_(model.first.bias)
    model.nothing = True


CHANGED = {
    "a buffer of another shape": (
        lambda m, y: setattr(m, "held", y.detach().mean().reshape(1)),
        r"replaces its buffer held, torch.float32 \(3,\), by torch.float32 \(1,\)",
    ),
    "a buffer of another type": (
        lambda m, y: setattr(m, "held", m.held > 0),
        r"replaces its buffer held, torch.float32 \(3,\), by torch.bool",
    ),
    "a plain tensor": (lambda m, y: setattr(m, "plain", m.plain * 0.5), "changes its attributes plain in the forward"),
    "a plain tensor in place": (lambda m, y: m.plain.mul_(0.5), "writes to a tensor that is no buffer"),
    "a part of a plain tensor": (
        lambda m, y: m.plain.split(1)[0].add_(y.detach().mean()),
        "writes to a tensor that is",
    ),
    "a counter": (_count, "changes its attributes number in the forward pass; make them buffers"),
    "a state that begins as nothing": (_begun, "changes its attributes nothing in the forward pass; make them buffers"),
    "a state that does not exist at first": (_made, "changes its attributes state in the forward"),
    "a parameter that was read at the first step": (_stale, "changes its attributes state in the forward"),
    "a mask that was drawn at the first step": (_drawn_once, "changes its attributes nothing in the forward"),
    "a constant that grows": (_grown, "changes its attributes nothing in the forward"),
    "tensors in a list": (lambda m, y: _average(m.list, y), r"changes its attributes list.1 in the forward"),
    "a tensor in a dictionary": (_looked_up, r"changes its attributes table.state in the forward"),
    "a counter in a list": (lambda m, y: m.list.append(1), r"changes its attributes list.1 in the forward"),
    "a counter in an object": (
        lambda m, y: m.object.__dict__.update(n=m.object.n + 1),
        "changes its attributes object.n in",
    ),
    "a first call without gradients": (_warm, "changes its attributes nothing in the forward"),
    "a state that no module holds": (lambda m, y: _average(ELSEWHERE, y), "changes what is outside its modules"),
    "a number of Python's random": (
        lambda m, y: y.mul_(random.random()),
        "draws numbers of Python's random or of NumPy",
    ),
    "a number of NumPy's random": (
        lambda m, y: y.mul_(np.random.rand()),
        "draws numbers of Python's random or of NumPy",
    ),
}
ELSEWHERE: list[torch.Tensor] = []


@pytest.mark.parametrize(("then", "expected"), CHANGED.values(), ids=CHANGED)
def test_what_a_program_would_not_carry_to_the_next_step_is_refused(then, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(Holding(then))


def _penalised() -> tuple[nn.Module, Callable]:
    """A loss that knows the parameters as a list."""
    model = Made(lambda m, x: x)
    parameters = list(model.parameters())
    return model, lambda m, b: squares(m, b) + sum(p.square().sum() for p in parameters)


def _with(then: Callable, prepare: Callable[[nn.Module], object]) -> tuple[nn.Module, Callable]:
    model = Made(then)
    prepare(model)
    return model, squares


def _two_buffers(then: Callable) -> tuple[nn.Module, Callable]:
    model = Made(then)
    model.register_buffer("a", torch.ones(4))
    model.register_buffer("b", model.a[1:])
    return model, squares


def _scaled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * model.other.sum()


ALIASES = {
    "parameters in a list": (_penalised, r"first.(weight|bias) and what loss reads share memory"),
    "a parameter in a list": (
        lambda: _with(lambda m, x: x * m.list[0].sum(), lambda m: setattr(m, "list", [m.first.weight])),
        r"first.weight and what \(model\) reads share memory",
    ),
    "a parameter's data": (
        lambda: _with(_scaled, lambda m: setattr(m, "other", m.first.weight.data[1])),
        r"first.weight and what \(model\) reads share memory",
    ),
    "a parameter of a parameter": (
        lambda: _with(_scaled, lambda m: setattr(m, "other", nn.Parameter(m.first.weight))),
        r"(first.weight and other|other and first.weight) share memory",
    ),
    "a part of a buffer that is written to": (
        lambda: _two_buffers(lambda m, x: x * m.a.add_(1)[:3] * m.b),
        "a and b share memory that a step changes",
    ),
    "a part of a buffer that stays": (lambda: _two_buffers(lambda m, x: x * m.a[:3] * m.b), None),
    "a frozen parameter": (
        lambda: _with(_scaled, lambda m: setattr(m, "other", m.first.weight.requires_grad_(False).data)),
        None,
    ),
    "the same parameter": (lambda: _with(_scaled, lambda m: setattr(m, "other", m.first.weight)), None),
}


@pytest.mark.parametrize(("make", "expected"), ALIASES.values(), ids=ALIASES)
def test_what_a_step_changes_has_one_tensor(make, expected: str | None) -> None:
    model, loss = make()
    if expected is None:
        assert lowered(model, loss=loss).program.operators
    else:
        with pytest.raises(ProgramError, match=expected):
            lowered(model, loss=loss)


def _kept(model: nn.Module, y: torch.Tensor) -> None:
    """Caches of constants, shapes and masks, lists that are emptied, losses and outputs to look at."""
    if model.nothing is None:
        model.nothing = (torch.arange(3) * 0.1).cos()
    model.table.setdefault(tuple(y.shape), torch.ones(3, 3).tril()[1].detach())
    model.list.clear()
    model.list.append(y.mean())
    model.last, model.object.n, model.number = y, y.shape[0], 5
    y.mul_(model.nothing * model.table[tuple(y.shape)]).add_(sum(model.list) * model.object.n)


def test_what_every_step_makes_or_finds_the_same_is_not_carried() -> None:
    model = Holding(_kept)
    first = lowered(model)
    assert (model.nothing, model.number, model.list, model.table) == (None, 1, [], {}) and model.object.n == 1
    assert lowered(model).program.root == first.program.root


def test_what_is_made_anew_at_every_step_is_not_carried() -> None:
    def then(model: nn.Module, y: torch.Tensor) -> None:
        model.plain, model.nothing = torch.full((3,), 2.0), y

    model = Holding(then)
    before = dict(vars(model))
    assert lowered(model).program.operators
    assert all(vars(model)[name] is value for name, value in before.items())


def _halved(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


class Signs(torch.optim.SGD):
    """SGD by name only."""

    def step(self, closure=None) -> None:
        """Another step."""


class Renamed(torch.optim.AdamW):
    """AdamW with another constructor."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, lr=1.0)


def _used(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


Momentum = partial(torch.optim.SGD, lr=1.0, momentum=0.9)
HANGING = {
    "a hook on a gradient": (Momentum, lambda m, o: m.first.weight.register_hook(_halved), "first.weight has a hook"),
    "a hook behind a gradient": (
        Momentum,
        lambda m, o: m.first.bias.register_post_accumulate_grad_hook(lambda p: None),
        "first.bias has a hook",
    ),
    "a hook before the step": (
        Momentum,
        lambda m, o: o.register_step_pre_hook(lambda *_: None),
        "has hooks on its step",
    ),
    "a hook behind the step": (
        Momentum,
        lambda m, o: o.register_step_post_hook(lambda *_: None),
        "has hooks on its step",
    ),
    "a step of its own": (
        Momentum,
        lambda m, o: setattr(o, "__class__", Signs),
        "Signs has a step of its own; use torch.optim.SGD",
    ),
    "a learning rate scheduler": (
        Momentum,
        lambda m, o: torch.optim.lr_scheduler.StepLR(o, 1),
        "the job's schedule sets the rates",
    ),
    "momentum": (Momentum, lambda m, o: _used(o), "SGD already holds momentum_buffer"),
    "moments": (torch.optim.Adam, lambda m, o: _used(o), "Adam already holds exp_avg, exp_avg_sq, step"),
    "parameters from elsewhere": (
        Momentum,
        lambda m, o: o.add_param_group({"params": [nn.Parameter(torch.ones(4))]}),
        r"trains 1 tensors that are no parameters of the model, the first of shape \(4,\)",
    ),
}


@pytest.mark.parametrize(("optimizer", "hang", "expected"), HANGING.values(), ids=HANGING)
def test_what_hangs_on_parameters_and_optimizer_is_refused(optimizer, hang, expected: str) -> None:
    model = Made(lambda m, x: x)
    task = Task(model, squares, optimizer(model.parameters()), {"x": torch.ones(8, 3)}, 4)
    assert lower_task(task, Schedule(lr="0.1"), 1).program.operators
    hang(model, task.optimizer)
    with pytest.raises(ProgramError, match=expected):
        lower_task(task, Schedule(lr="0.1"), 1)


def test_an_optimizer_with_another_constructor_is_itself() -> None:
    model = Made(lambda m, x: x)
    task = Task(model, squares, Renamed(model.parameters()), {"x": torch.ones(8, 3)}, 4)
    assert lower_task(task, Schedule(lr="0.1"), 1).program.operators


def _random_operators(program: Lowered) -> int:
    return sum(isinstance(operator, Philox) for operator in program.program.operators)


def test_a_comparison_of_random_numbers_with_their_limit_is_a_tensor() -> None:
    model = Made(lambda m, x: x * (torch.rand(4, 3) < 1).float() + (torch.rand(4, 3) < 0.0).float())
    assert _random_operators(lowered(model)) == 0
    assert _random_operators(lowered(Made(lambda m, x: x * (torch.rand(4, 3).mul_(2) < 1)))) == 1
    assert _random_operators(lowered(Made(lambda m, x: x if torch.rand(()) < 1.0 else x[:0]))) == 0


class Twice(nn.Module):
    """A normalised layer, which is computed again for the gradients if `again`."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.part = again, nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=False) if self.again else self.part(x)


def test_a_checkpointed_part_is_computed_as_without_it() -> None:
    states = []
    for again in (False, True):
        torch.manual_seed(0)
        program = lowered(Twice(again), {"x": torch.arange(24.0).view(8, 3).sin()})
        executor = Executor(program.program, program.data, program.scalars, 1)
        state = executor.initial(program.state)
        for step in (1, 2):  # the parameters of the second step are not those of the capture
            state = executor.step(step, state).state
        states.append(state)
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert not torch.equal(states[0][0], program.state[0])


def _running_mean(model: nn.Module) -> bool:
    """Whether a step moves it."""
    program = lowered(model)
    names = [label.name for label in program.program.labels.state]
    sources = [s for s, name in zip(program.program.sources, names, strict=True) if name == "1.running_mean"]
    return sources[0].ref.cls is not RefClass.STATE


def test_modules_keep_their_modes() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert _running_mean(model)
    model[1].eval()
    assert not _running_mean(model)
    assert [m.training for m in model.modules()] == [True, True, False]
    assert _running_mean(model.eval()), "a model in evaluation mode as a whole is trained"
    assert [m.training for m in model.modules()] == [False, False, False]


def test_every_unsupported_operator_is_named_with_its_modules() -> None:
    model = nn.Sequential(
        Made(lambda m, x: torch.fft.fft(x).real),
        Made(lambda m, x: torch.linalg.inv(x[:3])),
        Made(lambda m, x: x.lgamma()),
    )
    with pytest.raises(UnsupportedOperators) as caught:
        lowered(model)
    found = caught.value.found
    modules = {where for places in found.values() for where in places}
    assert {"0", "1", "2"} <= modules
    assert any("fft" in what for what in found) and any("linalg" in what for what in found), found
    assert "aten.lgamma.default in 2" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_parameters_of_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ProgramError, match=rf"first.weight is {dtype}; vgame trains in float32"):
        lowered(Made(lambda m, x: x).to(dtype))


def test_a_model_on_another_device_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"first.weight is on the device meta"):
        lowered(Made(lambda m, x: x).to("meta"))


@pytest.mark.parametrize("loss", [lambda m, b: m(b["x"]), lambda m, b: (m(b["x"]) > 0).sum()], ids=["shape", "type"])
def test_a_loss_is_one_float(loss) -> None:
    with pytest.raises(ProgramError, match=r"the loss has shape .* one float32 is expected"):
        lowered(Made(lambda m, x: x), loss=loss)


def test_optimizers_that_are_not_known_are_refused() -> None:
    model = Made(lambda m, x: x)
    for optimizer, name in (
        (torch.optim.RMSprop(model.parameters()), "RMSprop"),
        (torch.optim.Adagrad(model.parameters()), "Adagrad is not supported; SGD, Adam and AdamW are"),
        (torch.optim.Adam(model.parameters(), amsgrad=True), "amsgrad"),
    ):
        with pytest.raises(ProgramError, match=name):
            lower_task(Task(model, squares, optimizer, {"x": torch.ones(4, 3)}, 2), Schedule(lr="0.1"), 1)


# ---- data that does not fit ----


def _nan() -> dict[str, torch.Tensor]:
    x = torch.ones(8, 3)
    x[5, 1] = float("nan")
    return {"x": x}


DATA = {
    "NaN": (_nan, DataError, "the data x holds 1 NaN, the first in row 5"),
    "float64": (lambda: {"x": torch.ones(8, 3).double()}, ProgramError, "x is torch.float64"),
    "integers beyond 32 bits": (
        lambda: {"x": torch.ones(8, 3), "i": torch.full((8,), 2**40)},
        ProgramError,
        "do not fit int32",
    ),
    "lengths that differ": (
        lambda: {"x": torch.ones(8, 3), "y": torch.ones(7)},
        ProgramError,
        "same number of samples",
    ),
    "nothing": (dict, ProgramError, "no data"),
    "no sample": (lambda: {"x": torch.ones(0, 3)}, ProgramError, "no sample"),
    "a wrong shape": (lambda: {"x": torch.ones(8, 4)}, ProgramError, "fails while it is traced: RuntimeError"),
}


@pytest.mark.parametrize(("data", "error", "expected"), DATA.values(), ids=DATA)
def test_data_that_does_not_fit_is_refused(data, error: type[Exception], expected: str) -> None:
    with pytest.raises(error, match=expected):
        lowered(Made(lambda m, x: x), data())


def _classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["label"])


@pytest.mark.parametrize(("label", "sample"), [(3, 6), (-1, 0), (2**31 - 1, 7)])
def test_a_label_out_of_range_is_named(label: int, sample: int) -> None:
    labels = torch.arange(8) % 3
    labels[sample] = label
    data = {"x": torch.ones(8, 3), "label": labels}
    with pytest.raises(
        DataError, match=f"the data label holds the index {label} in sample {sample}, but 0 to 2 are valid"
    ):
        lowered(Made(lambda m, x: x), data, _classify)


@pytest.mark.parametrize(("token", "sample"), [(3, 6), (-1, 0)])
def test_a_class_out_of_range_is_named(token: int, sample: int) -> None:
    tokens = torch.arange(8) % 3
    loss = lambda m, b: (m(b["x"]) * F.one_hot(b["t"], 3)).mean()  # noqa: E731
    assert lowered(Made(lambda m, x: x), {"x": torch.ones(8, 3), "t": tokens}, loss).program.operators
    tokens[sample] = token
    compared = lambda m, b: (m(b["x"]) * (b["t"].unsqueeze(1) == torch.arange(3))).mean()  # noqa: E731
    assert lowered(Made(lambda m, x: x), {"x": torch.ones(8, 3), "t": tokens}, compared).program.operators
    with pytest.raises(DataError, match=f"holds the index {token} in sample {sample}, but 0 to 2 are valid"):
        lowered(Made(lambda m, x: x), {"x": torch.ones(8, 3), "t": tokens}, loss)


BEYOND = {
    "a hash": (lambda t: t * 1000003 % 7, r"aten.mul.Tensor in loss gives the integer 3000009000"),
    "a sum": (lambda t: (t * 2**18).sum(0) % 7, None),
    "a sum that is too large": (lambda t: (t * 2**18).sum() % 7, r"aten.sum.default in loss gives the integer"),
    "a running sum": (lambda t: (t * 2**18).cumsum(1) % 7, r"aten.cumsum.default in loss gives the integer"),
    "a negative number": (lambda t: t.neg() * 2**20 % 7, r"aten.mul.Tensor in loss gives the integer -3145728000"),
    "a shift": (lambda t: (t << 20) % 7, r"aten.__lshift__.Scalar in loss gives the integer 3145728000"),
    "floats that become integers": (lambda t: (t * 1e6).long() % 7, r"aten._to_copy.default in loss gives the integer"),
    "constants": (lambda t: torch.arange(3) * 2**31 % 7, r"aten.mul.Tensor in loss gives the integer 4294967296"),
    "a range": (lambda t: torch.arange(2**33, 2**33 + 3) % 7, r"aten.arange.start_step in loss gives the integer"),
    "int32, which wraps in torch too": (lambda t: t.int() * 1000003 % 7, None),
    "a logarithm of 0 that is masked": (lambda t: torch.where(t > 0, (t.float().log() * 4).long() + 1, t), None),
    "memory that is filled": (lambda t: torch.empty(3, dtype=torch.int64).fill_(3), None),
}  # fmt: skip


@pytest.mark.parametrize(("formula", "expected"), BEYOND.values(), ids=BEYOND)
def test_integers_beyond_32_bits_are_refused(formula, expected: str | None) -> None:
    data = {"x": torch.ones(8, 3), "t": torch.tensor([0, 1, 2, 3, 4, 5, 6, 3000])[:, None].expand(8, 3)}
    order = lambda: lowered(Made(lambda m, x: x), data, lambda m, b: (m(b["x"]) * formula(b["t"])).mean())  # noqa: E731
    if expected is None:
        assert order().program.operators
    else:
        with pytest.raises(ProgramError, match=expected):
            order()


def test_a_label_that_is_ignored_is_in_range() -> None:
    labels = torch.arange(8) % 3
    labels[2] = -100
    assert lowered(Made(lambda m, x: x), {"x": torch.ones(8, 3), "label": labels}, _classify).program.operators


def test_a_token_out_of_range_is_named_wherever_in_the_stream_it_is() -> None:
    tokens = torch.arange(50) % 7
    tokens[47] = 7
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    loss = lambda m, b: F.cross_entropy(m(b["t"][:, :-1]).flatten(0, 1), b["t"][:, 1:].flatten())  # noqa: E731
    with pytest.raises(DataError, match="the data t holds the index 7 in sample 15, but 0 to 6 are valid"):
        lowered(model, {"t": tokens}, loss, window=5, stride=3)
    tokens[47] = 6
    assert lowered(model, {"t": tokens}, loss, window=5, stride=3).program.operators


def test_a_parameter_that_is_not_finite_is_refused() -> None:
    model = Made(lambda m, x: x)
    with torch.no_grad():
        model.first.bias[1] = float("inf")
    with pytest.raises(ProgramError, match=r"first.bias is not finite at the start"):
        lowered(model)


# ---- the same program every time ----

TRACE = """
import sys
from vgame.tasks import digits
from vgame.execute.executor import Executor
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
print(lower_task(digits.task(), Schedule(lr="0.1"), 3).program.root.hex())
"""


def test_tracing_again_in_other_processes_gives_the_same_program() -> None:
    command = [sys.executable, "-c", TRACE]
    roots = {
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(roots) == 1 and len(roots.pop().strip()) == 64


def test_a_capture_leaves_the_model_as_it_was() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.BatchNorm1d(3), nn.Sequential(shared, shared))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    lowered(model)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert type(model[0].weight) is nn.Parameter and {type(t) for t in after.values()} == {torch.Tensor}
