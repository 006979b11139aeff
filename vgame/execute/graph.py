"""A training step recorded once in a CUDA graph and replayed, without the cost of starting some thousand kernels.

In: an executor whose kernels never wait for the host (vgame/arithmetic/triton). Out: the same steps, the same words.
The values that change from step to step are in the device's memory: the state, which is copied in, and the step's
number (`Executor.clock`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vgame.arithmetic import gate
from vgame.errors import VgameError
from vgame.execute.executor import Executor, Launched, StepResult, Tap


class Recorded:
    """A stepper: an executor's steps by replay. Steps with a `tap` are executed, not replayed."""

    def __init__(self, executor: Executor) -> None:
        if executor.device.type != "cuda" or not gate.in_use(executor.device):
            raise VgameError(
                f"a step on the device {executor.device} cannot be recorded; a CUDA device and triton are needed"
            )
        if any(getattr(operator, "bfloat16", False) for operator in executor.program.operators):
            raise VgameError("a step with bfloat16 outputs waits for the device, so it cannot be recorded; execute it")
        self.executor = executor
        self._graph: torch.cuda.CUDAGraph | None = None
        self._state: list[torch.Tensor] = []
        self._launched: Launched | None = None

    def initial(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return self.executor.initial(state)

    def to_device(self, state: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return self.executor.to_device(state)

    def step(self, step: int, state: Sequence[torch.Tensor], tap: Tap | None = None) -> StepResult:
        """As Executor.step. The results are copies: the recording writes to the same memory every time."""
        if tap:
            return self.executor.step(step, state, tap)
        if self._graph is None:
            self._record(step, state)
        self.executor.clock.fill_(step)
        for place, tensor in zip(self._state, state, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        done = self._launched
        return self.executor.finish(
            Launched(tuple(t.clone() for t in done.state), done.loss.clone(), done.checked, done.finite)
        )

    def _record(self, step: int, state: Sequence[torch.Tensor]) -> None:
        """Execute a step, which compiles the kernels and creates the constants; then record it."""
        self.executor.step(step, state)
        self._state = [tensor.clone() for tensor in state]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launched = self.executor.launch(step, self._state)
        self._graph = graph
