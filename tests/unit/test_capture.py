"""What a capture refuses, in one sentence each; that it is deterministic; that parts of tasks mean what torch means."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vgame.errors import DataError, ProgramError, UnsupportedOperators
from vgame.program.lower import Lowered, lower_task
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


REFUSED = {
    "a branch on a value": (_by_value, "decides by the values of its tensors"),
    "a branch on data in a constant": (_by_mixture, "decides by the values of its tensors"),
    "a branch on a random number": (
        lambda m, x: x if torch.rand(()) < 0.5 else -x,
        "decides by the values of its tensors",
    ),
    "a number read from a tensor": (lambda m, x: x * x.max().item(), "decides by the values of its tensors"),
    "a selection whose size is data": (lambda m, x: x[x > 0], "decides by the values of its tensors"),
    "a loop until": (
        lambda m, x: [x := x / 2 for _ in iter(lambda: bool(x.norm() > 1), False)][-1],
        "decides by the values",
    ),
    "a parameter that is written to": (_write_parameter, "writes to its parameters first.weight"),
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
