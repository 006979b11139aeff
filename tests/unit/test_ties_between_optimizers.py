"""Ties of an optimizer that its copy would not have are refused: weak references, arrays in the memory of another
object, slots in the memory of others, attributes of classes. A changed object that a loss reads by such a tie is
found."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_steps import data, network
from optimizer_steps import loss as usual_loss
from torch import nn
from torch.optim import SGD, Optimizer

from vgame.errors import ProgramError
from vgame.program.lower import lower_task
from vgame.tasks.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")

REFUSED = r"which changes from step to step|as at a later step|is caught at|two forward passes of the same batch differ"


class Box:
    def __init__(self) -> None:
        self.n, self.factor = 0, 1.0


class Acting(SGD):
    """Does something with what it holds in each step."""

    def __init__(self, given: Any, act: Callable[[Any], Any], held: Any) -> None:
        super().__init__(given, lr=0.1)
        self.act, self.held = act, held

    def step(self, closure: Any = None) -> Any:
        self.act(self.held)
        return super().step(closure)


def nothing(held: Any) -> None:
    pass


def late(held: Any) -> None:
    """A change that begins at step 6."""
    held.n += 1
    if held.n > 5:
        held.factor = 3.0


def lower(model: nn.Module, loss: Callable[..., torch.Tensor], *optimizers: Optimizer) -> Any:
    return lower_task(Task(model, loss, list(optimizers), data(), 16), None, 12)


# ---- between optimizers ----

BOX, ARRAY, TENSOR = Box(), np.zeros(4), torch.zeros(4)
WEAK: dict[str, Any] = {
    "a reference": weakref.ref(BOX),
    "a proxy": weakref.proxy(BOX),
    "a method": weakref.WeakMethod(BOX.__init__),
    "a value": weakref.WeakValueDictionary({"box": BOX}),
    "a key": weakref.WeakKeyDictionary({BOX: 1}),
    "a set": weakref.WeakSet([BOX]),
    "in a list": [[weakref.ref(BOX)]],
}


@pytest.mark.parametrize("held", WEAK.values(), ids=WEAK)
def test_a_weak_reference_of_an_optimizer_is_refused(held: Any) -> None:
    model = network()
    with pytest.raises(ProgramError, match=r"Acting\.held\S* holds a weak reference to an object of"):
        lower(model, usual_loss, Acting(model.parameters(), nothing, held))


def test_a_weak_reference_to_another_optimizers_object_is_refused() -> None:
    model, box = network(), Box()
    own = list(model.parameters())
    first = Acting(own[:2], late, box)
    second = Acting(own[2:], lambda held: held().factor, weakref.ref(box))
    with pytest.raises(ProgramError, match="holds a weak reference to an object of Box"):
        lower(model, usual_loss, first, second)


def test_weak_references_to_classes_and_of_torchs_schedulers_are_accepted() -> None:
    model = network()
    optimizer = Acting(model.parameters(), nothing, [weakref.ref(Box), weakref.ref(nothing)])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    assert lower_task(Task(model, usual_loss, optimizer, data(), 16, schedulers=[scheduler]), None, 6)


BYTES = bytearray(8)
SHARED: dict[str, Any] = {
    "a tensor and its array": [TENSOR, TENSOR.numpy()],
    "a tensor and a part of its array": [TENSOR, TENSOR.numpy()[1:]],
    "an array and a part of it": [ARRAY, ARRAY[1:]],
    "an array and a tensor of it": {"a": ARRAY, "b": torch.from_numpy(ARRAY)},
    "two parts": [ARRAY[:3], ARRAY[2:]],
    "bytes and an array": [BYTES, np.frombuffer(BYTES, np.uint8)],
}


@pytest.mark.parametrize("held", SHARED.values(), ids=SHARED)
def test_an_array_in_the_memory_of_another_object_is_refused(held: Any) -> None:
    model = network()
    with pytest.raises(ProgramError, match=r"Acting\.held\S* and Acting\.held\S* share memory"):
        lower(model, usual_loss, Acting(model.parameters(), nothing, held))


def test_two_optimizers_that_share_memory_by_an_array_are_refused() -> None:
    model, tensor = network(), torch.zeros(2)
    own = list(model.parameters())
    first, second = Acting(own[:2], nothing, tensor), Acting(own[2:], nothing, tensor.numpy())
    with pytest.raises(ProgramError, match=r"Acting\.held and Acting\.held share memory"):
        lower(model, usual_loss, first, second)


def test_arrays_of_their_own_are_accepted() -> None:
    model = network()
    held = [np.ones(2), np.arange(6.0)[2:], torch.arange(3.0).numpy(), TENSOR, TENSOR[1:], ARRAY[:2], ARRAY[2:]]
    assert lower(model, usual_loss, Acting(model.parameters(), nothing, held))


class Momentum(Optimizer):
    """With slots that are made before the first step."""

    def __init__(self, given: Any, slots: Any) -> None:
        super().__init__(given, {"lr": 0.1})
        for p, slot in zip(self.param_groups[0]["params"], slots, strict=True):
            self.state[p]["m"] = slot

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.sub_(self.state[p]["m"].mul_(0.9).add_(p.grad), alpha=0.1)


def squares() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 3, bias=False))


FLAT = torch.zeros(60)
SLOTS: dict[str, Callable[[Any], Any]] = {
    "one tensor": lambda _: [torch.zeros(6, 6)] * 2,
    "views of one tensor": lambda _: [FLAT[:36].view(6, 6), FLAT[24:].view(6, 6)],
}


@pytest.mark.parametrize("make", SLOTS.values(), ids=SLOTS)
def test_slots_of_two_optimizers_in_one_memory_are_refused(make: Callable[[Any], Any]) -> None:
    model = squares()
    own = list(model.parameters())
    first, second = make(own)
    optimizers = Momentum(own[:1], [first]), Momentum(own[1:2], [second]), SGD(own[2:], lr=0.1)
    with pytest.raises(ProgramError, match=r"the memory of .* and of .* is shared in the optimizers"):
        lower(model, usual_loss, *optimizers)


def test_slots_in_parts_of_one_memory_are_accepted() -> None:
    model, flat = squares(), torch.zeros(72)
    own = list(model.parameters())
    slots = [flat[:36].view(6, 6), flat[36:].view(6, 6)]
    assert lower(model, usual_loss, Momentum(own[:2], slots), SGD(own[2:], lr=0.1))


class Config:
    factor = 1.0
    seen: list[int] = []  # noqa: RUF012


def lower_the_factor(_: Any) -> None:
    Config.factor *= 0.5


def note(_: Any) -> None:
    Config.seen.append(1)


class Counted:
    n = 0

    def count(self) -> None:
        type(self).n += 1


@pytest.mark.parametrize(
    ("act", "held", "name"),
    [
        (lower_the_factor, None, r"Config\.factor"),
        (note, None, r"Config\.seen"),
        (lambda held: held.count(), Counted(), r"Counted\.n"),
    ],
)
def test_a_changed_attribute_of_any_class_is_refused(act: Callable[[Any], Any], held: Any, name: str) -> None:
    model = network()
    with pytest.raises(ProgramError, match=rf"the optimizer Acting or its schedulers change {name}"):
        lower(model, usual_loss, Acting(model.parameters(), act, held))
    Config.factor, Counted.n = 1.0, 0
    Config.seen.clear()


# ---- objects that a loss reaches ----


def by_a_parameter(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    model[0].weight.box = box  # type: ignore[index, union-attr]
    return lambda m: m[0].weight.box  # type: ignore[index, union-attr]


def by_a_buffer(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    tensor = torch.zeros(1)
    tensor.box = box  # type: ignore[attr-defined]
    return lambda m: tensor.box  # type: ignore[attr-defined]


def by_a_large_list(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = [box, *range(2000)]
    return lambda m: held[0]


def by_a_large_dictionary(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held: dict[int, Any] = {n: n for n in range(2000)} | {-1: [box]}
    return lambda m: held[-1][0]


def by_a_view_of_a_dictionary(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = types.MappingProxyType({"box": box})
    return lambda m: held["box"]


def by_its_values(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = {"box": box}.values()
    return lambda m: next(iter(held))


def by_a_weak_reference(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = weakref.ref(box)
    return lambda m: held()


def by_a_weak_proxy(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = weakref.proxy(box)
    return lambda m: held


def by_a_weak_dictionary(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = weakref.WeakValueDictionary({"box": box})
    return lambda m: held["box"]


def by_an_array(model: nn.Module, box: Box) -> Callable[[nn.Module], Any]:
    held = np.array([box], dtype=object)
    return lambda m: held[0]


WAYS = [
    by_a_parameter, by_a_buffer, by_a_large_list, by_a_large_dictionary, by_a_view_of_a_dictionary, by_its_values,
    by_a_weak_reference, by_a_weak_proxy, by_a_weak_dictionary, by_an_array,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_an_object_that_changes_later_is_found_by_any_way(way: Callable[..., Any]) -> None:
    model, box = network(), Box()
    reach = way(model, box)
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, lambda m, b: usual_loss(m, b) * reach(m).factor, Acting(model.parameters(), late, box))
    assert vars(box) == {"n": 0, "factor": 1.0}


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_an_object_that_a_loss_does_not_read_is_captured_in_any_way(way: Callable[..., Any]) -> None:
    model, box = network(), Box()
    reach = way(model, box)

    def loss(m: nn.Module, b: Any) -> torch.Tensor:
        return usual_loss(m, b) if reach(m) is not None else torch.zeros(())

    assert lower(model, loss, Acting(model.parameters(), late, box))


def grow(held: torch.Tensor) -> None:
    held.add_(1)


MEMORY: dict[str, Callable[[torch.Tensor], Callable[[], Any]]] = {
    "a view": lambda t: lambda view=t[0]: view,
    "a number of a view": lambda t: lambda view=t[:1]: view.item(),
    "an array": lambda t: lambda array=t.numpy(): float(array[0]),
    "a part of an array": lambda t: lambda array=t.numpy()[1:]: float(array[0]),
    "a tensor of its array": lambda t: lambda other=torch.from_numpy(t.numpy()): other[1],
}


@pytest.mark.parametrize("view", MEMORY.values(), ids=MEMORY)
def test_a_view_of_a_tensor_that_a_step_changes_is_refused(view: Callable[..., Any]) -> None:
    model, held = network(), torch.ones(2)
    read = view(held)
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, lambda m, b: usual_loss(m, b) * read(), Acting(model.parameters(), grow, held))


def test_a_tensor_whose_array_a_step_changes_is_refused() -> None:
    model, tensor = network(), torch.ones(2)
    optimizer = Acting(model.parameters(), lambda held: held.__iadd__(1), tensor.numpy())
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, lambda m, b: usual_loss(m, b) * tensor[0], optimizer)


class Hot(Box):
    def scale(self) -> float:
        return 3.0


class Cold(Box):
    def scale(self) -> float:
        return 1.0


def heat(held: Any) -> None:
    held.n += 1
    if held.n > 5:
        held.__class__ = Hot


def trains(held: Any) -> None:
    held.n += 1
    held.tensor.requires_grad_(held.n > 5)


def test_a_class_that_a_step_changes() -> None:
    model, held = network(), Cold()
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, lambda m, b: usual_loss(m, b) * held.scale(), Acting(model.parameters(), heat, held))
    assert type(held) is Cold


def test_requires_grad_that_a_step_changes() -> None:
    model, held = network(), SimpleNamespace(n=0, tensor=torch.ones(1))
    read = lambda: 3.0 if held.tensor.requires_grad else 1.0  # noqa: E731
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, lambda m, b: usual_loss(m, b) * read(), Acting(model.parameters(), trains, held))
    assert not held.tensor.requires_grad


SENTINEL = object()


def none_for_a_time(held: Any) -> None:
    held.n += 1
    held.factor = None if held.n in (3, 4) else 1.0


def a_flag_for_a_time(held: Any) -> None:
    held.n += 1
    held.factor = [0, "a", True, SENTINEL][held.n % 4]


@pytest.mark.parametrize("only", [None, True, SENTINEL], ids=["None", "True", "an object"])
def test_a_value_that_is_held_for_a_time_and_known_by_its_identity(only: Any) -> None:
    model, box = network(), Box()
    act = none_for_a_time if only is None else a_flag_for_a_time
    read = lambda: 3.0 if box.factor is only else 1.0  # noqa: E731
    with pytest.raises(ProgramError, match=REFUSED):
        lower(model, lambda m, b: usual_loss(m, b) * read(), Acting(model.parameters(), act, box))
