"""A loss may show numbers of its tensors in a progress bar of tqdm; one that reads the bar's text is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_tasks import classify, root_of
from tqdm import tqdm
from tqdm.auto import tqdm as automatic

from vgame import ProgramError

Value = torch.Tensor


def a_postfix(bar: Any, x: Value) -> None:
    bar.set_postfix(loss=f"{x.item():.4f}", step=3)


def numbers(bar: Any, x: Value) -> None:
    bar.set_postfix({"loss": x.item()}, refresh=False)


def many(bar: Any, x: Value) -> None:
    shown = {"loss": f"{x.item():.4f}"}
    bar.set_postfix(**shown)


def a_description(bar: Any, x: Value) -> None:
    bar.set_description(f"loss {x.item():.4f}")


def texts(bar: Any, x: Value) -> None:
    bar.set_description_str(f"{x:.3f}")
    bar.set_postfix_str("loss %.2f" % x.item())  # noqa: UP031


def in_a_branch(bar: Any, x: Value) -> None:
    if torch.isnan(x):
        bar.set_postfix(loss="nan")


SHOWS = [a_postfix, numbers, many, a_description, texts, in_a_branch]


@pytest.mark.parametrize("shows", SHOWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [tqdm, automatic])
@pytest.mark.filterwarnings("ignore:numbers that the loss prints", "ignore:checks of finite numbers")
def test_a_bar_may_show_numbers(kind: Any, shows: Callable[[Any, Value], None]) -> None:
    with kind(range(3)) as bar:

        def loss(model: Any, batch: Any) -> Value:
            found = classify(model, batch)
            shows(bar, found)
            return found

        bar.set_description("first")
        assert root_of(loss) == root_of(classify)
        assert bar.desc == "first: "


class Own(tqdm):
    last = ""

    def set_description(self, desc: Any = None, refresh: Any = True) -> None:
        Own.last = desc


def by_its_text(x: Value) -> float:
    bar = tqdm(range(3))
    bar.set_postfix_str(f"{x.item():.1f}")
    return 2.0 if bar.postfix == "nan" else 1.0


def by_its_description(x: Value) -> float:
    bar = tqdm(range(3))
    bar.set_description(f"{x.item():.1f}")
    return 2.0 if "nan" in getattr(bar, "desc") else 1.0  # noqa: B009


def by_all_of_it(x: Value) -> float:
    bar = tqdm(range(3))
    bar.set_description(f"{x.item():.1f}")
    return float(len(vars(bar)["desc"]))


def by_its_format(x: Value) -> float:
    bar = tqdm(range(3))
    bar.set_postfix_str(f"{x.item():.1f}")
    return float(len(bar.format_dict["postfix"]))


def as_a_text(x: Value) -> float:
    bar = tqdm(range(3))
    bar.set_postfix_str(f"{x.item():.1f}")
    return 2.0 if "nan" in f"{bar}" else 1.0


def by_its_own_class(x: Value) -> float:
    bar = Own(range(3))
    bar.set_description(f"{x.item():.1f}")
    return float(len(Own.last))


def by_its_stream(x: Value) -> float:
    bar = tqdm(range(3), file=(stream := io.StringIO()))
    bar.set_postfix_str(f"{x.item():.1f}")
    return float(len(stream.getvalue()))


def by_a_function_of_its_own(x: Value) -> float:
    bar, held = tqdm(range(3)), list[str]()
    bar.set_postfix = lambda **given: held.extend(given.values())
    bar.set_postfix(loss=f"{x.item():.1f}")
    return float(len(held[0]))


def by_an_argument(x: Value) -> float:
    bar, held = tqdm(range(3)), list[float]()
    bar.set_postfix(loss=held.append(float(x.detach())))  # type: ignore[func-returns-value]
    return held[0]


READS = [by_its_text, by_its_description, by_all_of_it, by_its_format, as_a_text, by_its_own_class, by_its_stream]
READS += [by_a_function_of_its_own, by_an_argument]


@pytest.mark.parametrize("reads", READS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_reads_the_text_of_a_bar_is_refused(reads: Callable[[Value], float]) -> None:
    def loss(model: Any, batch: Any) -> Value:
        found = classify(model, batch)
        return found * reads(found)

    with pytest.raises(ProgramError, match=r"test_progress_bars\.py line \d+"):
        root_of(loss)
