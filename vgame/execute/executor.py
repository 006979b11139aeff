"""Runs a program, one training step at a time, on a torch device.

In: the program, the data, the scalars, a state. Out: the next state and the loss, the same bits on every device (mode
`correct`). Twin: vgame/execute/reference.py computes any single element, slowly and exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from vgame.arithmetic import certified, gate
from vgame.arithmetic.indexed_matrix import Mirrored
from vgame.arithmetic.numba import pointwise
from vgame.arithmetic.workspace import keep_pages
from vgame.commit.mapped import source_of
from vgame.errors import VgameError
from vgame.execute.chains import ALONE, ALONE_ON_GPU, Unit, units_of
from vgame.execute.halves import halves_of
from vgame.execute.kernels import MODES, Correct
from vgame.execute.layout import signed
from vgame.execute.memory import refuse_too_large, words_at_once
from vgame.execute.ordinary import Run
from vgame.execute.planned import MOST, MOST_MADE, Planned
from vgame.execute.results import Launched, StepResult, Tap
from vgame.execute.work import refuse_too_long
from vgame.program.operators import (
    Operator,
    RefClass,
)
from vgame.program.program import Program
from vgame.system.threads import ours


class Executor:
    """One program on one device in one rounding mode."""

    plans = True  # whether small steps are planned (vgame/execute/planned.py)
    halves = True  # whether bfloat16 outputs may be stored in 2 bytes a word (vgame/execute/halves.py)

    def __init__(
        self,
        program: Program,
        data: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        seed: int,
        mode: str = "correct",
        device: str = "cpu",
    ) -> None:
        keep_pages()
        self.program, self.seed = program, seed
        self.device = torch.device(device)
        refuse_too_long(program, self.device)  # at this point no bond is staked on the job yet
        self.kernels = MODES[mode]()
        self.data, self.scalars = [t.to(self.device) for t in data], scalars.to(self.device)
        self.constants = [t.to(self.device) for t in program.constants]
        #: Called with every operator's index and seconds (vgame/execute/profile.py); None: no profile.
        self.watch: Callable[[int, float], None] | None = None
        #: The step in the device's memory, for kernels that a recorded step replays (vgame/execute/graph.py).
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._immediates: dict[tuple[int, bool], torch.Tensor] = {}
        self._plan: Planned | bool | None = None
        self._plans: dict[tuple[bool, bool, bool], tuple[list[Unit], tuple[int, ...], frozenset[int]]] = {}

    def to_device(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [t.to(self.device) for t in state]

    def initial(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The state before the first step."""
        return self.to_device(state)

    def step(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None = None) -> StepResult:
        """State after step `step` (counted from 1). `state` is flat tensors on the executor's device."""
        self.clock.fill_(step)
        return self.finish(self.launch(step, state, tap))

    def launch(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None = None) -> Launched:
        """Start a step without waiting for its end. With the Triton kernels the host never waits for the device, and
        `clock` holds the step."""
        with ours() if self.device.type == "cpu" else nullcontext():
            return self._launch(step, state, tap)

    def _launch(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None) -> Launched:
        self._refuse_other(state)
        while tap is None and (planned := self._planned(state)):
            if launched := planned.launch(step, state, self._record_time if self.watch else None):
                return launched
            self._plan = None
        shared = tap is None and pointwise.in_use(self.device)
        fuses = self.kernels.fuses and (shared or (tap is None and gate.in_use(self.device)))
        units, checked, halves = self._units(fuses, tap is not None)
        run = Run(self, step, state, checked, halves, defers=shared and self.watch is None, traced=tap is not None)
        try:
            for unit in units:
                if self.watch:
                    self._watched(run, unit)
                else:
                    run.compute_unit(unit)
                if tap:
                    run.outputs[unit.index] = tap(unit.index, run.flat_output(run.outputs[unit.index]))
                for index in unit.free:
                    run.outputs[index] = None
            finite = run.are_finite(checked)
            new = tuple(run.flat(s.ref) for s in self.program.sources)
            return Launched(new, run.output(self.program.loss).reshape(()), checked, finite)
        finally:
            for work in run.pending.values():
                work.stop()

    def finish(self, launched: Launched) -> StepResult:
        """Wait for a step's check that values are finite."""
        verdicts = zip(launched.checked, launched.finite.tolist(), strict=True)
        return StepResult(launched.state, launched.loss, min((i for i, finite in verdicts if not finite), default=None))

    def _units(self, fuse: bool, traced: bool = False) -> tuple[list[Unit], tuple[int, ...], frozenset[int]]:
        """The units of a step, the outputs that must be finite, those of one chain in sequence, and those that are
        stored in 2 bytes a word; cached."""
        key = fuse, gate.in_use(self.device), traced
        if key not in self._plans:
            operators, finite = self.program.operators, self.program.finite
            sources = {s.ref.index for s in self.program.sources if s.ref.cls is RefClass.OPERATOR}
            kept = sources | finite
            units = units_of(operators, kept, finite, fuse, ALONE_ON_GPU if key[1] else ALONE)
            stores = fuse and not key[1] and self.halves and self.kernels.halves
            halves = halves_of(units, operators, kept) if stores else frozenset()
            if self.device.type == "cpu":
                held = sum(t.numel() for t in self.data if source_of(t) is None)  # mapped data stay in their files
                refuse_too_large(self.program, units, held, traced, halves)
            by_chains = [i for unit in units if unit.fused for i in unit.fused.checked]
            self._plans[key] = units, (*by_chains, *sorted(finite.difference(by_chains))), halves
        return self._plans[key]

    def _planned(self, state: Sequence[torch.Tensor]) -> Planned | None:
        """The step as a plan, if it is small and computed in the ordinary way; else None."""
        ordinary = self.plans and pointwise.in_use(self.device) and certified.is_native()
        if not ordinary or type(self.kernels) is not Correct:
            return None
        if self._plan is None:
            units, checked, _ = self._units(True)
            operators = self.program.operators
            words = sum(t.numel() for t in state), words_at_once(units, operators, False)
            small = max(words) <= MOST and sum(operator.elements for operator in operators) <= MOST_MADE
            given = state, self.data, self.constants, self.scalars, self.seed
            with torch.inference_mode(False):
                self._plan = small and Planned(self.program, units, checked, *given, self._ordinary)
        return self._plan or None

    @staticmethod
    def _refuse_other(state: Sequence[torch.Tensor]) -> None:
        """VgameError unless the tensors are flat: loops read words in place."""
        for tensor in state:
            if tensor.dim() != 1 or not tensor.is_contiguous():
                raise VgameError(
                    f"a state tensor has shape {tuple(tensor.shape)} and strides {tensor.stride()}; flat contiguous "
                    "words are expected: tensor.contiguous().reshape(-1)"
                )

    def _ordinary(
        self,
        step: int,
        state: Sequence[torch.Tensor],
        scalars: torch.Tensor,
        outputs: list[torch.Tensor | Mirrored | None],
        index: int,
    ) -> torch.Tensor:
        """The words of one operator, from the outputs so far."""
        run = Run(self, step, state, (), frozenset(), defers=False, traced=False)
        run.scalars, run.outputs = scalars, outputs
        return run.flat_output(run.compute(index, self.program.operators[index]))

    def rank_operator(self, run: Run, index: int, operator: Operator) -> torch.Tensor:
        """The output of an operator outside programs (vgame/ranks)."""
        raise AssertionError(f"unknown operator {operator}")

    def _watched(self, run: Run, unit: Unit) -> None:
        start = time.perf_counter()
        run.compute_unit(unit)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self._record_time(unit, time.perf_counter() - start)

    def _record_time(self, unit: Unit, seconds: float) -> None:
        """Record the time of a unit; a chain's time is shared equally by its operators."""
        for index in unit.members:
            self.watch(index, seconds / len(unit.members))

    def immediate(self, word: int, integer: bool) -> torch.Tensor:
        """A one-word tensor on the device (never a Python number: CUDA divides by a Python number differently)."""
        key = (word, integer)
        if key not in self._immediates:
            value = torch.tensor([signed(word)], dtype=torch.int32).to(self.device)
            self._immediates[key] = value if integer else value.view(torch.float32)
        return self._immediates[key]
