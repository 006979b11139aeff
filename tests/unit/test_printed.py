"""A loss may print numbers of its tensors, in any of Python's ways; one that decides or computes by them is refused."""

from __future__ import annotations

import io
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import optim

from vgame.errors import ProgramError
from vgame.program.capture import capture
from vgame.tasks.task import Task

PRINTS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a format": (lambda x: f"{x.item():.4f}", "???"),
    "a width": (lambda x: f"{x.item():8.4f}", "     ???"),
    "a tensor": (lambda x: f"{x.detach():.4f}", "???"),
    "a conversion": (lambda x: f"{float(x.detach()):.4f}", "nan"),
    "an integer": (lambda x: f"{int(x.detach())} {(x > 0).sum().item():d}", "0 ???"),
    "a share": (lambda x: f"{(x > 0).sum().item() / 8:.1%}", "???%"),
    "an old format": (lambda x: "%.4f" % x.item(), "nan"),  # noqa: UP031
    "several in an old format": (lambda x: "%d of %d, %.2f" % ((x > 0).sum(), 8, x.item()), "0 of 8, nan"),  # noqa: UP031
    "str.format": (lambda x: "{:.3f}".format(x.item()), "???"),  # noqa: UP032
    "a perplexity": (lambda x: f"{math.exp(x.item()):.2f}", "???"),
    "a perplexity of numpy": (lambda x: f"{np.exp(x.item()):.2f}", "???"),
    "a logarithm with a base": (lambda x: f"{math.log(x.item(), 2):.2f}", "???"),
    "a constant": (lambda x: f"{torch.tensor(2.0):.1f} {math.sqrt(torch.tensor(4.0))}", "2.0 2.0"),
}


def task_of(loss: Callable[[Any, Any], torch.Tensor]) -> Task:
    model = network()
    return Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16)


@pytest.mark.parametrize(("text", "shown"), PRINTS.values(), ids=PRINTS)
@pytest.mark.filterwarnings("ignore:numbers that the loss prints")
def test_numbers_that_are_printed(text: Callable[[torch.Tensor], Any], shown: str) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = usual_loss(model, batch)
        assert text(found) == shown
        return found

    assert capture(task_of(loss))


def test_the_warning() -> None:
    with pytest.warns(UserWarning, match=r"^numbers that the loss prints \(test_printed.py line \d+\) are unknown"):
        capture(task_of(lambda m, b: (print(f"{usual_loss(m, b):.2f}"), usual_loss(m, b))[1]))


def test_a_log() -> None:
    log, written = logging.Logger("mine"), io.StringIO()
    log.addHandler(logging.StreamHandler(written))

    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = usual_loss(model, batch)
        log.warning("%.3f of %s", found.item(), "mine")
        return found

    with pytest.warns(UserWarning, match="numbers that the loss prints"):
        capture(task_of(loss))
    assert written.getvalue() == "nan of mine\n" * 2


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a factor": lambda x: math.exp(x.item()),
    "a difference": lambda x: 1 + math.exp(x.item()) - math.exp(x.item()),
    "a remainder": lambda x: 7.0 % float(x.detach()),
    "another remainder": lambda x: float(x.detach()) % 3,
    "a remainder of a number": lambda x: np.float64(7.0) % x.item(),
    "a branch": lambda x: 2.0 if math.exp(x.item()) > 3 else 1.0,
    "a text": lambda x: float(f"{x.item():.3f}"),
    "a conversion": lambda x: int(x.item()),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_decide(use: Callable[[torch.Tensor], Any]) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = usual_loss(model, batch)
        return found * use(found)

    with pytest.raises(ProgramError, match=r"branches on the values of its tensors|could not convert string") as error:
        capture(task_of(loss))
    assert "test_printed.py line" in str(error.value)


def test_functions_are_as_before() -> None:
    with pytest.warns(UserWarning, match="numbers that the loss prints"):
        capture(task_of(lambda m, b: (print(f"{usual_loss(m, b):.2f}"), usual_loss(m, b))[1]))
    assert math.exp(0.0) == 1.0 and type(math.exp) is type(len)
    assert "__format__" not in vars(torch.SymFloat) and not hasattr(torch.SymFloat, "exp")


def test_no_module_keeps_a_replaced_function() -> None:
    """torch loads hundreds of modules at its first trace, some of which look functions up by their identity."""
    code = (
        "import gc, torch\n"
        "from functools import partial\n"
        "from optimizer_steps import data, loss, network\n"
        "from vgame.program import printed\n"
        "from vgame.program.capture import capture\n"
        "from vgame.tasks.task import Task\n"
        "model = network()\n"
        "capture(Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data(), 16))\n"
        "print([o for o in gc.get_objects() if type(o) is partial and o.func is printed._function])\n"
    )
    folder = str(Path(__file__).parent)
    found = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
