"""Runs one rank's part of a program; the words that a rank holds are those of the whole step (docs/ranks.md).

In: a program, a group of ranks. Out: as vgame.execute.executor, the state in parts where the plan keeps it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch

from vgame.arithmetic.torch.partial import Approximate, Nothing, Products, Summands, Terms
from vgame.arithmetic.torch.philox import random_words, shuffle_indices
from vgame.commit.mapped import refuse_changed
from vgame.errors import VgameError
from vgame.execute.executor import Executor, StepResult, Tap
from vgame.execute.ordinary import Run
from vgame.program.operators import Operator, Philox, Variant
from vgame.program.program import Program
from vgame.ranks.exchange import Group, exchanged, gathered, looked_up
from vgame.ranks.given import Given, Shifted, digest
from vgame.ranks.part import Drawn, Exchange, Looked, Part, Summed, part_of
from vgame.ranks.plan import Form, make_plan, refuse_more_ranks
from vgame.ranks.roots import shared_roots
from vgame.ranks.split import Share
from vgame.ranks.sums import MOST_PENDING, Sum, finish

#: In place of an operator's index: every word that must be finite is finite.
ALL_FINITE = 2**31 - 1


class Waiting(NamedTuple):
    """A pending sum over all ranks' terms, finished together with the other pending sums."""

    executor: RankExecutor
    run: Run

    def finish(self) -> None:
        self.executor.finish_sums(self.run)

    def stop(self) -> None:
        """Does nothing: pending sums end with the group."""


class RankExecutor(Executor):
    """One rank of a group."""

    plans = halves = False  # sums of all ranks are pending while the program goes on, and travel as words
    program: Part

    def __init__(
        self,
        program: Program,
        data: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        seed: int,
        mode: str,
        device: str,
        group: Group,
    ) -> None:
        if mode != "correct":
            raise VgameError(
                f"mode {mode!r} cannot be shared by {group.world} ranks: its bits depend on the order of addition; "
                "start one rank, or order mode 'correct'"
            )
        refuse_more_ranks(program, group.world)
        self.group, self.plan, self.shared = group, make_plan(program, group.world), program
        super().__init__(part_of(program, self.plan, group.rank), data, scalars, seed, mode, device)
        self.waiting: dict[int, Sum] = {}  # pending sums, by operator
        self.traced_sums: dict[int, Sum] = {}  # of a tapped step
        self.given_sums: list[Approximate] = []  # this rank's sums, in a step that is checked
        self.given: list[torch.Tensor] | None = None  # digests of this rank's words, in a step that is checked

    def to_device(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """This rank's part of a whole state."""
        share = Share(self.group.rank, self.group.world)
        return [self.part_of(t, form, share).to(self.device) for t, form in zip(state, self.plan.state, strict=True)]

    @staticmethod
    def part_of(tensor: torch.Tensor, form: Form, share: Share) -> torch.Tensor:
        """A rank's part of a whole tensor."""
        if form is None:
            return tensor
        low, high = share.cut(form.digit)
        return tensor.reshape(form.shape(tensor.numel(), form.digit))[:, low:high].reshape(-1).clone()

    def gathered(self, index: int, part: torch.Tensor) -> torch.Tensor | None:
        """A tensor of the state, gathered from all ranks on rank 0; None on the others."""
        form = self.plan.state[index]
        return part if form is None else gathered(self.group, part.cpu(), form, self.shared.sources[index].elements)

    def roots(self, state: Sequence[torch.Tensor]) -> list[bytes]:
        """The root of each tensor of the state, on rank 0; empty on the others."""
        for tensor in self.data:
            refuse_changed(tensor)
        held = [(form, source.elements) for form, source in zip(self.plan.state, self.shared.sources, strict=True)]
        return shared_roots(self.group, state, held)

    def step(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None = None) -> StepResult:
        """This rank's part of the state after a step; loss and divergence are the whole step's."""
        assert tap is None, "a rank has no whole outputs"
        self.waiting = {}
        result = super().step(step, state)
        wrong = ALL_FINITE if result.not_finite is None else self.program.origins[result.not_finite]
        own = torch.tensor([wrong], dtype=torch.int32)
        first = min(int(t[0]) for t in self.group.swap([own] * self.group.world, [1] * self.group.world))
        return StepResult(result.state, result.loss, None if first == ALL_FINITE else first)

    def rank_operator(self, run: Run, index: int, operator: Operator) -> torch.Tensor:
        if isinstance(operator, Exchange):
            part = run.flat(operator.operand).contiguous().cpu()
            if self.given is not None:
                self.given.append(digest(part))
            return exchanged(self.group, part, operator).to(self.device)
        if isinstance(operator, Summed):
            return self._summed(run, index, operator)
        if isinstance(operator, Looked):
            gather = operator.operator
            index, table = run.shaped(gather.index, (gather.count,)), run.flat(gather.table)
            fill = self.immediate(gather.fill, gather.integer)
            return looked_up(self.group, index.cpu(), table.cpu(), fill.cpu(), operator).to(self.device)
        assert isinstance(operator, Drawn), f"unknown operator {operator}"
        drawn = operator.operator
        if isinstance(drawn, Philox):
            return random_words(self.seed, run.step, operator.origin, drawn.elements, self.clock)
        return shuffle_indices(self.seed, run.step, drawn.elements, drawn.population, self.clock)

    def _summed(self, run: Run, index: int, operator: Summed) -> torch.Tensor:
        sums = operator.operator
        one = sums.variant is Variant.SUM
        if operator.empty:
            terms: Terms = Nothing()
        else:
            terms = Summands(run.rows(sums)) if one else Products(*run.factors(sums))
        shape = (1, sums.batch * sums.m, 1) if one else (sums.batch, sums.m, sums.n)
        result = Sum(self.group, terms, shape, operator.split, operator.length)
        if self.given is not None:
            self.given_sums.append(result.mine)
        if run.traced:
            self.traced_sums[index] = result
        if operator.split is None or run.traced:
            finish(self.group, [result])
            return result.out.to(self.device)
        self.waiting[index], run.pending[index] = result, Waiting(self, run)
        if len(self.waiting) == MOST_PENDING:
            self.finish_sums(run)
        return result.out.to(self.device)

    def finish_sums(self, run: Run) -> None:
        """Write the outputs of all pending sums: the others are usually read soon after the first."""
        waiting, self.waiting = self.waiting, {}
        finish(self.group, list(waiting.values()))
        for index, result in waiting.items():
            run.outputs[index] = result.out.to(self.device)
            run.pending.pop(index, None)

    # ---- computed twice ----

    @cached_property
    def twice(self) -> RankExecutor:
        """An executor of the next rank's part on this device."""
        other = RankExecutor(
            self.shared, self.data, self.scalars, self.seed, "correct", self.device.type, Shifted(self.group)
        )
        other.kernels = self.kernels
        return other

    def recorded_step(self, step: int, state: Sequence[torch.Tensor]) -> tuple[StepResult, Given]:
        """(a step, the words that this rank gives in it)."""
        self.given, self.given_sums = words, sums = [], []
        try:
            result = self.step(step, state)
        finally:
            self.given, self.given_sums = None, []
        return result, Given([*words, *map(digest, result.state)], sums)

    def traced(self, step: int, state: Sequence[torch.Tensor], tap: Tap) -> None:
        """A step of this part, with every output passed to the tap."""
        self.traced_sums = {}
        super().step(step, state, tap)

    def operator_name(self, index: int) -> str:
        """Name of an operator of this part, as in the program."""
        origin = self.program.origins[index]
        return "of an exchange" if origin < 0 else self.shared.operator_name(origin)
