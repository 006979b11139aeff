"""A loss may print numbers of its tensors, in any of Python's ways; one that decides or computes by them is refused."""

from __future__ import annotations

import io
import logging
import math
import sys
from collections.abc import Callable
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

LOG = logging.Logger("mine")
LOG.addHandler(logging.StreamHandler(WRITTEN := io.StringIO()))


def a_format(x: torch.Tensor) -> None:
    print(f"loss {x.item():.4f}, {x.detach():8.4f}")


def a_conversion(x: torch.Tensor) -> None:
    print(f"{float(x.detach()):.4f}", int(x.detach()))


def a_share(x: torch.Tensor) -> None:
    print(
        "right:",
        f"{(x > 0).sum().item() / 8:.1%}",
        f"{(x > 0).sum().item():d}",
    )


def an_old_format(x: torch.Tensor) -> None:
    print("%d of %d, %.2f" % ((x > 0).sum(), 8, x.item()))  # noqa: UP031


def str_format(x: torch.Tensor) -> None:
    print("{:.3f}".format(x.item()))  # noqa: UP032


def a_write(x: torch.Tensor) -> None:
    sys.stdout.write(f"{x.item():.2f}\n")


def itself(x: torch.Tensor) -> None:
    print(x.item(), "and", str(x.item()))


def a_log(x: torch.Tensor) -> None:
    LOG.warning("%.3f of %s", x.item(), "mine")


def a_formatted_log(x: torch.Tensor) -> None:
    LOG.info(f"{x.item():.3f}")


def a_name(x: torch.Tensor) -> None:
    text = f"loss {x.item():.3f}"
    print(text)


def a_name_in_parts(x: torch.Tensor) -> None:
    text = "loss "
    text += f"{x.item():.3f}"
    text = text + "!"
    print(text, end="\n")


def a_condition(x: torch.Tensor, verbose: bool = True) -> None:
    verbose and print(f"{x.item():.2f}")  # type: ignore[func-returns-value]
    print(f"{x.item():.2f}") if not verbose else None  # type: ignore[func-returns-value]


def a_curve(x: torch.Tensor) -> None:
    print(f"perplexity {math.exp(x.item()):.2f}")


def a_choice(x: torch.Tensor) -> None:
    print(f"{max(x.item(), 0.0):.2f}, {min(1.0, (x > 0).sum().item() / 8):.1%}")


def a_choice_by_name(x: torch.Tensor) -> None:
    best = max(0.0, x.item())
    print(f"{best:.1f}")


class Own:
    """With a logger of its class."""

    log = LOG

    def show(self, x: torch.Tensor) -> None:
        self.log.warning("%.3f", x.item())


def a_log_of_a_class(x: torch.Tensor) -> None:
    Own().show(x)


PRINTS: dict[Callable[[torch.Tensor], None], str] = {
    a_format: "loss ???,      ???",
    a_conversion: "nan 0",
    a_share: "right: ???% ???",
    an_old_format: "0 of 8, nan",
    str_format: "???",
    itself: "??? and ???",
    a_write: "???",
    a_log: "nan of mine",
    a_formatted_log: "???",
    a_name: "loss ???",
    a_name_in_parts: "loss ???!",
    a_condition: "???",
    a_curve: "perplexity nan",
    a_choice: "???, 100.0%",
    a_choice_by_name: "0.0",
    a_log_of_a_class: "nan",
}


def task_of(loss: Callable[[Any, Any], torch.Tensor]) -> Task:
    model = network()
    return Task(model, loss, optim.SGD(model.parameters(), lr=0.1), data(), 16)


@pytest.mark.parametrize(("shows", "shown"), PRINTS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_numbers_that_are_printed(
    shows: Callable[[torch.Tensor], None], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    WRITTEN.truncate(0)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = usual_loss(model, batch)
        shows(found)
        return found

    with pytest.warns(UserWarning, match=r"^numbers that the loss prints \(test_printed.py line \d+.*\) are unknown"):
        capture(task_of(loss))
    assert (capsys.readouterr().out + WRITTEN.getvalue()).strip("\0\n").split("\n") == [shown] * 2


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a factor": lambda x: math.exp(x.item()),
    "a difference": lambda x: 1 + math.exp(x.item()) - math.exp(x.item()),
    "a remainder": lambda x: 7.0 % float(x.detach()),
    "another remainder": lambda x: float(x.detach()) % 3,
    "a remainder of a number": lambda x: np.float64(7.0) % x.item(),
    "a branch": lambda x: 2.0 if math.exp(x.item()) > 3 else 1.0,
    "a text": lambda x: float(f"{x.item():.3f}"),
    "an old text": lambda x: float("%.3f" % x.item()),  # noqa: UP031
    "an old text of an integer": lambda x: int("%d" % x.item()),  # noqa: UP031
    "a comparison of texts": lambda x: 2.0 if f"{x.item():.1f}" < "0.8" else 1.0,
    "an equality of texts": lambda x: 2.0 if "%d" % x.item() == "1" else 1.0,  # noqa: UP031
    "a length": lambda x: len(f"{x.item():.3f}"),
    "the length of its text": lambda x: len(str(x.item())),
    "the beginning of its text": lambda x: 2.0 if str(x.item()).startswith("0") else 1.0,
    "a text that is kept": lambda x: kept(f"{x.item():.3f}"),
    "a conversion": lambda x: int(x.item()),
}


def kept(text: str) -> float:
    print(text)
    return 1.0


def keeps(x: torch.Tensor) -> float:
    print(kept(f"{x.item():.3f}"))
    return 1.0


def print_of_its_own(x: torch.Tensor) -> float:
    texts: list[str] = []
    print = texts.append
    print(f"{x.item():.3f}")
    return float(len(texts[0]))


def by_a_name(x: torch.Tensor) -> float:
    print("right", n := int((x > 0).sum()))
    return float(max(n, 1))


def by_a_name_in_a_text(x: torch.Tensor) -> float:
    print(f"right {(n := int((x > 0).sum()))}")
    return 2.0 if n > 8 else 1.0


def by_a_log(x: torch.Tensor) -> float:
    LOG.info("%s", v := float(x.detach()))
    return v


def by_a_file(x: torch.Tensor) -> float:
    print(f"{x.item():.3f}", file=(file := io.StringIO()))
    return float(len(file.getvalue()))


def by_a_list(x: torch.Tensor) -> float:
    held: list[int] = []
    print(held.append(int(x.detach())))
    return float(held[0])


def by_a_meter(x: torch.Tensor) -> float:
    print(f"{meter.update(float(x.detach())):.3f}")
    return meter.value


def by_a_condition(x: torch.Tensor) -> float:
    held = [1.0, 2.0]
    print(held.pop(int(x.detach()) > 3))
    return held[0]


def by_a_name_that_decides(x: torch.Tensor) -> float:
    text = f"{x.item():.1f}"
    print(text)
    return 2.0 if text < "0.8" else 1.0


def by_a_second_name(x: torch.Tensor) -> float:
    text = f"{x.item():.1f}"
    other = text
    print(text)
    return float(other)


def by_a_name_that_is_returned(x: torch.Tensor) -> float:
    def shown() -> str:
        text = f"{x.item():.1f}"
        print(text)
        return text

    return float(shown())


def by_a_name_of_an_outer_function(x: torch.Tensor) -> float:
    text = f"{x.item():.1f}"

    def decides() -> bool:
        return text < "0.8"

    print(text)
    return 2.0 if decides() else 1.0


def by_a_print_as_a_condition(x: torch.Tensor) -> float:
    f"{x.item():.1f}" < "0.8" and print("small")  # type: ignore[func-returns-value]
    return 1.0


def by_a_call(x: torch.Tensor) -> float:
    held: list[float] = []
    done = held.append(float(x.detach()))  # type: ignore[func-returns-value]
    print(done)
    return 2.0 if held[0] < 0.9 else 1.0


def by_a_call_and_a_print(x: torch.Tensor) -> float:
    now = meter.update(float(x.detach()))
    print(f"now {now}")
    return meter.value


def by_a_round_of_its_own(x: torch.Tensor) -> float:
    held: list[float] = []

    def round(value: float, digits: int) -> str:
        held.append(value)
        return ""

    text = round(float(x.detach()), 2)
    print(text)
    return held[0]


def by_locals(x: torch.Tensor) -> float:
    text = f"{x.item():.1f}"
    print(text)
    return 2.0 if locals()["text"] < "0.8" else 1.0


def by_a_yield(x: torch.Tensor) -> float:
    def shown() -> Any:
        text = yield f"{x.item():.1f}"
        print(text)

    return 2.0 if next(shown()) < "0.8" else 1.0


def by_a_target(x: torch.Tensor) -> float:
    held: dict[str, float] = {}
    text = [0 for held["k"] in [float(x.detach())]]
    print(text)
    return held["k"]


def by_the_larger(x: torch.Tensor) -> float:
    best = max(x.item(), 0.5)
    print(best)
    return best


def by_a_key_of_the_larger(x: torch.Tensor) -> float:
    held: list[float] = []
    print(max(x.item(), 0.5, key=lambda value: held.append(value) or value))  # type: ignore[func-returns-value]
    return float(held[0])


def by_a_larger_of_its_own(x: torch.Tensor) -> float:
    held: list[float] = []
    max = lambda value, least: held.append(value > least) or least  # noqa: E731
    print(max(x.item(), 0.5))
    return 2.0 if held[0] else 1.0


class Meter:
    value = 1.0

    def update(self, value: float) -> float:
        self.value = value
        return value


meter = Meter()
USES |= {
    f.__name__: f for f in (by_a_name, by_a_name_in_a_text, by_a_log, by_a_file, by_a_list, by_a_meter, by_a_condition)
}
USES |= {
    f.__name__: f
    for f in (
        by_a_name_that_decides, by_a_second_name, by_a_name_that_is_returned, by_a_name_of_an_outer_function,
        by_a_print_as_a_condition, by_a_call, by_a_call_and_a_print, by_a_round_of_its_own, by_locals, by_a_yield,
        by_a_target, by_the_larger, by_a_key_of_the_larger, by_a_larger_of_its_own,
    )
}  # fmt: skip
USES |= {"a text given to a function": keeps, "a print of its own": print_of_its_own}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.filterwarnings("ignore")
def test_numbers_that_decide(use: Callable[[torch.Tensor], Any]) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        found = usual_loss(model, batch)
        return found * use(found)

    with pytest.raises(ProgramError, match=r"branches on the values of its tensors|could not convert string") as error:
        capture(task_of(loss))
    assert "test_printed.py line" in str(error.value)


def prints(model: Any, batch: Any) -> torch.Tensor:
    found = usual_loss(model, batch)
    print(f"{found.item():.3f}")
    return found


def test_functions_are_as_before() -> None:
    with pytest.warns(UserWarning, match="numbers that the loss prints"):
        capture(task_of(prints))
    assert "__format__" not in vars(torch.SymFloat)
