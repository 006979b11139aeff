"""The user's side of each stage: the task's own loss, clipping, optimizer and average, run by torch with shadows of
binary64 (vgame/validation/shadow.py).

In: a task, and the initial values of a stage. Out: the results of the stage, by name: `exact` from the shadows,
`rounded` as torch computes them in float32. The task's model and optimizers are left unchanged, also on errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.swa_utils import get_ema_avg_fn, get_swa_avg_fn
from torch.overrides import TorchFunctionMode

from vgame.program.autocast import as_on_cuda
from vgame.program.capture import _train, _without_mkldnn, _without_validation
from vgame.program.composed import CLAMPS
from vgame.program.copied import clear_gradients, deep_copy, follow, like, parameters
from vgame.program.coupled import Coupled
from vgame.program.hidden_state import line_of
from vgame.program.optimizers import has_rule, rule_of
from vgame.program.play import scheduled
from vgame.program.recorder import Counters
from vgame.program.restored import restored
from vgame.program.slots import Slots
from vgame.program.torchs_steps import plain_loops, without_values
from vgame.tasks.task import Task
from vgame.validation.budget import Budget, Exhausted
from vgame.validation.draws import Drawn
from vgame.validation.shadow import CannotCheck, Shadows

T = torch.Tensor
Tensors = Mapping[str, T]
SQUARES = ("sq", "var", "sum")  # substrings in the names of slots of squares, for classes without a rule
CHUNK = 2**24  # elements of parameters per comparison of an optimizer step


def run_user(run: Callable[[], Any]) -> Any:
    """Run the user's code. CannotCheck with the code's error if it fails."""
    try:
        return run()
    except (CannotCheck, Exhausted):
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise CannotCheck(
            f"your code fails when torch runs it: {type(error).__name__}: {text}{line_of(error)}"
        ) from error


@dataclass
class Side:
    """The results of one side in a stage, by name: in binary64, and in binary32 if available."""

    exact: dict[str, T | None] = field(default_factory=dict)
    rounded: dict[str, T | None] = field(default_factory=dict)
    narrow: bool = False  # some result is bfloat16


def as_trained(model: nn.Module) -> ExitStack:
    """Context in which the model runs as in the capture; restores the model afterwards."""
    stack = ExitStack()
    stack.enter_context(torch.enable_grad())
    stack.enter_context(_same_contents(model))
    stack.enter_context(restored(model))
    _train(model)
    for context in (sdpa_kernel(SDPBackend.MATH), _without_mkldnn(), _without_validation(), as_on_cuda(), _Clamps()):
        stack.enter_context(context)
    return stack


class _Clamps(TorchFunctionMode):
    """Context in which the limits of clamp stay tensors: beside a number, torch reads a tensor as a binary32 number."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return CLAMPS.get(function, function)(*args, **(kwargs or {}))


@contextmanager
def _same_contents(model: nn.Module) -> Iterator[None]:
    """Context that restores the contents of parameters and buffers, and the gradients."""
    tensors = [t for _, t in (*model.named_parameters(), *model.named_buffers())]
    before = [(t, t.detach().clone(), t.grad) for t in tensors]
    chance = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(chance)
        with torch.no_grad():
            for tensor, content, gradient in before:
                tensor.grad = gradient
                if not same(tensor, content):
                    tensor.copy_(content)


def same(a: T, b: T) -> bool:
    """Whether words are equal; all NaNs count as equal."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def gradients(
    task: Task,
    loss: Callable[..., T],
    before: Tensors,
    batches: Sequence[Tensors],
    draws: Sequence[Drawn],
    budget: Budget,
    dtype: torch.dtype = torch.float64,
    shadows: Shadows | None = None,
) -> Side:
    """`loss`, `gradient.NAME` (None if torch computes none) and `buffer.NAME` after the batches of a step."""
    side, total = Side(), torch.zeros((), dtype=dtype)
    with as_trained(task.model):
        _play_before(task, loss, batches[0])
        trains = any(p.requires_grad for _, p in task.model.named_parameters())  # an evaluation has no gradients
        shadows = shadows or Shadows(budget, dtype=dtype)
        tensors = {**dict(task.model.named_parameters()), **dict(task.model.named_buffers())}
        for name, tensor in tensors.items():
            tensor.grad = None
            if name in before and not same(tensor.detach().to(before[name].dtype), before[name]):
                shadows.put(tensor, before[name])
        for batch, drawn in zip(batches, draws, strict=True):
            shadows.draws = drawn
            with shadows:
                result = loss(task.model, {name: t.clone() for name, t in batch.items()})
                share = result / task.accumulate if task.accumulate > 1 else result
                if trains:
                    share.backward()
            total = total + shadows.of(share)
        found = {f"gradient.{n}": p.grad for n, p in task.model.named_parameters() if p.requires_grad}
        found |= {f"buffer.{n}": t for n, t in task.model.named_buffers()}
        side.exact = {n: None if t is None else shadows.of(t).clone() for n, t in found.items()} | {"loss": total}
        side.rounded = {n: None if t is None else t.detach().clone() for n, t in found.items()}
        side.narrow = shadows.narrow
    return side


def _play_before(task: Task, loss: Callable[..., T], batch: Tensors) -> None:
    """Run the losses of earlier turns, for the changes that they make to the model other than to its tensors."""
    with _same_contents(task.model):
        for each in task.losses[: task.losses.index(loss)]:
            each(task.model, {name: t.clone() for name, t in batch.items()})


def clipped(task: Task, given: Mapping[str, T | None], budget: Budget) -> Side:
    """The gradients after the task's clipping; None for parameters without a gradient in this step."""
    shadows = Shadows(budget)
    parameters = _with_gradients(shadows, {n: (g, g) for n, g in given.items() if g is not None})
    with shadows:
        if task.clip is not None:
            nn.utils.clip_grad_norm_(parameters.values(), task.clip)
        if task.clip_value is not None:
            nn.utils.clip_grad_value_(parameters.values(), task.clip_value)
    return Side({n: shadows.of(p.grad).clone() for n, p in parameters.items()})


def _with_gradients(shadows: Shadows, pairs: Mapping[str, tuple[T, T]]) -> dict[str, nn.Parameter]:
    """Parameters with these (values, gradients)."""
    made = {}
    for name, (value, gradient) in pairs.items():
        made[name] = p = nn.Parameter(torch.empty(value.shape))
        p.grad = torch.empty(value.shape)
        shadows.put(p, value)
        shadows.put(p.grad, gradient)
    return made


Groups = Callable[[int], Sequence[float]]  # step -> the learning rate of each group


def chunks(names: Iterable[str], shapes: Mapping[str, Sequence[int]]) -> Iterator[list[str]]:
    """Names in groups of about CHUNK elements."""
    chunk, size = [], 0
    for name in names:
        chunk.append(name)
        size += torch.Size(shapes[name]).numel()
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class AtStep:
    """A task's optimizer before a step: its options after its schedulers, its counters."""

    def __init__(
        self,
        coupled: Coupled,
        optimizer: torch.optim.Optimizer,
        by_rule: bool,
        trained: Mapping[int, str],
        frozen_steps: Mapping[str, Sequence[range]],
        rates: Callable[[torch.optim.Optimizer], Groups | None],
        step: int,
        budget: Budget,
    ) -> None:
        """`by_rule`: the program has the exact formulas of a rule, so the optimizer's single numbers get shadows in
        binary64. `trained`: names of the parameters with a gradient, by `id`."""
        self.optimizer, self.by_rule, self.step = optimizer, by_rule, step
        copies, followers = coupled.copied()
        pairs = [*zip(coupled.optimizers, copies, strict=True)]
        both = [pair for o, c in pairs for pair in zip(parameters(o), parameters(c), strict=True)]
        self.names = {id(c): trained[id(p)] for p, c in both if id(p) in trained}  # by id of the copy's parameter
        self.frozen_steps = frozen_steps
        self.rules = [rule_of(optimizer, group) for group in optimizer.param_groups] if has_rule(optimizer) else []
        self.kept = {slot.name: slot for rule in self.rules for slot in rule.slots}
        self.quick = bool(self.rules) and self._is_quick(coupled)
        for played in range(1, step + 1):
            budget.check()
            for original, copy in pairs:
                if (given := rates(original)) is not None:
                    _set_rates(copy, given(played))
                if original is optimizer and played == step:
                    self.copied, self.slots = copy, Slots(copy)
                    break
                if not self.quick:
                    self._play(original, copy, played)
            else:
                follow(followers, copies)
        if self.quick and step > 1:
            self._count()

    def _is_quick(self, coupled: Coupled) -> bool:
        """Whether the optimizer's numbers before the step follow without its own steps."""
        if not coupled.alone or any(name in self.frozen_steps for name in self.names.values()):
            return False
        groups = [*scheduled(coupled, self.step)]
        slots = [[rule_of(self.optimizer, group).slots for group in each] for each in groups]
        return len(groups) == self.step and all(each == slots[0] for each in slots)

    def awake(self, name: str) -> bool:
        return not any(self.step in steps for steps in self.frozen_steps.get(name, ()))

    def begun(self, name: str) -> bool:
        """Whether an earlier step has made the parameter's slots."""
        slots = (self.slots.of(p) for p in parameters(self.copied) if self.names.get(id(p)) == name)
        kept = any(t.is_meta for own in slots for t in own.values())
        return self.step > 1 and (self.quick or kept)

    def is_square(self, slot: str) -> bool:
        """Whether a slot has the scale of the gradient's square: by its rule, or without one by its name."""
        known = {name: own.square for own in self.kept.values() for name in (own.name, own.torchs)}
        return known.get(slot, any(part in slot for part in SQUARES))

    def _torchs(self, slot: str) -> str:
        """The optimizer class's key for a slot."""
        return self.kept[slot].torchs if slot in self.kept else slot

    def _play(self, original: torch.optim.Optimizer, copy: torch.optim.Optimizer, step: int) -> None:
        clear_gradients(copy)
        for p in parameters(copy):
            name = self.names.get(id(p))
            rests = name is None or any(step in steps for steps in self.frozen_steps.get(name, ()))
            p.grad = None if rests else torch.empty_like(p, requires_grad=False)
        with without_values(), Counters():
            type(original).step(copy)

    def _count(self) -> None:
        """Set the counters to the number of previous steps."""
        for group, rule in zip(self.copied.param_groups, self.rules, strict=True):
            for p in group["params"] if rule.counters else ():
                if id(p) in self.names:
                    self.copied.state[p] |= {key: torch.tensor(float(self.step - 1)) for key in rule.counters}

    def stepped(self, values: Tensors, gradients: Tensors, slots: Mapping[str, Tensors], budget: Budget) -> Side:
        """`NAME` and `SLOT.NAME` after the step of the parameters in `values`. `slots`: by parameter; empty if the
        optimizer has none yet."""
        shadows = Shadows(budget, steps=True)
        optimizer, mine = self._real(shadows, values, gradients, slots)
        with plain_loops(), shadows, torch.no_grad():
            type(self.optimizer).step(optimizer)
        own, kept = {slot.torchs: name for name, slot in self.kept.items()}, Slots(optimizer)
        found: dict[str, T] = {}
        for name, p in mine.items():
            found[name] = p.detach()
            found |= {f"{s if s in slots[name] else own.get(s, s)}.{name}": t for s, t in kept.of(p).items()}
        return Side({name: shadows.of(t).clone() for name, t in found.items()})

    def _real(
        self, shadows: Shadows, values: Tensors, gradients: Tensors, slots: Mapping[str, Tensors]
    ) -> tuple[torch.optim.Optimizer, dict[str, nn.Parameter]]:
        """The optimizer over parameters with data; parameters outside `values` have neither data nor gradient."""
        memo: dict[int, Any] = {}
        mine: dict[str, nn.Parameter] = {}
        for p in parameters(self.copied):
            name = self.names.get(id(p), "")
            if name not in values:
                memo[id(p)] = like(p, torch.empty(0))
                continue
            memo[id(p)] = mine[name] = real = like(p, torch.empty(values[name].shape))
            shadows.put(real, values[name])
            if self.awake(name):
                real.grad = torch.empty(real.shape)
                shadows.put(real.grad, gradients[name])
        for p in parameters(self.copied):
            own = slots.get(self.names.get(id(p), ""), {})
            for slot, tensor in self.slots.of(p).items():
                if tensor.is_meta:
                    memo[id(tensor)] = self._slot(shadows, own, slot, tensor)
        filled = {id(tensor) for tensor in memo.values()}
        optimizer = deep_copy(self.copied, memo)
        for tensor in memo.values() if not self.by_rule else ():
            if isinstance(tensor, T) and not tensor.is_meta and id(tensor) not in filled:
                shadows.count(tensor)
        for name, p in mine.items() if self.quick and self.step > 1 else ():
            for slot, value in slots.get(name, {}).items():
                if (key := self._torchs(slot)) not in optimizer.state[p]:
                    optimizer.state[p][key] = self._slot(shadows, slots[name], slot, value)
        return optimizer, mine

    def _slot(self, shadows: Shadows, slots: Tensors, slot: str, like: T) -> T:
        real = torch.zeros(like.shape)
        value = next((v for k, v in slots.items() if slot in (k, self._torchs(k))), None)
        if value is not None:
            shadows.put(real, value)
        return real


def _set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def averaged(average: float | str, old: Tensors, new: Tensors, step: int) -> Side:
    """`average.NAME` after a step."""
    mean = get_swa_avg_fn() if average == "equal" else get_ema_avg_fn(average)
    if step == 1:
        return Side({f"average.{n}": t for n, t in new.items()})
    return Side({f"average.{n}": mean(old[n], t, torch.tensor(step - 1)) for n, t in new.items()})


__all__ = ["AtStep", "Side", "averaged", "clipped", "gradients", "run_user", "same"]
