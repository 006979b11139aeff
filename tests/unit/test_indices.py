"""Data that does not fit is refused before a job exists: values, types, labels and tokens out of range, integers beyond
32 bits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_tasks import Made, lowered
from torch import nn

from vgame.errors import DataError, ProgramError
from vgame.tasks.task import Batch

pytestmark = pytest.mark.usefixtures("one_thread")


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
def test_invalid_data_is_refused(data, error: type[Exception], expected: str) -> None:
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
    "a hash": (lambda t: t * 1000003 % 7, r"aten.mul.Tensor in loss, .* gives the integer 3000009000"),
    "a sum": (lambda t: (t * 2**18).sum(0) % 7, None),
    "a sum that is too large": (lambda t: (t * 2**18).sum() % 7, r"aten.sum.default in loss, .* gives the integer"),
    "a running sum": (lambda t: (t * 2**18).cumsum(1) % 7, r"aten.cumsum.default in loss, .* gives the integer"),
    "a negative number": (lambda t: t.neg() * 2**20 % 7, r"aten.mul.Tensor in loss, .* gives the integer -3145728000"),
    "a shift": (lambda t: (t << 20) % 7, r"aten.__lshift__.Scalar in loss, .* gives the integer 3145728000"),
    "floats that become integers": (lambda t: (t * 1e6).long() % 7, r"_to_copy.default in loss, .* gives the integer"),
    "constants": (lambda t: torch.arange(3) * 2**31 % 7, r"aten.mul.Tensor in loss, .* gives the integer 4294967296"),
    "a range": (lambda t: torch.arange(2**33, 2**33 + 3) % 7, r"aten.arange.start_step in loss, .* gives the integer"),
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


def test_an_ignored_label_is_in_range() -> None:
    labels = torch.arange(8) % 3
    labels[2] = -100
    assert lowered(Made(lambda m, x: x), {"x": torch.ones(8, 3), "label": labels}, _classify).program.operators


def test_a_token_out_of_range_is_named_anywhere_in_the_stream() -> None:
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


class Held(nn.Module):
    """A linear layer's output, read by an index that the model itself holds."""

    def __init__(self, read, index: list[list[int]]) -> None:
        super().__init__()
        self.first, self.read = nn.Linear(3, 3), read
        self.register_buffer("index", torch.tensor(index))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read(self.first(x), self.index)


CONSTANTS = {
    "a buffer": (lambda x, i: x[i], 3, "the constant index 4 does not exist in .*: -4 to 3 are valid"),
    "a tensor that the model makes": (lambda x, i: x[:, i + torch.tensor([0])], 2, "index 3 .*: -3 to 2 are valid"),
    "classes": (lambda x, i: F.cross_entropy(x[:2], i[0]), 2, "index 3 .*: 0 to 2 are valid"),
    "elements": (lambda x, i: x.gather(1, i), 2, "index 3 .*: 0 to 2 are valid"),
    "elements that are written": (lambda x, i: x.put(i, x[:1, :2]), 11, "index 12 .*: -12 to 11 are valid"),
    "the largest": (
        lambda x, i: torch.zeros(4, 3).scatter_reduce(1, i.expand(4, -1), x[:, :2], "amax"),
        2,
        "index 3 .*: 0 to 2 are valid",
    ),
}


@pytest.mark.parametrize(("read", "last", "expected"), CONSTANTS.values(), ids=CONSTANTS)
def test_a_constant_index_out_of_range_is_refused(read, last: int, expected: str) -> None:
    assert lowered(Held(read, [[0, last]])).program.operators
    with pytest.raises(ProgramError, match=expected):
        lowered(Held(read, [[0, last + 1]]))


@pytest.mark.parametrize("held", [True, False])
def test_a_source_of_too_few_words_is_refused(held: bool) -> None:
    """torch raises an error; the program would read zeros."""
    mask = (torch.arange(8 * 3) % 3 < 2).view(8, 3)

    def loss(m, b):
        return m(b["x"]).masked_scatter(b["m"] if not held else mask[:4], b["x"][0, :2].repeat(n)).mean()

    data = {"x": torch.ones(8, 3), "m": mask}
    n = 4
    assert lowered(Made(lambda m, x: x), data, loss).program.operators
    n = 3
    with pytest.raises(
        DataError, match=r"masked_scatter in loss, test_indices.py line .* has 6 words for 8 true elements of its mask"
    ):
        lowered(Made(lambda m, x: x), data, loss)
