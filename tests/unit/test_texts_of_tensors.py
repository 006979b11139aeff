"""A text of a tensor may be printed; elsewhere it could decide something, and is refused with its line."""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import pprint
import re

import pytest
import rich
import torch
from rich.console import Console
from small_tasks import classify, root_of
from torch import nn
from tqdm import tqdm

from vgame import ProgramError

LOG = logging.getLogger(__name__)


DECIDE = {
    "str": lambda x: re.search(r"0\.[0-4]", str(x)),
    "repr": lambda x: "0.4" in repr(x),
    "percent": lambda x: "0.4" in "%s" % x,  # noqa: UP031
    "format": lambda x: "0.4" in f"{x}",
    "a conversion": lambda x: "0.4" in f"{x!r}",
    "the method": lambda x: "0.4" in "{}".format(x),  # noqa: UP032
    "in a list": lambda x: "0.4" in str([x]),
    "of a detached one": lambda x: len(str(x.detach().cpu())) > 14,
}


@pytest.mark.parametrize("whole", [False, True], ids=["a number", "a batch"])
@pytest.mark.parametrize("name", DECIDE)
def test_a_text_of_a_tensor_that_decides_is_refused(name: str, whole: bool) -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        found = classify(model, batch)
        return found * 2 if DECIDE[name](model(batch["x"]) if whole else found) else found

    with pytest.raises(ProgramError, match=r"\(a text of a number, test_texts_of_tensors\.py line \d+\)"):
        root_of(loss)


def prints(model: nn.Module, batch: dict) -> torch.Tensor:
    loss = classify(model, batch)
    print(loss, "and", model(batch["x"]))
    return loss


def prints_texts(model: nn.Module, batch: dict) -> torch.Tensor:
    loss = classify(model, batch)
    print(f"{loss} {model.weight}", str(loss), "%s" % loss)  # noqa: UP031
    return loss


def logs(model: nn.Module, batch: dict) -> torch.Tensor:
    loss = classify(model, batch)
    LOG.warning("the loss %s of %s", loss, batch["x"])
    return loss


def prints_prettily(model: nn.Module, batch: dict) -> torch.Tensor:
    loss = classify(model, batch)
    pprint.pprint(loss)
    return loss


def prints_richly(model: nn.Module, batch: dict) -> torch.Tensor:
    loss = classify(model, batch)
    rich.print("the loss", loss, loss.item())
    return loss


def prints_on_a_console(model: nn.Module, batch: dict) -> torch.Tensor:
    loss = classify(model, batch)
    console = Console()
    console.print(f"{loss.item():.3f}", model.weight.tolist())
    return loss


@pytest.mark.parametrize("loss", [prints, prints_texts, logs, prints_prettily, prints_richly, prints_on_a_console])
def test_a_tensor_can_be_printed(loss, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.warns(UserWarning, match=r"numbers that the loss prints \(test_texts_of_tensors\.py line \d+\)"):
        root = root_of(loss)
    assert "???" in capsys.readouterr().out + caplog.text
    assert root == root_of(classify)


def test_a_tensor_is_printed_where_a_library_has_replaced_print(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = pytest.importorskip("ray.experimental.tqdm_ray").safe_print
    monkeypatch.setattr(builtins, "print", replaced)
    with pytest.warns(UserWarning, match=r"numbers that the loss prints \(test_texts_of_tensors\.py line \d+\)"):
        assert root_of(prints) == root_of(classify)


def test_a_print_of_the_users_own_that_reads_the_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []
    monkeypatch.setattr(builtins, "print", lambda *texts: held.extend(map(str, texts)))
    with pytest.raises(ProgramError, match="a text of a number"):
        root_of(prints)


def write(library: str, x: torch.Tensor, stream: io.StringIO) -> None:
    if library == "pprint":
        pprint.pprint(x, stream)
    elif library == "pprint by name":
        pprint.pprint(x, stream=stream)
    elif library == "rich":
        rich.print(x, file=stream)
    elif library == "console":
        console = Console(file=stream)
        console.print(x)
    else:
        tqdm.write(str(x), file=stream)


@pytest.mark.parametrize("library", ["pprint", "pprint by name", "rich", "console", "tqdm"])
def test_a_tensor_is_not_printed_to_a_stream_that_is_read(library: str) -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        found, stream = classify(model, batch), io.StringIO()
        write(library, found, stream)
        return found * 2 if "0.4" in stream.getvalue() else found

    with pytest.raises(ProgramError, match="a text of a number"):
        root_of(loss)


def test_a_tensor_is_not_printed_to_an_output_that_the_loss_replaces() -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        found = classify(model, batch)
        with contextlib.redirect_stdout(io.StringIO()) as held:
            print(found.item())
        return found * 2 if held.getvalue() < "1.1" else found

    with pytest.raises(ProgramError, match="a text of a number"):
        root_of(loss)


def test_a_constant_is_printed_and_read_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        mask = torch.ones(1, 2)
        print(mask)
        return classify(model, batch) if "1., 1." in str(mask) else model(batch["x"]).mean()

    assert root_of(loss) == root_of(classify)
    assert "tensor([[1., 1.]])" in capsys.readouterr().out


def test_an_error_of_torch_may_show_a_tensor() -> None:
    def loss(model: nn.Module, batch: dict) -> torch.Tensor:
        return classify(model, batch) + torch.stack([batch["x"], torch.tensor(3.0)])

    with pytest.raises(ProgramError, match=r"stack expects each tensor .*test_texts_of_tensors\.py line \d+"):
        root_of(loss)
