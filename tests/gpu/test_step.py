"""A whole step by the Triton kernels: the CPU's words, without operations that would wait for the device or prevent a
recording."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from vgame.arithmetic import gate
from vgame.arithmetic import indexed_matrix as folded
from vgame.arithmetic.numba.compiled import compiled
from vgame.commit.tensor import to_words
from vgame.execute.executor import Executor
from vgame.logged.kernels import LoggedExecutor
from vgame.program.lower import Lowered, lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
#: Operations that hand a value, or a shape that depends on values, to the host; and copies from the host's memory.
WAITING = ("_local_scalar_dense", "item", "nonzero", "unique", "masked_select", "equal", "is_nonzero", "lift_fresh")


class Waited(AssertionError):
    """An operation waited for the device."""


class NeverWaits(TorchDispatchMode):
    """Refuses operations that would wait for a GPU or could not be recorded in a graph, as far as a CPU can detect
    them."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        if name.startswith(WAITING) or (name in ("index", "index_put_") and self._masked(arguments[1])):
            raise Waited(name)
        return function(*arguments, **(options or {}))

    @staticmethod
    def _masked(indices: list) -> bool:
        return any(i is not None and i.dtype == torch.bool for i in indices)


@pytest.fixture
def kernels_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of the interpreter inside a kernel do not count."""
    from triton.runtime.interpreter import GridExecutor

    run = GridExecutor.__call__

    def apart(self, *arguments, **options):
        with _disable_current_modes():
            return run(self, *arguments, **options)

    monkeypatch.setattr(GridExecutor, "__call__", apart)


class Everything(torch.nn.Module):
    """A few words in, every kind of operator: embedding, convolution, pooling, norm, dropout, attention-like
    products."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.conv = torch.nn.Conv1d(4, 4, 3, padding=1)
        self.norm = torch.nn.LayerNorm(4)
        self.drop = torch.nn.Dropout(0.5)
        self.out = torch.nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.embedding(tokens).transpose(1, 2))
        x = torch.nn.functional.max_pool1d(torch.nn.functional.gelu(x), 2).transpose(1, 2)
        x = self.norm(x)
        x = torch.softmax(x @ x.transpose(1, 2), -1) @ self.drop(x)
        return self.out(torch.fmod(x, 0.7).mean(1))


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    torch.manual_seed(0)
    model = Everything()
    data = {"tokens": torch.randint(0, 5, (6, 4)), "label": torch.randint(0, 3, (6,))}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    task = Task(model, lambda model, batch: cross_entropy(model(batch["tokens"]), batch["label"]), optimizer, data, 2)
    return lower_task(task, Schedule(kind="cosine", lr="0.01"), 4)


def executor(lowered: Lowered) -> Executor:
    return Executor(lowered.program, lowered.data, lowered.scalars, seed=1)


def after(lowered: Lowered, steps: int) -> list[list[int]]:
    """The words of the state after some steps by the CPU's own path."""
    with gate.kernels(False):
        runner, state = executor(lowered), lowered.state
        for step in range(1, steps + 1):
            state = runner.step(step, state).state
    return [to_words(t).tolist() for t in state]


def test_the_kernels_give_the_words_of_the_cpu_and_never_wait(lowered: Lowered, kernels_apart: None) -> None:
    """The step is the clock's: the argument, which a recording would keep, is another one on purpose."""
    runner = executor(lowered)
    state = runner.step(1, lowered.state).state  # a first step makes the constants
    runner.clock.fill_(2)
    with NeverWaits():
        launched = runner.launch(4, state)
    result = runner.finish(launched)
    assert result.not_finite is None
    assert [to_words(t).tolist() for t in result.state] == after(lowered, 2)


def test_the_torch_passes_wait(lowered: Lowered) -> None:
    """Red twin: the mode detects their reads of the device."""
    with gate.kernels(False), compiled(False), pytest.raises(Waited), NeverWaits():
        executor(lowered).launch(1, lowered.state)


def test_a_step_with_a_log(lowered: Lowered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode `logged` takes the torch passes for its sums, also where the kernels would read patches in place."""
    monkeypatch.setattr(folded, "LEAST", 1)

    def state() -> list[list[int]]:
        runner = LoggedExecutor(lowered.program, lowered.data, lowered.scalars, 1, 32, {})
        return [to_words(t).tolist() for t in runner.step(1, lowered.state).state]

    by_kernels = state()
    with gate.kernels(False):
        assert state() == by_kernels


def test_a_step_that_is_not_finite(lowered: Lowered) -> None:
    """The verdict comes with the step, and names the first output in program order."""
    bad = [torch.full_like(t, torch.inf) if t.dtype == torch.float32 else t for t in lowered.state]
    found = executor(lowered).step(1, bad).not_finite
    with gate.kernels(False):
        assert found == executor(lowered).step(1, bad).not_finite is not None
