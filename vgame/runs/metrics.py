"""Metrics of each committed step, passed to the user's function, for any plotting tool.

In: the steps of a training. Out: calls of (step, values), after the checkpoint that commits the step: `loss`;
`seconds`, of the step alone; `open`, the share of sums that the rounding test leaves to the exact tier; each scalar of
the program by its name (rates, bias corrections); `root`, hex, at checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from pathlib import Path
from typing import Any

from vgame.arithmetic.certificate import Counts, counting
from vgame.errors import MissingPackage
from vgame.runs.store import Store
from vgame.runs.training import Committed, Progress, State

Metrics = Callable[[int, Mapping[str, float | str]], None]


class Meter:
    """Connects `train` with the user's function: measures each step while entered, and reports committed steps."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._rows: list[dict[str, float]] = []
        self._counting: AbstractContextManager[Counts] = counting()
        self._counts = Counts()
        self._start()

    def __enter__(self) -> Meter:
        self._counts = self._counting.__enter__()
        self._start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._counting.__exit__(*error)

    def stepping(self, progress: Progress) -> Progress:
        """`progress`, with a measurement of the step."""

        def step(number: int, loss: float) -> None:
            row = {"seconds": time.monotonic() - self._begin}
            if elements := self._counts.elements - self._seen.elements:
                row["open"] = (self._counts.tier - self._seen.tier) / elements
            self._rows.append(row)
            progress(number, loss)
            self._start()

        return step

    def committing(self, committed: Committed | None) -> Committed:
        """Report an interval, then call `committed`."""

        def tell(store: Store, state: State, losses: Sequence[float]) -> None:
            tell_interval(self.metrics, store, losses, self._rows)
            self._rows = []
            if committed:
                committed(store, state, losses)
            self._start()

        return tell

    def _start(self) -> None:
        self._begin = time.monotonic()
        self._seen = copy(self._counts)


def tell_interval(
    metrics: Metrics, store: Store, losses: Sequence[float], measured: Sequence[Mapping[str, float]]
) -> None:
    """Report the steps of the interval that ends with the store's last checkpoint."""
    names, first = store.bundle.program.labels.scalars, store.step - len(losses) + 1
    for at, loss in enumerate(losses):
        values: dict[str, float | str] = {"loss": loss} | dict(measured[at] if measured else {})
        values |= zip(names, store.bundle.scalars[first + at - 1].tolist(), strict=False)
        if at == len(losses) - 1:
            values["root"] = store.roots[-1].hex()
        metrics(first + at, values)


class TensorBoard:
    """Write metrics for TensorBoard to a folder: numbers as scalars, roots as text. MissingPackage without the package
    `tensorboard`."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingPackage("tensorboard", "tensorboard") from None
        self.writer = SummaryWriter(str(folder))

    def __call__(self, step: int, values: Mapping[str, float | str]) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self.writer.add_text(name, value, step)
                self.writer.flush()
            else:
                self.writer.add_scalar(name, value, step)
