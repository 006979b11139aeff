"""Nearest neighbours: at every scale a program reads the pixels that torch reads, and their gradients go to them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vgame.execute.executor import Executor
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


class Line(nn.Module):
    """A trained line of pixels, made larger or smaller; the pixels that were read stay in a buffer."""

    def __init__(self, pixels: int, mode: str, **how) -> None:
        super().__init__()
        self.line = nn.Parameter(torch.arange(1.0, pixels + 1)[None, None])
        self.how = {"mode": mode, **how}
        self.read = nn.Buffer(torch.zeros_like(F.interpolate(self.line.detach(), **self.how)))

    def forward(self) -> torch.Tensor:
        read = F.interpolate(self.line, **self.how)
        self.read.copy_(read.detach())
        return read


def loss(model: nn.Module, batch) -> torch.Tensor:
    read = model()
    return (read * torch.arange(1.0, read.shape[-1] + 1)).sum() + 0 * batch["x"].sum()


MODES = ("nearest", "nearest-exact")
HOW = [(mode, {"scale_factor": k / 10}) for mode in MODES for k in (3, 7, 13, 21, 23, 26, 33, 37)]
#: At the last sizes torch's kernel reads the neighbouring pixel if a coordinate is within a rounding of a whole number.
HOW += [("nearest", {"size": 3}), ("nearest", {"size": 41}), ("nearest-exact", {"size": 41})]


@pytest.mark.parametrize(("mode", "how"), HOW, ids=str)
def test_gradients_go_to_the_pixels_that_were_read(mode: str, how: dict) -> None:
    for pixels in (2, 7, 20):
        if int(pixels * how.get("scale_factor", 1)) < 1:
            continue
        model = Line(pixels, mode, **how)
        task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), {"x": torch.ones(1, 1)}, 1)
        program = lower_task(task, Schedule(lr="1"), 1)
        state = Executor(program.program, program.data, program.scalars, 1).step(1, program.state).state
        found = {l.name: t.flatten() for l, t in zip(program.program.labels.state, state, strict=True)}
        read = F.interpolate(model.line.detach(), **model.how).flatten()
        assert (mode == "nearest-exact" and "size" in how) or torch.equal(found["read"], read)
        weights = torch.arange(1.0, len(read) + 1)
        gradient = torch.zeros(pixels).index_add(0, found["read"].long() - 1, weights)
        assert torch.equal(found["line"], model.line.detach().flatten() - gradient)
