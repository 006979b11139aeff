"""Play any optimizers: execute their steps for all steps of a job on tensors without data, and record them operator by
operator.

In: coupled optimizers and their schedulers (or the job's schedule), the number of steps. Out: for each trained
parameter the operators of a step, the numbers in them at every step, and the optimizer's initial state.
`vgame.program.optimizer_step` converts them to operators of a program. Only the optimizer's own arithmetic on Python
numbers is computed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from vgame.errors import ProgramError
from vgame.program.caught import Caught
from vgame.program.copied import Watch, clear_gradients, fixed, follow, parameters, tensors_kept, untouched
from vgame.program.coupled import Coupled
from vgame.program.hidden_state import line_of
from vgame.program.recorder import Form, Key, Outcome, Recorder, without_data
from vgame.program.shared import Shared
from vgame.program.slots import Slots
from vgame.program.torchs_steps import without_values
from vgame.program.unchanged import unchanged_outside
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
    coupled: Coupled,
    trained: Sequence[set[int]],
    rates: Sequence[Rates] | None,
    steps: int,
    frozen_steps: Mapping[int, Sequence[range]] = MappingProxyType({}),
    listener: NullProgress = NULL_PROGRESS,
    shared: Shared | None = None,
) -> list[dict[Key, Played]]:
    """For each optimizer the records by (group, place in it) of its parameters whose `id` is in its `trained`. Its
    `rates` are set before each step; schedulers step after all optimizers, as in an ordinary loop. `frozen_steps`: by
    `id` the steps without a gradient. `shared` records the changes that the steps make to objects of the loss."""
    with unchanged_outside(coupled.owners, coupled.model) as read, Caught().refused():
        copies, followers = coupled.copied()
        shared = shared or Shared()
        shared.begin((*coupled.optimizers, *coupled.schedulers), (*copies, *followers), read)
        pairs = zip(coupled.optimizers, copies, trained, strict=True)
        stages = [_Stage(original, copy, ids, copies, frozen_steps) for original, copy, ids in pairs]
        for step in range(1, steps + 1):
            given = [(stage, rate(step)) for stage, rate in zip(stages, rates or (), strict=bool(rates))]
            for stage, rate in given:
                stage.set_rates(rate)
            for stage in stages:
                stage.step(step)
                if stage is not stages[-1]:
                    shared.note()  # the loss of the next turn may read it
            for stage, rate in given:
                stage.refuse_other_rates(step, rate)
            follow(followers, copies)
            shared.note()
            if step % EVERY == 0:
                listener.progress("plays the optimizer", step, steps)
    return [stage.played for stage in stages]


def scheduled(coupled: Coupled, steps: int, shared: Shared | None = None) -> Iterator[list[dict[str, Any]]]:
    """The options of every group of an optimizer that is coupled with no other, at each step, as its schedulers set
    them. The optimizer does not step, so the iteration ends where a scheduler reads or changes more than options."""
    with unchanged_outside(coupled.owners, coupled.model) as read:
        (copy,), followers = coupled.copied()
        shared = shared or Shared()
        shared.begin((*coupled.optimizers, *coupled.schedulers), (copy, *followers), read)
        watch = Watch(copy, followers)
        for _ in range(steps):
            if watch.read:
                return
            yield [deepcopy({k: v for k, v in group.items() if k != "params"}) for group in copy.param_groups]
            try:
                follow(followers, guard=untouched)
            except ProgramError:
                if watch.read:
                    return
                raise
            shared.note()


class _Stage:
    """A copy of an optimizer over tensors without data, among the copies of those that it is coupled with. Equal
    parameters of a group share one record until a step treats them differently."""

    def __init__(
        self,
        original: torch.optim.Optimizer,
        copy: torch.optim.Optimizer,
        trained: set[int],
        coupled: Sequence[torch.optim.Optimizer],
        frozen_steps: Mapping[int, Sequence[range]],
    ) -> None:
        self.name = type(original).__name__
        self.optimizer, self.coupled = copy, coupled
        self.rest = [each for each in coupled if each is not copy]
        self.slots = Slots(copy)
        self.parameters, self.others = {}, {}
        self.played: dict[Key, Played] = {}
        self.frozen_steps: dict[Key, Sequence[range]] = {}
        alike: dict[tuple[Any, ...], Played] = {}
        pairs = zip(original.param_groups, copy.param_groups, strict=True)
        for number, (group, copies) in enumerate(pairs):
            for place, (p, own) in enumerate(zip(group["params"], copies["params"], strict=True)):
                key, shape = (number, place), tuple(p.shape)
                (self.parameters if id(p) in trained else self.others)[key] = own
                if id(p) in trained:
                    self.frozen_steps[key] = frozen_steps.get(id(p), ())
                    self.played[key] = alike.setdefault((number, shape, tuple(self.frozen_steps[key])), Played(shape))

    def set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def step(self, step: int) -> None:
        recorder = Recorder(self.name, self.slots)
        clear_gradients(self.optimizer, not any(self.frozen_steps.values()), self.others.values())
        for other, p in ((each, p) for each in self.rest for p in parameters(each)):
            p.grad = torch.empty_like(p, requires_grad=False)
            recorder.foreign |= {t.untyped_storage()._cdata: type(other).__name__ for t in (p, p.grad)}
        for key, p in (self.parameters | self.others).items():
            awake = key in self.parameters and not any(step in steps for steps in self.frozen_steps[key])
            p.grad = torch.empty_like(p, requires_grad=False) if awake else None
            slots = self._slots(p)
            recorder.begin(key, p, slots, {*slots, *(self.played[key].slots if key in self.played else ())})
        with _described(self.name), without_values(), self._own_changes(step), recorder:
            type(self.optimizer).step(self.optimizer)
        recorder.caught.refuse()
        for key, p in self.others.items():
            recorder.refuse_changed(key, p)
        self._note(step, {key: recorder.end(key, p, self._slots(p)) for key, p in self.parameters.items()})

    @contextmanager
    def _own_changes(self, step: int) -> Iterator[None]:
        """Context in which an optimizer changes neither groups nor flags, nor puts tensors into another's state."""
        before, kept, others = fixed(self.coupled), tensors_kept(self.rest), self._memory_of_others()
        yield
        if self._memory_of_others() != others:
            raise ProgramError(
                f"the optimizer {self.name} replaces gradients or the data of another optimizer's parameters in step "
                f"{step}, which a program does not follow; let each optimizer change its own"
            )
        if fixed(self.coupled) != before:
            raise ProgramError(
                f"the optimizer {self.name} changes the parameters of a group, or their requires_grad, in step {step}, "
                "but a program trains the same parameters in all steps; give them to groups before the task is made, "
                "freeze with Task(frozen=...)"
            )
        if not tensors_kept(self.rest) <= kept:
            raise ProgramError(
                f"the optimizer {self.name} puts tensors into another optimizer's state; keep them in its own"
            )

    def _memory_of_others(self) -> list[tuple[int, int]]:
        """The memory of the parameters of the other optimizers, and their gradients."""
        return [(p.untyped_storage()._cdata, id(p.grad)) for each in self.rest for p in parameters(each)]

    def refuse_other_rates(self, step: int, rates: Sequence[float]) -> None:
        """Raise ProgramError if a step has changed the rates of the job's schedule."""
        if [group["lr"] for group in self.optimizer.param_groups] != list(rates):
            raise ProgramError(
                f"the optimizer {self.name} changes its lr in step {step}, but the job's [schedule] sets the lr; "
                "remove the [schedule]"
            )

    def _slots(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        return {key: value for key, value in self.slots.of(p).items() if without_data(value)}

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


@contextmanager
def _described(name: str) -> Iterator[None]:
    """Context that turns an optimizer's failure on tensors without data into a ProgramError."""
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
