"""Refusals of a capture, in one sentence each; its determinism; parts of tasks have torch's meaning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from small_tasks import Made, lowered
from torch import nn
from torch.utils.checkpoint import checkpoint

from vgame.errors import ProgramError, UnsupportedOperators
from vgame.execute.executor import Executor
from vgame.program.lower import Lowered, lower_task
from vgame.program.operators import Philox, RefClass
from vgame.program.schedule import Schedule
from vgame.tasks import digits

pytestmark = pytest.mark.usefixtures("one_thread")


def _by_value(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def _beside_torch(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    scope, file = {}, torch.__file__.replace("/__init__.py", "vision/net.py")
    exec(compile("def forward(x):\n    return x if x.sum() > 0 else -x", file, "exec"), scope)
    return scope["forward"](x)


def _by_mixture(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Data written into a constant through a view."""
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
    """Data written into a constant by an operator on lists."""
    constant = torch.zeros(4, 3)
    torch._foreach_add_([constant], [x.detach()])
    return x if constant.sum() > 0 else -x


def _checkpointed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: F.dropout(x * x, 0.5), x, use_reentrant=False)


REFUSED = {
    "a branch on a value": (_by_value, "branches on the values of its tensors (a condition, test_capture.py line 27)"),
    "a branch in a package whose name begins like torch's": (_beside_torch, "(a condition, net.py line 2)"),
    "a branch on data in a constant": (_by_mixture, "branches on the values of its tensors"),
    "a branch on a random number": (
        lambda m, x: x if torch.rand(()) < 0.5 else -x,
        "branches on the values of its tensors",
    ),
    "a branch on a random number that was written to": (
        lambda m, x: x if torch.rand(()).mul_(2) < 1 else -x,
        "branches on the values of its tensors",
    ),
    "a number read from a tensor": (lambda m, x: x * x.max().item(), "branches on the values of its tensors"),
    "a selection whose size is data": (
        lambda m, x: x[x > 0],
        "branches on the values of its tensors (a selection by a mask, test_capture.py line",
    ),
    "sizes that are data": (lambda m, x: x.masked_select(x > 0), "(masked_select, test_capture.py line"),
    "a loop until": (
        lambda m, x: [x := x / 2 for _ in iter(lambda: bool(x.norm() > 1), False)][-1],
        "branches on the values",
    ),
    "a parameter that is written to": (_write_parameter, "writes to its parameters first.weight"),
    "a parameter whose data is another tensor": (_set_data, r"sets .data of a tensor, torch.float32 (3, 3)"),
    "a parameter whose data is written to": (_write_data, "writes to its parameters first.weight"),
    "a parameter whose memory is another": (_set_memory, "sets the memory of a tensor"),
    "a parameter that is made anew": (_new_parameter, "creates its parameters first.weight in the forward pass"),
    "a buffer that is made in the forward pass": (_new_buffer, "creates its buffers c in the forward pass"),
    "a branch on data in a list": (_by_list, "branches on the values of its tensors"),
    "a random number of the backward pass": (_checkpointed, "the backward pass draws random numbers (aten.bernoulli"),
    "half precision inside": (lambda m, x: x.half().float(), "float16 is not supported"),
    "double precision inside": (lambda m, x: x.double().exp().float(), "float64 is not supported"),
    "shapes that do not fit": (lambda m, x: x @ torch.ones(5, 2), "fails while it is traced: RuntimeError"),
    "a device that is not there": (lambda m, x: x.to("cuda"), "fails while it is traced"),
    "no gradient at all": (lambda m, x: x.detach(), "depends on no trained parameter"),
}


@pytest.mark.parametrize(("then", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_cannot_be_captured_is_refused_in_one_sentence(then, expected: str) -> None:
    with pytest.raises(ProgramError) as caught:
        lowered(Made(then))
    message = str(caught.value)
    assert expected in message and "\n" not in message and len(message) < 400


TYPED = """
import torch, vgame
model, data = torch.nn.Linear(3, 3), {"x": torch.ones(4, 3)}
def loss(model, batch):
    y = model(batch["x"])
    return y[y > 0].sum()
task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, batch=2)
vgame.prepare(vgame.Job(task, steps=1, interval=1))
"""


def test_a_refusal_names_the_line_of_code_without_a_file() -> None:
    done = subprocess.run([sys.executable, "-"], input=TYPED, capture_output=True, text=True)
    assert "values of its tensors (a selection by a mask, <stdin> line 6), which" in done.stderr


def test_a_batch_norm_that_averages_over_all_batches_is_refused() -> None:
    model = Made(lambda m, x: m.norm(x))
    model.norm = nn.BatchNorm1d(3, momentum=None)
    with pytest.raises(ProgramError, match="the batch norm norm has momentum=None"):
        lowered(model)


def _seeded(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return F.dropout(x, 0.5)


def _forked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng():
        return F.dropout(x, 0.5)


def _replayed(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    state = torch.get_rng_state()
    x = F.dropout(x, 0.5)
    torch.set_rng_state(state)
    return F.dropout(x, 0.5)


def _by_default(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.default_generator.manual_seed(0)
    return F.dropout(x, 0.5)


@pytest.mark.parametrize("then", [_seeded, _forked, _replayed, lambda m, x: x * (torch.seed() > 0), _by_default])
def test_a_model_that_sets_torchs_random_numbers_is_refused_with_its_line(then) -> None:
    model, state = Made(then), torch.get_rng_state()
    with pytest.raises(ProgramError, match=r"sets torch's random numbers, test_capture\.py line \d+; a program draws"):
        lowered(model)
    assert torch.equal(torch.get_rng_state(), state)


def _random_operators(program: Lowered) -> int:
    return sum(isinstance(operator, Philox) for operator in program.program.operators)


def test_a_comparison_of_random_numbers_with_their_limit_is_a_tensor() -> None:
    model = Made(lambda m, x: x * (torch.rand(4, 3) < 1).float() + (torch.rand(4, 3) < 0.0).float())
    assert _random_operators(lowered(model)) == 0
    assert _random_operators(lowered(Made(lambda m, x: x * (torch.rand(4, 3).mul_(2) < 1)))) == 1
    assert _random_operators(lowered(Made(lambda m, x: x if torch.rand(()) < 1.0 else x[:0]))) == 0


class Twice(nn.Module):
    """A normalised layer, recomputed for its gradients if `again` is set."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.part = again, nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.part, x, use_reentrant=False) if self.again else self.part(x)


def test_a_checkpointed_part_gives_the_same_words() -> None:
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
    """Whether a step changes the running mean."""
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
    model[0].train()
    assert not _running_mean(model), "a model of which a part is in training mode"
    assert [m.training for m in model.modules()] == [False, True, False]


class Sampling(nn.Sequential):
    """Its dropout draws in evaluation too (Monte Carlo dropout)."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self[2].train()
        return self


def test_a_model_in_the_modes_that_its_own_eval_sets_is_trained() -> None:
    model = Sampling(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).eval()
    assert _running_mean(model) and [m.training for m in model.modules()] == [False, False, False, True]
    model[0].train()
    assert not _running_mean(model)


class Merging(nn.Linear):
    """Its weight holds a low-rank part in evaluation mode, as in LoRA."""

    def train(self, mode: bool = True) -> nn.Module:
        if mode != self.training:
            self.weight.data += -1 if mode else 1
        return super().train(mode)


def test_a_train_that_changes_tensors_is_refused() -> None:
    model = nn.Sequential(Merging(3, 3)).eval()
    merged = model[0].weight.clone()
    with pytest.raises(ProgramError, match=r"changes the model's tensors \(0.weight\).* call model.train\(\) before"):
        lowered(model)
    assert torch.equal(model[0].weight, merged) and not model.training
    lowered(model.train())


class Hooking(nn.Sequential):
    def train(self, mode: bool = True) -> nn.Module:
        self[0].weight.register_hook(lambda gradient: gradient / 2)
        return super().train(mode)


def test_a_hook_that_train_adds_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"the parameter 0.weight has a hook on its gradient"):
        lowered(Hooking(nn.Linear(3, 3)))


class Hiding(nn.Sequential):
    def named_parameters(self, *args, **kwargs):
        return self[1].named_parameters("1")


def test_names_that_the_model_hides_are_refused() -> None:
    with pytest.raises(
        ProgramError, match=r"own named_parameters.* gives other tensors than torch's \(0.bias, 0.weight"
    ):
        lowered(Hiding(nn.Linear(3, 3), nn.Linear(3, 3)))


def test_every_unsupported_operator_is_named_with_its_modules() -> None:
    model = nn.Sequential(
        Made(lambda m, x: torch.fft.fft(x).real),
        Made(lambda m, x: torch.linalg.inv(x[:3])),
        Made(lambda m, x: x.lgamma()),
    )
    with pytest.raises(UnsupportedOperators) as caught:
        lowered(model)
    found = caught.value.found
    modules = {where.split(", test_capture.py line ")[0] for places in found.values() for where in places}
    assert {"0", "1", "2"} <= modules
    assert any("fft" in what for what in found) and any("linalg" in what for what in found), found
    assert "aten.lgamma.default, aten.digamma.default in 2, test_cap" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_parameters_of_other_types_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ProgramError, match=rf"first.weight, first.bias are {dtype}; vgame trains in float32"):
        lowered(Made(lambda m, x: x).to(dtype))


def test_a_model_on_another_device_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"first.weight is on the device meta"):
        lowered(Made(lambda m, x: x).to("meta"))


@pytest.mark.parametrize("loss", [lambda m, b: m(b["x"]), lambda m, b: (m(b["x"]) > 0).sum()], ids=["shape", "type"])
def test_a_loss_is_one_float(loss) -> None:
    with pytest.raises(ProgramError, match=r"the loss has shape .* one float32 is expected"):
        lowered(Made(lambda m, x: x), loss=loss)


# ---- the same program every time ----

TRACE = """
from vgame.tasks import digits
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
print(lower_task(digits.task(), Schedule(lr="0.1"), 3).program.root.hex())
"""


def test_tracing_again_in_another_process_gives_the_same_program() -> None:
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
    there = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.strip() == lower_task(digits.task(), Schedule(lr="0.1"), 3).program.root.hex()


def test_a_capture_leaves_the_model_as_it_was() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.BatchNorm1d(3), nn.Sequential(shared, shared))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    lowered(model)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert type(model[0].weight) is nn.Parameter and {type(t) for t in after.values()} == {torch.Tensor}


def test_distributions_check_no_values_during_a_capture() -> None:
    """Their checks of arguments are off during a capture, and on afterwards."""
    score = lambda m, x: torch.distributions.Categorical(logits=x).log_prob(x.argmax(1)).unsqueeze(1)  # noqa: E731
    by_hand = lambda m, x: F.log_softmax(x, 1).gather(1, x.argmax(1, keepdim=True))  # noqa: E731
    steps = []
    for then in (score, by_hand):
        torch.manual_seed(0)
        program = lowered(Made(then), {"x": torch.randn(8, 3)})
        executor = Executor(program.program, program.data, program.scalars, 1)
        steps.append(executor.step(1, executor.initial(program.state)).loss)
    torch.testing.assert_close(*steps)
    with pytest.raises(ValueError, match="invalid values"):
        torch.distributions.Normal(0.0, torch.tensor(-1.0))


class Aliased(nn.Module):
    """Tied weights, and a module that has two names (as prompt tuning of peft has them)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"words": nn.Linear(3, 3), "head": nn.Linear(3, 3)})
        self.inner["head"].weight = self.inner["words"].weight
        self.again = self.inner["words"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner["head"](self.again(x))


def test_tied_weights_of_a_module_with_two_names_are_not_changed_by_a_pass() -> None:
    assert lowered(Aliased()).program.operators


def test_an_untraceable_derivative_is_refused_with_a_remedy() -> None:
    def curvature(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        def worth(row: torch.Tensor) -> torch.Tensor:
            return model.first(row).tanh().sum()

        return torch.vmap(torch.func.hessian(worth))(x.detach())

    with pytest.raises(ProgramError, match=r"write torch\.func\.jacrev\(jacrev\(f\)\)"):
        lowered(Made(curvature), {"x": torch.randn(8, 3)})
