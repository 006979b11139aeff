"""A run on disk, in Python: `vgame.Run`, the folder written by training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.job.forecast import Forecast
from vgame.job.shown import curve, table
from vgame.job.start import Start, load_weights
from vgame.job.weights import named, of_average, pack_weights, write_weights
from vgame.runs.card import card
from vgame.runs.folder import open_run
from vgame.runs.header import Divergence
from vgame.runs.start import start_of, state_after
from vgame.runs.store import Store

Folder = Path | str


class Run:
    """A run on disk: the folder written by training. `root` is the run root, hex: equal roots mean equal runs."""

    def __init__(self, store: Store, forecast: Forecast | None = None) -> None:
        self._store = store
        self.forecast = forecast
        """Forecast of the cost of the run on this machine; None for an opened run."""

    @classmethod
    def open(cls, folder: Folder) -> Run:
        """Open an existing run. StoreError if the folder holds no run, or a damaged one."""
        return cls(open_run(Path(folder)))

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._store.folder

    @property
    def bundle(self) -> Bundle:
        """The order that was trained."""
        return self._store.bundle

    @property
    def step(self) -> int:
        """Number of committed steps."""
        return self._store.step

    @property
    def done(self) -> bool:
        """Whether training is complete."""
        return self._store.done

    @property
    def root(self) -> str:
        """Run root, hex: equal roots mean equal runs."""
        return self._store.run_tree.root.hex()

    @property
    def losses(self) -> np.ndarray:
        """The loss of every committed step, float32 [step]."""
        return self._store.losses()

    @property
    def divergence(self) -> Divergence | None:
        """The step, operator and element of the first value that is not finite, if training diverged; else None."""
        return self._store.divergence

    def state_dict(
        self, step: int | None = None, *, slots: bool = False, average: bool = False
    ) -> dict[str, torch.Tensor]:
        """The state after a step (None: the last committed one), for `module.load_state_dict`: keys, types and tied
        weights are the module's. `slots`: also the optimizer's slots. `average`: the averaged weights (EMA, SWA) of a
        task with `average`, instead of the trained weights. A step without a kept checkpoint is executed again."""
        return named(of_average(self.bundle, average), self._at(step)[1], slots)

    def export(self, path: Folder, step: int | None = None, *, slots: bool = False, average: bool = False) -> None:
        """Write `state_dict` to a safetensors file, which `vgame check` can compare with a claim."""
        (step, state), bundle = self._at(step), of_average(self.bundle, average)
        write_weights(Path(path), pack_weights(bundle, step, state, named(bundle, state, slots)))

    def card(self, weights: Folder, step: int | None = None, options: str = "") -> str:
        """A model card (Markdown with the head of the Hugging Face hub) for a file that `export` wrote after a step:
        roots, order, how to audit it. `options`: those of `vgame export` that the file needs, such as "--average"."""
        return card(self._store, Path(weights), self._step(step), f" {options}".rstrip())

    def save_pretrained(self, folder: Folder, model: torch.nn.Module) -> None:
        """Load the weights into a model of the task's class and save it in its own format, with its configuration."""
        save_pretrained(self.state_dict(), str(self.folder), folder, model)

    def start(self) -> Start:
        """The start of a job that continues this run."""
        return start_of(self._store)

    def _at(self, step: int | None) -> tuple[int, Any]:
        """A step, by default the last committed one, and the state after it."""
        step = self._step(step)
        return step, state_after(self._store, step)

    def _step(self, step: int | None) -> int:
        step = self.step if step is None else step
        if not 0 <= step <= self.step:
            raise VgameError(f"step = {step}: a step from 0 to {self.step}, the last of the run, is expected")
        return step

    def _repr_html_(self) -> str:
        """For a notebook: progress, roots, the comparison with the client's code, the loss curve."""
        rows = {"run": str(self.folder), "step": f"{self.step} of {self.bundle.steps}", "run root": self.root}
        if stop := self.divergence:
            rows["diverged"] = f"at step {stop.step}, operator {stop.operator}, element {stop.element}"
        return table(rows | self.bundle.facts | {"checked": self.bundle.checked}) + curve(self.losses.tolist())

    def __repr__(self) -> str:
        cost = f"; forecast: {self.forecast.cost}" if self.forecast else ""
        return f"Run({str(self.folder)!r}, step {self.step} of {self.bundle.steps}, root {self.root[:16]}{cost})"


def save_pretrained(weights: Mapping[str, torch.Tensor], where: str, folder: Folder, model: torch.nn.Module) -> None:
    """Save the weights of `where` by the model's own `save_pretrained`."""
    save = getattr(model, "save_pretrained", None)
    if save is None:
        raise VgameError(
            f"{type(model).__name__} has no save_pretrained; models of transformers and peft have it: use the weights "
            f"of {where}"
        )
    load_weights(model, weights, where)
    save(folder)
