"""Initial states other than the module's own: a finished run, or weights from a file.

In: a run's store, a file, or a state_dict. Out: the module with these weights, and the optimizer's slots of a run that
is continued.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from vgame.errors import VgameError, some_of
from vgame.job.weights import read_weights
from vgame.program.lower import Lowered, as_words
from vgame.program.schedule import Rate, Schedule


@dataclass(frozen=True)
class Start:
    """The state, by name, of the run that a job continues, and its number of steps `before`; empty for a new run."""

    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    before: int = 0

    def schedule(self, schedule: Schedule | None) -> Schedule | Later | None:
        """The job's schedule, counted in the job's own steps."""
        return Later(schedule, self.before) if schedule is not None and self.before else schedule

    def lowered(self, lowered: Lowered) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        """(initial state, scalars of the job's own steps)."""
        scalars = lowered.scalars[self.before :].clone() if self.before else lowered.scalars
        if not self.state:
            return lowered.state, scalars
        labels = lowered.program.labels.state
        found = {label.name: tuple(label.shape) for label in labels}
        other = sorted({*found} ^ {*self.state} | {n for n, t in self.state.items() if found.get(n) != tuple(t.shape)})
        if other:
            raise VgameError(
                f"the run cannot be continued by this job: {some_of(other)} are not the same tensors in both; take the "
                "same model and optimizer, or only its weights: initial=run.state_dict()"
            )
        return tuple(as_words(label.name, self.state[label.name]) for label in labels), scalars


@dataclass(frozen=True)
class Later:
    """A schedule, shifted by `before` steps."""

    own: Schedule
    before: int

    def rate(self, step: int, steps: int) -> Rate:
        return self.own.rate(max(step - self.before, 1), steps - self.before)


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file of safetensors, or of `torch.save(module.state_dict(), path)`. Code in the file is not
    executed."""
    if path.suffix == ".safetensors":
        return read_weights(path)[0]
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise VgameError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # an untrusted file; its reader can raise anything
        reason = " ".join(str(error).split())[:200]
        raise VgameError(f"{path} is no file of weights ({reason}); save module.state_dict() alone") from None
    if not (isinstance(found, Mapping) and all(isinstance(t, torch.Tensor) for t in found.values())):
        raise VgameError(f"{path} holds more than weights, or none; save module.state_dict() alone")
    return dict(found)


def load_weights(model: nn.Module, given: Mapping[str, torch.Tensor], where: str) -> None:
    """`model.load_state_dict`; VgameError names the keys that do not fit."""
    own = model.state_dict(keep_vars=True)
    given = _with_tied(own, given)
    missing, unknown = [k for k in own if k not in given], [k for k in given if k not in own]
    both = [k for k in own if k in given]
    shapes = [k for k in both if getattr(given[k], "shape", None) != own[k].shape]
    kinds = [k for k in both if k not in shapes and given[k].is_floating_point() != own[k].is_floating_point()]
    mixed = "has integers instead of floating-point numbers, or the other way round, in"
    parts = (("has no", missing), ("has", unknown), ("has another shape of", shapes), (mixed, kinds))
    if problems := [f"{what} {some_of(names)}" for what, names in parts if names]:
        raise VgameError(f"{where} does not fit the model: it {', '.join(problems)}")
    complete = OrderedDict(given)
    complete._metadata = getattr(own, "_metadata", None)  # versions of the modules, which some modules read
    try:
        model.load_state_dict(complete)
    except Exception as error:  # a module may override its loading
        raise VgameError(f"{where} cannot be loaded into the model: {' '.join(str(error).split())[:300]}") from None


def _with_tied(own: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights with all keys of each tied tensor of which one key is given."""
    one = {id(own[k]): t for k, t in given.items() if k in own}
    return dict(given) | {k: one[id(t)] for k, t in own.items() if k not in given and id(t) in one}


def load_named(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load the module's part of a state; the rest is checked once the job's program exists."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in state and state[name].shape == tensor.shape:
                tensor.copy_(state[name])
