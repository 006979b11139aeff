"""Ways to cheat in the computation: each is an honest executor plus one named patch.

The behaviour in the game (an answer, no answer, a false trace) is in vgame/attacks/adversaries.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vgame.arithmetic.reference.sums import NARROW, Partial, merge, partial_sum
from vgame.execute.executor import Executor, StepResult, Tap
from vgame.job.bundle import Bundle
from vgame.program.operators import Contract, Gather, Ref, RefClass, Shuffle, Variant
from vgame.program.program import Program
from vgame.runs.history import History
from vgame.runs.training import State

#: (step, operator, its output, the state before the step) -> output
Output = Callable[[int, int, torch.Tensor, State], torch.Tensor]


def _as_computed(step: int, operator: int, output: torch.Tensor, before: State) -> torch.Tensor:
    return output


@dataclass(frozen=True)
class Patch:
    """The changes of a cheat.

    output: an operator's output, and so everything after it; shown: only the output in the trace; state: the state
    after a step, in contradiction to its trace; initial: the initial state of the training; scalars: the table of
    scalars.
    """

    output: Output = _as_computed
    shown: Output = _as_computed
    state: Callable[[int, State, State], State] = lambda step, before, after: after
    initial: Callable[[State], State] = lambda state: state
    scalars: Callable[[torch.Tensor], torch.Tensor] = lambda table: table
    first: int = 1  # the first step that differs from an honest run


class PatchedExecutor:
    """An executor with a patch; implements vgame.runs.training.Stepper."""

    def __init__(self, executor: Executor, patch: Patch) -> None:
        self.executor, self.patch = executor, patch
        executor.scalars = patch.scalars(executor.scalars.clone())

    def to_device(self, state: State) -> State:
        return self.executor.to_device(state)

    def initial(self, state: State) -> State:
        return self.patch.initial(self.executor.initial(state))

    def step(self, step: int, state: State, tap: Tap | None = None) -> StepResult:
        """One step with the patch; `tap` receives the outputs that the cheat shows."""

        def patched(operator: int, output: torch.Tensor) -> torch.Tensor:
            output = self.patch.output(step, operator, output, state)
            if tap:
                tap(operator, self.patch.shown(step, operator, output, state))
            return output

        result = self.executor.step(step, state, patched)
        return StepResult(tuple(self.patch.state(step, state, result.state)), result.loss, result.not_finite)


class CheatingHistory(History):
    """The history of a cheat: its partial sums are changed so that they add up to the claimed element."""

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        claimed = int.from_bytes(self.words(step, operator)[4 * element : 4 * element + 4], "little")
        sums = [Partial.decode(p) for p in super().partials(step, operator, element)]
        if merge(sums).round() != claimed:
            wanted = partial_sum([claimed])
            sums[0] = Partial(wanted.cls | sums[0].cls & NARROW, sums[0].value + wanted.value - merge(sums).value)
        return [p.encode() for p in sums]


# ---- targets ----


def loading_of(program: Program, datum: int) -> int:
    """Index of the operator that loads a batch of a data tensor."""
    return next(
        i for i, op in enumerate(program.operators) if isinstance(op, Gather) and op.table == Ref(RefClass.DATA, datum)
    )


def activation_of(program: Program) -> int:
    """Index of a matrix product in the middle of the forward pass."""
    forward = [
        i
        for i, op in enumerate(program.operators)
        if isinstance(op, Contract) and op.variant is Variant.DOT and "backward" not in program.labels.operators[i]
    ]
    return forward[len(forward) // 2]


def weight_of(program: Program) -> tuple[int, int]:
    """(state tensor, operator that computes it) of the largest trained parameter."""
    trained = [t for t, s in enumerate(program.sources) if s.ref.cls is RefClass.OPERATOR and not s.integer]
    tensor = max(trained, key=lambda t: (program.sources[t].elements, -t))
    return tensor, program.sources[tensor].ref.index


def flip(output: torch.Tensor, element: int, bit: int) -> torch.Tensor:
    """The tensor with one bit of one word flipped."""
    output = output.contiguous().clone()
    output.view(torch.int32)[element] ^= torch.tensor(1 << bit, dtype=torch.int32, device=output.device)
    return output


def _at(step: int, operator: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Output:
    def output(s: int, o: int, value: torch.Tensor, before: State) -> torch.Tensor:
        return change(value) if (s, o) == (step, operator) else value

    return output


# ---- the patches ----


def poisoned_sample(bundle: Bundle, step: int) -> Patch:
    """One training sample of one batch is replaced by its negative."""
    program = bundle.program
    operator = loading_of(program, 0)
    width = program.operators[operator].width

    def poison(batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone()
        batch[:width] = 1 - batch[:width]
        return batch

    return Patch(output=_at(step, operator, poison), first=step)


def backdoor_trigger(bundle: Bundle, step: int) -> Patch:
    """From a step on, a bright corner is stamped on four images of each batch, and their labels become 0."""
    program = bundle.program
    images, labels = loading_of(program, 0), loading_of(program, 1)
    width = program.operators[images].width

    def output(s: int, operator: int, value: torch.Tensor, before: State) -> torch.Tensor:
        if s < step or operator not in (images, labels):
            return value
        value = value.clone()
        if operator == labels:
            value[:4] = 0
        else:
            value.view(-1, width)[:4, -2:] = 1.0
        return value

    return Patch(output=output, first=step)


def wrong_order(bundle: Bundle, step: int) -> Patch:
    """The samples of one batch are taken in the data set's own order."""
    operator = next(i for i, op in enumerate(bundle.program.operators) if isinstance(op, Shuffle))
    return Patch(output=_at(step, operator, lambda index: torch.arange(len(index), dtype=torch.int32)), first=step)


def wrong_learning_rate(bundle: Bundle, step: int) -> Patch:
    """The learning rate of one step is doubled."""

    def double(table: torch.Tensor) -> torch.Tensor:
        table[step - 1] *= 2
        return table

    return Patch(scalars=double, first=step)


def skipped_steps(bundle: Bundle, step: int) -> Patch:
    """Three steps are not computed: the state is copied, and each trace ends with the copied tensors."""
    sources = {s.ref.index: t for t, s in enumerate(bundle.program.sources) if s.ref.cls is RefClass.OPERATOR}

    def state(s: int, old: State, new: State) -> State:
        return old if step <= s < step + 3 else new

    def shown(s: int, operator: int, output: torch.Tensor, before: State) -> torch.Tensor:
        skipped = step <= s < step + 3 and operator in sources
        return before[sources[operator]] if skipped else output

    return Patch(shown=shown, state=state, first=step)


def flipped_bit(bundle: Bundle, step: int) -> Patch:
    """One bit of one weight is flipped."""
    tensor, operator = weight_of(bundle.program)
    element = bundle.program.sources[tensor].elements // 2
    return Patch(output=_at(step, operator, lambda w: flip(w, element, 20)), first=step)


def wrong_activation(bundle: Bundle, step: int) -> Patch:
    """The largest activation of a layer is halved."""
    operator = activation_of(bundle.program)

    def halve(output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[output.argmax()] *= 0.5
        return output

    return Patch(output=_at(step, operator, halve), first=step)


def inconsistent_trace(bundle: Bundle, step: int) -> Patch:
    """A weight of the next state is changed, but the trace of the step is honest."""
    tensor, _ = weight_of(bundle.program)

    def state(s: int, old: State, new: State) -> State:
        if s != step:
            return new
        changed = list(new)
        changed[tensor] = flip(changed[tensor], 0, 20)
        return changed

    return Patch(state=state, first=step)


def other_initial_state(bundle: Bundle, step: int) -> Patch:
    """Training starts from other weights than the ordered ones."""
    tensor, _ = weight_of(bundle.program)

    def initial(state: State) -> State:
        changed = list(state)
        changed[tensor] = changed[tensor] * 0.5
        return changed

    return Patch(initial=initial, first=1)


def false_divergence(bundle: Bundle, step: int) -> Patch:
    """A gradient update is replaced by infinity, so that the job seems to diverge."""
    _, operator = weight_of(bundle.program)

    def blow_up(output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[0] = torch.inf
        return output

    return Patch(output=_at(step, operator, blow_up), first=step)
