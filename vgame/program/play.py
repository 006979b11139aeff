"""Play any optimizer: execute its step for all steps of a job on tensors without data, and record it operator by
operator.

In: an optimizer, its schedulers (or the job's schedule), the number of steps. Out: for each trained parameter the
operators of a step, the numbers in them at every step, and the optimizer's initial state.
`vgame.program.optimizer_step` converts them to operators of a program. Only the optimizer's own arithmetic on Python
numbers is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pickle import PicklingError
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from vgame.errors import ProgramError
from vgame.program.copied import Watch, clear_gradients, copied, follow, untouched
from vgame.program.functions_held import unchanged_outside
from vgame.program.hidden_state import line_of
from vgame.program.recorder import Form, Key, Outcome, Recorder, state_of, without_data
from vgame.program.shared import Shared
from vgame.program.torchs_steps import without_values
from vgame.system.progress import NULL_PROGRESS, NullProgress

MOST_FORMS = 4  # forms of the step of one optimizer, such as the first step, and steps before and after a threshold
EVERY = 200  # steps between two reports of progress


@dataclass
class Played:
    """All steps of parameters with the same treatment. `which[t]`: the form of step t + 1; `numbers[form]`: one row per
    step of it."""

    shape: tuple[int, ...]
    forms: list[Form] = field(default_factory=list)
    which: array = field(default_factory=lambda: array("b"))
    numbers: list[list[array]] = field(default_factory=list)
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)  # shapes
    # of slots made by a step; others are the optimizer's own
    initial: dict[str, float] = field(default_factory=dict)


Rates = Callable[[int], Sequence[float]]  # step -> the learning rate of each group


def play(
    optimizer: torch.optim.Optimizer,
    trained: set[int],
    schedulers: Sequence[LRScheduler],
    rates: Rates | None,
    steps: int,
    asleep: Mapping[int, Sequence[range]] = MappingProxyType({}),
    listener: NullProgress = NULL_PROGRESS,
    shared: Shared | None = None,
) -> dict[Key, Played]:
    """The records by (group, place in it) of the parameters whose `id` is in `trained`. `rates` are set before each
    step; schedulers step after each step, as in torch's own loop. `asleep`: by `id` the steps without a gradient.
    `shared` notes what the steps change of the loss's objects."""
    with unchanged_outside(optimizer, schedulers):
        stage = _Stage(optimizer, trained, schedulers, asleep, shared or Shared())
        for step in range(1, steps + 1):
            stage.step(step, rates(step) if rates else None)
            if step % EVERY == 0:
                listener.progress("plays the optimizer", step, steps)
    return stage.played


def scheduled(
    optimizer: torch.optim.Optimizer, schedulers: Sequence[LRScheduler], steps: int, shared: Shared | None = None
) -> Iterator[list[dict[str, Any]]]:
    """The options of every group at each step, as the schedulers set them; the optimizer does not step, so the options
    end where a scheduler reads or changes more than options."""
    with unchanged_outside(optimizer, schedulers):
        copy, followers = _copies(optimizer, schedulers)
        shared = shared or Shared()
        shared.begin((optimizer, *schedulers), (copy, *followers))
        watch = Watch(copy, followers)
        for _ in range(steps):
            if watch.read:
                return
            yield [deepcopy({k: v for k, v in group.items() if k != "params"}) for group in copy.param_groups]
            try:
                follow(followers, untouched)
            except ProgramError:
                if watch.read:
                    return
                raise
            shared.note()


def _copies(
    optimizer: torch.optim.Optimizer, schedulers: Sequence[LRScheduler]
) -> tuple[torch.optim.Optimizer, list[LRScheduler]]:
    """Copies to play; ProgramError if Python cannot copy what they hold."""
    try:
        return copied(optimizer, schedulers)
    except (TypeError, PicklingError) as error:
        raise ProgramError(
            f"the optimizer {type(optimizer).__name__} or a scheduler of it holds an object that cannot be copied "
            f"({error}), but its steps are played on a copy; let it hold numbers, texts, tensors and containers only"
        ) from None


class _Stage:
    """A copy of an optimizer over tensors without data. Equal parameters of a group share one record until a step
    treats them differently."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trained: set[int],
        schedulers: Sequence[LRScheduler],
        asleep: Mapping[int, Sequence[range]],
        shared: Shared,
    ) -> None:
        self.name, self.shared = type(optimizer).__name__, shared
        self.optimizer, self.schedulers = _copies(optimizer, schedulers)
        shared.begin((optimizer, *schedulers), (self.optimizer, *self.schedulers))
        self.parameters, self.others = {}, {}
        self.played: dict[Key, Played] = {}
        self.asleep: dict[Key, Sequence[range]] = {}
        alike: dict[tuple[Any, ...], Played] = {}
        pairs = zip(optimizer.param_groups, self.optimizer.param_groups, strict=True)
        for number, (group, copies) in enumerate(pairs):
            for place, (p, copy) in enumerate(zip(group["params"], copies["params"], strict=True)):
                key, shape = (number, place), tuple(p.shape)
                (self.parameters if id(p) in trained else self.others)[key] = copy
                if id(p) in trained:
                    self.asleep[key] = asleep.get(id(p), ())
                    self.played[key] = alike.setdefault((number, shape, tuple(self.asleep[key])), Played(shape))

    def step(self, step: int, rates: Sequence[float] | None) -> None:
        recorder = Recorder(self.name, self.optimizer.state)
        clear_gradients(self.optimizer, not any(self.asleep.values()), self.others.values())
        for key, p in (self.parameters | self.others).items():
            awake = key in self.parameters and not any(step in steps for steps in self.asleep[key])
            p.grad = torch.empty_like(p, requires_grad=False) if awake else None
            slots = _slots(self.optimizer, p)
            recorder.begin(key, p, slots, {*slots, *(self.played[key].slots if key in self.played else ())})
        groups = self.optimizer.param_groups
        for group, rate in zip(groups, rates or (), strict=bool(rates)):
            group["lr"] = rate
        with _described(self.name), without_values(), recorder:
            type(self.optimizer).step(self.optimizer)
        recorder.caught.refuse()
        if rates and [group["lr"] for group in groups] != list(rates):
            raise ProgramError(
                f"the optimizer {self.name} changes its lr in step {step}, but the job's [schedule] sets the lr; "
                "remove the [schedule]"
            )
        for key, p in self.others.items():
            recorder.refuse_changed(key, p)
        self._note(step, {key: recorder.end(key, p, _slots(self.optimizer, p)) for key, p in self.parameters.items()})
        follow(self.schedulers)
        self.shared.note()

    def _note(self, step: int, outcomes: Mapping[Key, Outcome]) -> None:
        """Add a step to every record; split records of parameters with different treatment."""
        records: dict[int, list[tuple[Outcome, Played]]] = {}
        for key, outcome in outcomes.items():
            split = records.setdefault(id(self.played[key]), [])
            record = next((played for other, played in split if other == outcome), None)
            if record is None:
                record = deepcopy(self.played[key]) if split else self.played[key]
                split.append((outcome, record))
            self.played[key] = record
        for outcome, played in (pair for split in records.values() for pair in split):
            self._add(played, step, outcome)

    def _add(self, played: Played, step: int, outcome: Outcome) -> None:
        for slot, shape in outcome.slots:
            if played.slots.setdefault(slot, shape) != shape:
                raise ProgramError(
                    f"the optimizer {self.name} changes the shape of its {slot} from {played.slots[slot]} to {shape} "
                    f"in step {step}"
                )
        for slot, number in outcome.made:
            played.initial.setdefault(slot, number)
        numbers = array("d", outcome.numbers)
        if outcome.form not in played.forms:
            if len(played.forms) == MOST_FORMS:
                raise ProgramError(
                    f"the optimizer {self.name} computes step {step} with a {MOST_FORMS + 1}th sequence of operators; "
                    f"a program holds at most {MOST_FORMS}"
                )
            played.forms.append(outcome.form)
            played.numbers.append([array("d") for _ in numbers])
        which = played.forms.index(outcome.form)
        played.which.append(which)
        for column, number in zip(played.numbers[which], numbers, strict=True):
            column.append(number)


def _slots(optimizer: torch.optim.Optimizer, p: torch.Tensor) -> dict[str, torch.Tensor]:
    held = state_of(type(optimizer).__name__, optimizer.state, p)
    return {key: value for key, value in held.items() if without_data(value)}


@contextmanager
def _described(name: str) -> Iterator[None]:
    """Context that turns an optimizer's failure on tensors without data into one sentence."""
    try:
        yield
    except ProgramError:
        raise
    except Exception as error:
        what = " ".join(str(error).split("\n")[0].split())
        if isinstance(error, TypeError) and "closure" in what:
            raise ProgramError(
                f"the optimizer {name} needs a closure, which computes the loss again; a program computes it once in "
                "a step: choose an optimizer that reads p.grad"
            ) from None
        by_values = "meta" in what.lower() or "item" in what.lower()
        raise ProgramError(
            f"the optimizer {name} branches on the values of its tensors{line_of(error)}, which cannot be captured; "
            "compute with tensors (torch.where, torch.clamp) instead"
            if by_values
            else f"the step of the optimizer {name} fails{line_of(error)}: {type(error).__name__}: {what}"
        ) from None
