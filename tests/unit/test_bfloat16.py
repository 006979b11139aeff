"""Training in bfloat16 and under autocast: capture, equality of all paths, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vgame
from vgame.arithmetic import certified
from vgame.arithmetic.functions import Function
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.numba.remainders import remainders
from vgame.arithmetic.reference.binary32 import round_word
from vgame.arithmetic.reference.sums import partial_dot
from vgame.errors import ProgramError
from vgame.execute.executor import Executor
from vgame.execute.reference import Position, evaluate
from vgame.program.lower import Lowered, lower_task
from vgame.program.operators import Contract, Map, Ref, RefClass
from vgame.program.schedule import Schedule
from vgame.program.validate import validate
from vgame.tasks.task import Task


class Net(nn.Module):
    """A product with a bias, an activation, a norm, attention-like products, a convolution and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.first, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(64, 16), nn.LayerNorm(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.conv(x)).amax(1).flatten(1)
        h = self.norm(torch.tanh(self.first(x)))
        h = h + torch.softmax(h @ h.T / 4, -1) @ h
        return self.last(h)


def cross_entropy(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return F.cross_entropy(model(batch["x"]), batch["y"])


def plainly(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]).float(), batch["y"])


def task_of(model: nn.Module, loss: Callable = cross_entropy, optimizer: type = torch.optim.SGD) -> Task:
    torch.manual_seed(1)
    dtype = next(model.parameters()).dtype
    data = {"x": torch.randn(40, 1, 8, 8).to(dtype), "y": torch.arange(40) % 3}
    return Task(model, loss, optimizer(model.parameters(), lr=0.1), data, batch=8)


def lowered(task: Task, steps: int = 4) -> Lowered:
    found = lower_task(task, Schedule(kind="constant", lr="0.1"), steps)
    validate(found.program, [(t.numel(), not t.is_floating_point()) for t in found.data], steps)
    return found


def outputs(found: Lowered, step: int, state: tuple, executor: Executor) -> tuple[list[torch.Tensor], tuple]:
    seen: list[torch.Tensor] = []
    result = executor.step(step, state, lambda _, x: (seen.append(x.clone()), x)[1])
    return seen, result.state


def words(x: torch.Tensor) -> list[int]:
    return [w & 0xFFFFFFFF for w in x.reshape(-1).view(torch.int32).tolist()]


def is_narrow(operator: object) -> bool:
    return getattr(operator, "bfloat16", False)


MODELS = {
    "autocast": lambda: task_of(Net()),
    "bfloat16": lambda: task_of(Net().bfloat16(), plainly),
    "bfloat16, adam": lambda: task_of(Net().bfloat16(), plainly, torch.optim.AdamW),
}


@pytest.mark.parametrize("name", MODELS)
def test_elements_are_those_of_the_reference(name: str) -> None:
    """Outputs of every operator of a step, by compiled loops and by torch's passes."""
    found, random = lowered(MODELS[name]()), Random(3)
    executor = Executor(found.program, found.data, found.scalars, 7)
    seen, after = outputs(found, 1, found.state, executor)
    tables = {
        RefClass.OPERATOR: seen, RefClass.STATE: found.state, RefClass.CONSTANT: found.program.constants,
        RefClass.DATA: found.data, RefClass.SCALAR: [found.scalars[0, i : i + 1] for i in range(found.program.scalars)],
    }  # fmt: skip

    def read(ref: Ref, first: int, count: int) -> list[int]:
        return words(tables[ref.cls][ref.index].reshape(-1)[first : first + count])

    for o, operator in enumerate(found.program.operators):
        got = words(seen[o])
        assert not is_narrow(operator) or not any(w & 0xFFFF for w in got if w & 0x7FFFFFFF != 0x7F800000)
        for e in {0, *(random.randrange(operator.elements) for _ in range(4))}:
            assert got[e] == evaluate(operator, Position(7, 1, o, e), read), (o, operator)
    with compiled(False):
        again, other = outputs(found, 1, found.state, Executor(found.program, found.data, found.scalars, 7))
    plain = Executor(found.program, found.data, found.scalars, 7).step(1, found.state).state  # chains
    for a, b, c in zip(after, other, plain, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32)) and torch.equal(
            a.view(torch.int32), c.view(torch.int32)
        )
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(seen, again, strict=True))


def test_remainders_have_the_sign_of_the_exact_sum() -> None:
    """Rows that tie, nearly tie below binary64's precision, or cancel: the sign is right, or reported as uncertain."""
    random, rows, signs = Random(4), [], []
    for r in range(300):
        tie = [random.choice((1, -1)) * (257 + 2 * random.randrange(100)) * 2.0**-8, 0.0, 0.0, 0.0]
        tie[1] = (0.0, 2.0**-90, -(2.0**-90), 2.0**-140)[r % 4]
        if r % 3 == 0:
            tie[2:] = [2.0**90, -(2.0**90)]
        if r % 5 == 0:
            tie[3] = random.choice((1, -1)) * 2.0**-60
        if r % 7 == 0:  # more bits than two binary64 numbers
            tie = [2.0**90, 2.0**-20, 2.0**-140, -(2.0**90)]
        rows.append(tie)
        signs.append(sum(map(Fraction, tie)) - (0 if r % 7 == 0 else Fraction(tie[0])))
    x = torch.tensor(rows)
    words = torch.where(torch.arange(300) % 7 == 0, 0.0, x[:, 0]).double()
    terms, begins = np.arange(4), np.arange(300) * 4
    ones = np.ones(1, np.float32), np.zeros(1, np.int64), np.zeros(4, np.int64), True
    rest, unsure = remainders(torch.arange(300), words, (300, 1), (x.view(-1).numpy(), begins, terms, True), ones)
    for got, open_, right in zip(rest.tolist(), unsure.tolist(), signs, strict=True):
        assert open_ or (got > 0) - (got < 0) == (right > 0) - (right < 0)
    assert 0 < int(unsure.sum()) < 150


def test_sums_are_rounded_once() -> None:
    """Products and sums of rows against the reference where a tiny term decides a tie, also far below binary64."""
    crumbs = [0.0, 2.0**-30, -(2.0**-30), 2.0**-120, -(2.0**-120)]
    rows = torch.tensor([[(257 + 2 * i) * 2.0**-8, c, 1.0, -1.0] for i in range(20) for c in crumbs])
    right = [dot_words(words(row), [0x3F800000] * 4) for row in rows]
    twice = [round_word(partial_dot(words(row), [0x3F800000] * 4).round(), 8) for row in rows]
    assert sum(r != t for r, t in zip(right, twice, strict=True)) >= 20
    for loops in (True, False):
        with compiled(loops):
            assert words(certified.narrow_rows(rows)) == right
            assert words(certified.dot(rows[None], torch.ones(1, 3, 4), bfloat16=True)[0, :, 1].contiguous()) == right
            index = torch.zeros(1, 4, dtype=torch.int32)
            assert words(certified.narrow_one_hot_sum(index, rows[None], 1)) == right


def dot_words(a: list[int], b: list[int]) -> int:
    return partial_dot(a, b).narrow().round()


def test_narrow_operators_under_autocast() -> None:
    """Products and convolutions, conversions; norms, softmax and the loss are binary32."""
    found = lowered(task_of(Net()))
    operators, labels = found.program.operators, found.program.labels.operators
    biased = {
        o.accesses[k].ref.index
        for o in operators
        if isinstance(o, Map) and is_narrow(o)
        for k in range(len(o.accesses))
    }
    products = [i for i, o in enumerate(operators) if isinstance(o, Contract) and o.variant == 0]
    assert len(products) > 10 and all(is_narrow(operators[i]) or i in biased for i in products)  # a bias is added first
    assert any(isinstance(o, Map) and o.function is Function.CAST for o in operators)
    assert not any(is_narrow(o) for o, l in zip(operators, labels, strict=True) if l in ("norm", "loss", "optimizer"))
    assert not is_narrow(operators[found.program.loss])


def test_a_region_can_be_nested_and_disabled() -> None:
    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.autocast("cuda", enabled=False):
                first = batch["x"].flatten(1) @ torch.ones(64, 2)
            assert first.dtype == torch.float32
            with torch.autocast("mps", dtype=torch.bfloat16):
                assert (first @ torch.ones(2, 2)).dtype == torch.bfloat16
            return F.cross_entropy(model(batch["x"]), batch["y"])

    assert any(map(is_narrow, lowered(task_of(Net(), loss)).program.operators))


def eager_losses(model: nn.Module, data: dict[str, torch.Tensor], steps: int) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.02), []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(data["x"]), data["y"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_step_is_close_to_eager_autocast() -> None:
    """Twenty steps of all samples, compared with torch's own autocast on the CPU, which rounds at other places."""
    torch.manual_seed(1)
    data = {"x": torch.randn(40, 1, 8, 8), "y": torch.arange(40) % 3}
    model = Net()
    task = Task(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.02), data, batch=40)
    found = lower_task(task, Schedule(kind="constant", lr="0.02"), 20)
    executor, state, losses = Executor(found.program, found.data, found.scalars, 7), found.state, []
    for step in range(1, 21):
        result = executor.step(step, state)
        state = result.state
        losses.append(float(result.loss))
    eager = eager_losses(Net(), data, 20)
    assert eager[-1] < eager[0] - 0.1
    assert max(abs(a - b) for a, b in zip(losses, eager, strict=True)) < 0.01


def test_parameters_stay_on_the_grid() -> None:
    found = lowered(MODELS["bfloat16"]())
    executor, state = Executor(found.program, found.data, found.scalars, 7), found.state
    for step in (1, 2, 3):
        state = executor.step(step, state).state
    for label, tensor in zip(found.program.labels.state, state, strict=True):
        assert label.integer or not any(w & 0xFFFF for w in words(tensor)), label.name


def test_float16_is_refused() -> None:
    def half(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cuda"):
            return F.cross_entropy(model(batch["x"]), batch["y"])

    with pytest.raises(ProgramError, match=r"autocast to torch\.float16 is not supported"):
        lowered(task_of(Net(), half))
    with pytest.raises(ProgramError, match=r"are torch.float16; vgame trains in float32 and bfloat16"):
        lowered(task_of(Net().half(), plainly))


def test_a_loss_in_bfloat16_is_refused() -> None:
    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    with pytest.raises(ProgramError, match=r"one float32 is expected: write \.float\(\)"):
        lowered(task_of(Net().bfloat16(), loss))


def test_torch_keeps_its_own_autocast() -> None:
    """After a capture, CPU's lists are CPU's again."""
    lowered(task_of(Net()))
    with torch.autocast("cpu"):
        assert torch.softmax(torch.ones(2, 2) @ torch.ones(2, 2), -1).dtype == torch.bfloat16


def test_mode_logged_refuses_bfloat16() -> None:
    found = lowered(task_of(Net()))
    with pytest.raises(ProgramError, match="which mode `logged` does not support"):
        validate(found.program, [(t.numel(), not t.is_floating_point()) for t in found.data], 4, "logged")


@pytest.mark.parametrize("kind", ["normal", "few bits", "cancelling", "not finite", "subnormal", "beside midpoints"])
def test_words_left_open_by_the_rounding_test_are_rounded_once(kind: str) -> None:
    """As by the passes, which round every word at the end."""
    chance = torch.Generator().manual_seed(5)
    for m, k, n in ((37, 300, 60), (1, 3, 59), (12, 17, 16), (5, 257, 33)):
        a, b = (torch.randn(1, rows, k, generator=chance).bfloat16().float() for rows in (m, n))
        if kind == "few bits":
            a, b = a.mul(3).round(), b.mul(3).round()
        elif kind == "cancelling":
            half = k // 2
            a[..., k - half :], b[..., k - half :] = -a[..., :half], b[..., :half] * (1 + 2.0**-20)
        elif kind == "not finite":
            a[0, 0, 0], b[0, -1, -1] = torch.inf, torch.nan
        elif kind == "subnormal":
            a, b = a * 2.0**-120, b * 2.0**-20
        elif kind == "beside midpoints":
            a.zero_(), b.zero_()
            a[..., 0], a[..., 2] = 1, 2.0**-60
            b[..., 0] = 1 + (2 * torch.randint(0, 64, (n,), generator=chance) + 1) * 2.0**-8
            b[..., 2] = torch.randint(-1, 2, (n,), generator=chance).float()
        ours = certified.dot(a, b, bfloat16=True)
        with compiled(False):
            assert torch.equal(certified.dot(a, b, bfloat16=True).view(torch.int32), ours.view(torch.int32))


DRAWS = {
    "rand": lambda x: 1 - torch.rand(4096, dtype=x.dtype),
    "rand_like": lambda x: 1 - torch.rand_like(x.new_empty(4096)),
    "uniform": lambda x: 3 - x.new_empty(4096).uniform_(0.5, 3),
    "an odd end": lambda x: 1.0078125 - x.new_empty(4096).uniform_(0, 1.0078125),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_random_numbers_stay_below_their_end(draw: Callable, tmp_path: Path) -> None:
    """As torch's do: a distance to the end, 1 - rand() for example, is never 0."""

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["x"].float()).square().mean() - 1e-3 * draw(batch["x"]).float().log().mean()

    model = nn.Linear(2, 1)
    data = {"x": torch.ones(8, 2, dtype=torch.bfloat16)}
    task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, 4)
    run = vgame.train(vgame.prepare(vgame.Job(task, steps=2)), tmp_path / "run")
    assert len(run.losses) == 2 and np.isfinite(run.losses).all()
