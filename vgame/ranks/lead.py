"""Rank 0 trains; the others execute its orders. So a run is driven, written and resumed as with one rank
(vgame/runs/training.py).

In: a bundle, a group. Out: `Leader`, with the steps of an executor; on the other ranks `follow`, which ends with the
run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from typing import overload

import torch

from vgame.errors import VgameError
from vgame.execute.executor import Executor, StepResult, Tap
from vgame.job.bundle import Bundle
from vgame.ranks.check import checked_step
from vgame.ranks.exchange import Group, shares_of
from vgame.ranks.executor import RankExecutor

END, LOAD, STEP, GATHER, ROOTS, FAILED = range(6)
WORDS = 4  # words of an order: kind, step or tensor, version of the state, whether to compute twice


def rank_executor(bundle: Bundle, kind: str, group: Group) -> RankExecutor:
    return RankExecutor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, kind, group)


class Shared(Sequence[torch.Tensor]):
    """A state distributed over the ranks; a tensor is gathered at each access, and not cached."""

    def __init__(self, leader: Leader, version: int, parts: Sequence[torch.Tensor]) -> None:
        self.leader, self.version, self.parts = leader, version, parts

    @cached_property
    def roots(self) -> list[bytes]:
        """The roots of the tensors; every rank hashes its share."""
        return self.leader.roots(self)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.leader.collect(self, range(len(self))[index])

    def __len__(self) -> int:
        return len(self.parts)


class Leader:
    """The steps of all ranks, as a stepper of a run (vgame.runs.training.Stepper)."""

    def __init__(self, bundle: Bundle, kind: str, executor: RankExecutor, check: float = 0.0) -> None:
        self.bundle, self.kind, self.executor, self.group = bundle, kind, executor, executor.group
        self.check, self.dice = check, random.SystemRandom()  # no rank knows in advance which steps are checked
        self.version, self.idle, self.ended = 0, True, False

    def initial(self, state: Sequence[torch.Tensor]) -> Shared:
        return self.to_device(state)

    def to_device(self, state: Sequence[torch.Tensor]) -> Shared:
        """Distribute a state: every rank gets its part."""
        state = tuple(state)  # before the others wait for their parts
        self._order(LOAD, 0)
        parts = give_out(self.group, self.executor, state)
        self.idle = True
        return Shared(self, self.version, parts)

    def step(self, step: int, state: Shared, tap: Tap | None = None) -> StepResult:
        """The executor's `step`. With a tap, rank 0 alone computes the whole step."""
        if tap is not None:
            bundle = self.bundle
            alone = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, self.kind)
            return alone.step(step, alone.to_device(tuple(state)), tap)
        twice = self.dice.random() < self.check
        self._order(STEP, step, state.version, twice)
        result = _step(self.executor, step, state.parts, twice)
        self.group.note(step, "between")
        self.idle = True
        return StepResult(Shared(self, self.version, result.state), result.loss, result.not_finite)

    def collect(self, state: Shared, tensor: int) -> torch.Tensor:
        """A tensor of a state: the newest one, or the one before it."""
        if self.executor.plan.state[tensor] is None:
            return state.parts[tensor]
        self._look_at(state)
        self._order(GATHER, tensor, state.version)
        whole = self.executor.gathered(tensor, state.parts[tensor])
        assert whole is not None, "rank 0 gathers"
        self.idle = True
        return whole

    def roots(self, state: Shared) -> list[bytes]:
        self._look_at(state)
        self._order(ROOTS, 0, state.version)
        roots = self.executor.roots(state.parts)
        self.idle = True
        return roots

    def _look_at(self, state: Shared) -> None:
        """VgameError unless the other ranks still hold the state: they keep the newest one and the one before it until
        the end."""
        if self.ended or self.version - state.version > 1:
            raise VgameError(
                f"state {state.version} of the ranks is read too late: copy the needed tensors before the end of the "
                "next step"
            )

    def end(self, failed: bool = False) -> None:
        """End the other ranks. Within a step no order reaches them; the signs of life end them."""
        if self.idle:
            self._order(FAILED if failed else END, 0)
        self.ended = True

    def _order(self, what: int, step: int, version: int = 0, twice: bool = False) -> None:
        self.idle = False
        if what in (LOAD, STEP):
            self.version += 1
        words = torch.tensor([what, step, version, twice], dtype=torch.int32)
        self.group.swap([words] * self.group.world, [WORDS] + [0] * (self.group.world - 1))
        if what == STEP:
            self.group.note(step, "step")


def follow(executor: RankExecutor) -> bool:
    """Execute rank 0's orders until it ends; False if it failed. The two newest states are kept, so that a step can be
    undone."""
    group, states, version = executor.group, {}, 0
    while True:
        what, step, about, twice = (int(w) for w in _ordered(group))
        if what in (END, FAILED):
            return what == END
        if what == GATHER:
            executor.gathered(step, states[about][step])
            continue
        if what == ROOTS:
            executor.roots(states[about])
            continue
        version += 1
        if what == STEP:
            group.note(step, "step")
        if what == LOAD:
            states[version] = given(group, executor)
        else:
            states[version] = _step(executor, step, states[about], twice).state
        states.pop(version - 2, None)


def _step(executor: RankExecutor, step: int, state: Sequence[torch.Tensor], twice: int) -> StepResult:
    return checked_step(executor, step, state) if twice else executor.step(step, state)


def _ordered(group: Group) -> torch.Tensor:
    nothing = torch.empty(0, dtype=torch.int32)
    return group.swap([nothing] * group.world, [WORDS] + [0] * (group.world - 1))[0]


def give_out(group: Group, executor: RankExecutor, state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Distribute a whole state from rank 0, tensor by tensor; the next tensor after all ranks have the last one."""
    mine = []
    for tensor, form in zip(state, executor.plan.state, strict=True):
        if form is None:
            words = [tensor.cpu().reshape(-1).view(torch.int32)] * group.world
        else:
            words = [executor.part_of(tensor.cpu(), form, share).view(torch.int32) for share in shares_of(group)]
        group.swap(words, [words[0].numel()] + [1] * (group.world - 1))
        mine.append(words[0].view(tensor.dtype).to(executor.device))
    return mine


def given(group: Group, executor: RankExecutor) -> list[torch.Tensor]:
    """This rank's part of the state that rank 0 distributes."""
    ready, nothing, mine = torch.ones(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), []
    for source in executor.program.sources:
        pieces = [ready] + [nothing] * (group.world - 1)
        words = group.swap(pieces, [source.elements] + [0] * (group.world - 1))[0]
        part = words.clone() if source.integer else words.clone().view(torch.float32)
        mine.append(part.to(executor.device))
    return mine
