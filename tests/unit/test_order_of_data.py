"""The order of the data: the samples of a step, and models that carry values from batch to batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vgame.errors import ProgramError
from vgame.execute.executor import Executor
from vgame.program.lower import Lowered, lower_task
from vgame.program.schedule import Schedule
from vgame.program.validate import validate
from vgame.tasks.task import Task
from vgame.validation.report import Order
from vgame.validation.steps import validate as compared

pytestmark = pytest.mark.usefixtures("one_thread")


class Seen(nn.Module):
    """Keeps the samples of its last batch in a buffer."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(batch))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.copy_(x.reshape(len(x), -1)[:, 0])
        return (self.a * x).mean()


class Carried(nn.Module):
    """A hidden state per row, in a buffer: the documented form."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.cell = nn.RNNCell(1, 2)
        self.register_buffer("hidden", torch.zeros(rows, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.hidden)
        self.hidden = h.detach()
        return h.square().mean()


def task_of(model: nn.Module, samples: int, batch: int, **options) -> Task:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(samples, dtype=torch.float32)
    return Task(
        model, lambda m, b: m(b["x"]), optimizer, {"x": x if isinstance(model, Seen) else x[:, None]}, batch, **options
    )


def lowered(task: Task, steps: int) -> Lowered:
    program = lower_task(task, Schedule(lr="0.1"), steps)
    validate(program.program, [(t.numel(), not t.is_floating_point()) for t in program.data], steps)
    return program


def read(samples: int, batch: int, steps: int, **options) -> list[list[int]]:
    """The samples read by each step, by the executor."""
    program = lowered(task_of(Seen(batch), samples, batch, **options), steps)
    executor = Executor(program.program, program.data, program.scalars, 3)
    place = [label.name for label in program.program.labels.state].index("seen")
    state, found = executor.initial(program.state), []
    for step in range(1, steps + 1):
        state = executor.step(step, state).state
        found.append(state[place].int().tolist())
    return found


def test_sequential_samples_come_one_after_the_other_and_begin_again() -> None:
    assert read(5, 2, 4, order="sequential") == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_a_stream_continues_at_its_last_position() -> None:
    """Three rows of four samples; the thirteenth belongs to none."""
    assert read(13, 3, 5, order="streams") == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11], [0, 4, 8]]


def test_streams_with_several_batches_a_step() -> None:
    """The buffer holds the last batch of a step."""
    assert read(8, 2, 3, order="streams", accumulate=2) == [[1, 5], [3, 7], [1, 5]]


def test_streams_of_windows_are_contiguous_parts_of_the_data() -> None:
    assert read(24, 2, 4, order="streams", window=4, stride=4) == [[0, 12], [4, 16], [8, 20], [0, 12]]


def test_shuffled_order_is_the_default_permutation() -> None:
    plain = lowered(task_of(Seen(2), 8, 2), 3)
    named = lowered(task_of(Seen(2), 8, 2, order="shuffled"), 3)
    assert plain.program.root == named.program.root
    first = [n for batch in read(8, 2, 4) for n in batch]
    assert sorted(first) == list(range(8)) and first != sorted(first)


def test_a_state_per_row_in_shuffled_order_is_refused_by_name() -> None:
    with pytest.raises(ProgramError, match=r"carries hidden from batch to batch.*order='streams'"):
        lowered(task_of(Carried(4), 16, 4), 2)
    for order in ("streams", "shuffled"):
        assert lowered(task_of(Carried(4), 16, 4, order=order), 2).program.operators


def test_other_carried_state_in_shuffled_order_causes_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"carries 0\.parametrizations"):
        model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(1, 5)), nn.Tanh())
        lowered(
            Task(
                model,
                lambda m, b: m(b["x"]).mean(),
                torch.optim.SGD(model.parameters(), lr=0.1),
                {"x": torch.ones(8, 1)},
                4,
            ),
            2,
        )


class Normed(nn.Module):
    """Running statistics are written, never read, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.expand(-1, 4)).square().mean()


@pytest.mark.filterwarnings("error")
def test_running_statistics_are_not_carried() -> None:
    assert lowered(task_of(Normed(), 16, 4), 2).program.operators


@pytest.mark.parametrize(
    ("samples", "options", "expected"),
    [
        (16, {"order": "sorted"}, "order = 'sorted': one of shuffled, sequential, streams"),
        (3, {"order": "streams"}, "3 samples are fewer than the 4 rows"),
        (64, {"order": "streams", "window": 4, "stride": 2}, "set stride = 4"),
    ],
)
def test_invalid_orders_are_refused(samples: int, options: dict, expected: str) -> None:
    with pytest.raises(ProgramError, match=expected):
        lowered(task_of(Seen(4), samples, 4, **options), 2)


class Cells(nn.Module):
    """A cell's output, kept detached: the usual truncated backpropagation."""

    def __init__(self, kind: type[nn.Module], times: int) -> None:
        super().__init__()
        self.cell, self.times = kind(1, 2), times
        self.register_buffer("h", torch.zeros(3, 2))
        self.register_buffer("c", torch.zeros(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            found = self.cell(x, (self.h, self.c) if isinstance(self.cell, nn.LSTMCell) else self.h)
            h, c = found if isinstance(found, tuple) else (found, self.c)
            self.h, self.c = h.detach(), c.detach()
        return h.square().mean()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_the_state_of_a_cell_is_kept_by_detach(kind: type[nn.Module], times: int) -> None:
    model = Cells(kind, times)
    data = {"x": torch.randn(9, 1)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = Task(model, lambda m, b: m(b["x"]), optimizer, data, 3, order="streams")
    lowered = lower_task(task, None, 4)
    assert compared(Order(task, lowered, lowered.state, None, 3, 4), 60.0).complete
