"""Autocast in a capture is CUDA's: the lists are torch's own, and small programs give the same types, function by
function.

CUDA's types are those of torch's own autocast, on fake CUDA tensors without gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import autocast_functions
import autocast_regions
import pytest
import torch
from autocast_functions import BF16, Make, Tensor
from autocast_regions import AsOutside, Doubled, InFloat32, cuda, mixed_devices, products_in_place
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vgame.program.autocast import FLOAT32, LOWER, WIDEST, as_on_cuda
from vgame.program.lower import lower_task
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task

PROGRAMS = [*autocast_functions.PROGRAMS, *autocast_regions.PROGRAMS]


class Types(TorchFunctionMode):
    """Records each call of a torch function and the types of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[str]]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        found = [str(t.dtype) for t in tree_leaves(result) if isinstance(t, Tensor)]
        if found:
            self.seen.append((getattr(function, "__name__", str(function)), found))
        return result


@contextmanager
def own_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's own autocast, with a pretended GPU."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
        yield


def made(device: str, module: Callable[..., nn.Module], *args: Any, **options: Any) -> nn.Module:
    """A module with fake parameters on the device; torch's own methods need the device's library."""
    built = module(*args, **options)
    for part in built.modules():
        for table, wrap in (
            (part._parameters, partial(nn.Parameter, requires_grad=False)),
            (part._buffers, Tensor.detach),
        ):
            for name, t in table.items():
                table[name] = t if t is None else wrap(torch.empty(t.shape, dtype=t.dtype, device=device))
    return built


def types_of(program: Callable[[Tensor, Tensor, Make], None], device: str) -> list[tuple[str, list[str]]]:
    torch.manual_seed(0)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        x, i = torch.ones(4, 4, device=device), torch.ones(1, 2, 8, 8, device=device)
        with cuda(), Types() as types:
            program(x, i, partial(made, device))
    return types.seen


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_types_are_those_of_autocast_on_cuda(program: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_on_cuda(monkeypatch):
        expected = types_of(program, "cuda")
    with as_on_cuda():
        found = types_of(program, "cpu")
    assert [e for e in zip(found, expected, strict=True) if e[0] != e[1]] == []
    assert program in (products_in_place, mixed_devices) or any("torch.bfloat16" in kinds for _, kinds in expected)


def test_types_differ_with_the_lists_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red twin: the CPU's own lists differ."""
    with own_on_cuda(monkeypatch):
        expected = types_of(autocast_functions.pads, "cuda")
    with torch.autocast("cpu", dtype=BF16), monkeypatch.context() as patch:
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: True)
        assert types_of(autocast_functions.pads, "cpu") != expected


def test_the_lists_are_torchs() -> None:
    """By name, except the loss that vgame keeps in float32; the programs above test the list of each operator."""
    torchs = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    ours = {f"aten::{name}" for name in f"{LOWER} {FLOAT32} {WIDEST}".split()}
    assert ours ^ torchs == {"aten::cross_entropy_loss"}


def test_a_capture_leaves_torchs_autocast_unchanged() -> None:
    before = torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype, torch.amp.autocast_mode._cast
    with as_on_cuda():
        pass
    assert before == (
        torch.autocast.__init__,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
        torch.amp.autocast_mode._cast,
    )
    with torch.autocast("cpu", dtype=BF16):
        assert F.pad(torch.ones(1, 2, 4, dtype=BF16), (1, 1), mode="reflect").dtype == torch.float32  # CPU's list


class WithFunctions(nn.Module):
    """Custom functions, inside autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return (AsOutside.apply(h) + InFloat32.apply(h) + Doubled.apply(h)).float()


def test_custom_autograd_functions_are_captured() -> None:
    """custom_fwd and custom_bwd, gradients included."""
    torch.manual_seed(0)
    model = WithFunctions()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with cuda():
            return model(batch["x"]).square().mean()

    task = Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), {"x": torch.randn(8, 4)}, batch=4)
    program = lower_task(task, Schedule(kind="constant", lr="0.1"), 1).program
    narrow = sum(getattr(o, "bfloat16", False) for o in program.operators)
    assert narrow >= 5
