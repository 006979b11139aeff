"""Compare the two sides of a stage (docs/validation.md): rounding errors shrink with higher precision, translation
errors do not.

In: the results of the program and of the user's code, by name. Out: None if they agree, else the first difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

T = torch.Tensor
Tensors = Mapping[str, T | None]
STRICT, SHRINKS, NOISE, LOUDEST, FLIPS = 2.0**-44, 2.0**-16, 64.0, 2.0**-34, 0.01
UPDATE, WEIGHT = 2.0**-40, 2.0**-50


@dataclass(frozen=True)
class Differs:
    """A tensor that differs between the two sides. `far`: the largest difference; `size`: the program's largest
    element."""

    stage: str
    name: str
    step: int
    far: float
    size: float
    detail: str = ""
    where: str = ""  # in the user's code

    def __str__(self) -> str:
        amount = self.detail or f"by up to {self.far:.3g}, where it is up to {self.size:.3g}"
        return f"{self.name} differs in the stage {self.stage!r} of step {self.step}: {amount}{self.where}"


@dataclass
class Tally:
    """Counts of a comparison: compared tensors by stage, the highest rung needed, elements that flip."""

    compared: dict[str, int] = field(default_factory=dict)
    rung: int = 0
    flips: dict[str, int] = field(default_factory=dict)

    def add(self, stage: str, rung: int) -> None:
        self.compared[stage] = self.compared.get(stage, 0) + 1
        self.rung = max(self.rung, rung)


class Rungs:
    """Data of the later rungs, computed on demand: both sides in binary32, the program perturbed."""

    def __init__(self, rounded: Callable[[], tuple[Tensors, Tensors]], moved: Callable[[], Tensors]) -> None:
        self._rounded, self._moved = rounded, moved

    @cached_property
    def rounded(self) -> tuple[Tensors, Tensors]:
        return self._rounded()

    @cached_property
    def moved(self) -> Tensors:
        return self._moved()


def largest(x: T) -> float:
    """The largest absolute value; 0 for an empty tensor."""
    return float(x.abs().max()) if x.numel() else 0.0


def distance(a: T, b: T) -> T:
    """|a - b|; 0 if both are the same infinity or both NaN, infinite if only one is a number."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(torch.inf, torch.inf))


def compare(stage: str, step: int, ours: Tensors, theirs: Tensors, rungs: Rungs, tally: Tally) -> Differs | None:
    """The first difference of gradients, losses, buffers."""
    gradients = [t.double().norm() for n, t in ours.items() if t is not None and n.startswith("gradient.")]
    total = float(torch.stack(gradients).norm().nan_to_num(0.0, 0.0)) if gradients else 0.0
    for name, mine in ours.items():
        other = theirs.get(name)
        if mine is None or other is None:
            if (mine is None) != (other is None):
                return Differs(stage, name, step, 0.0, 0.0, _one_sided(mine is None))
            continue
        if mine.shape != other.shape:
            return Differs(stage, name, step, 0.0, 0.0, f"shapes {tuple(mine.shape)} and {tuple(other.shape)}")
        rung = _rung(name, mine, other.to(mine.dtype), total, rungs, tally)
        if rung is None:
            return Differs(stage, name, step, largest(distance(mine, other.to(mine.dtype))), largest(mine))
        tally.add(stage, rung)
    return None


def _one_sided(ours: bool) -> str:
    return "only your code computes it" if ours else "only the program computes it"


def _rung(name: str, mine: T, other: T, total: float, rungs: Rungs, tally: Tally) -> int | None:
    """The rung 1, 2 or 3 on which a tensor agrees; None if it differs. `total`: the norm of all gradients."""
    if not mine.is_floating_point():
        return 1 if torch.equal(mine, other) else None
    apart = distance(mine, other)
    far = largest(apart)
    if far <= STRICT * float(torch.linalg.vector_norm(mine.nan_to_num(0.0, 0.0, 0.0))):
        return 1
    most = max(LOUDEST * largest(mine), STRICT * total)
    rounded = [side.get(name) for side in rungs.rounded]
    if all(side is not None for side in rounded) and far <= min(SHRINKS * _finite(distance(*rounded)), most):
        return 2
    if name not in rungs.moved:
        return None
    moved = distance(mine, rungs.moved[name]).nan_to_num(0.0, 0.0, 0.0)
    noise = float(torch.quantile(moved.flatten()[:1_000_000], 0.9)) if moved.numel() else 0.0
    beyond = apart > max(min(NOISE * noise, most), STRICT * largest(mine))
    flips = beyond & (NOISE * moved >= apart)
    if int(beyond.sum()) > int(flips.sum()) or int(flips.sum()) > FLIPS * mine.numel():
        return None
    if count := int(flips.sum()):
        tally.flips[name] = count
    return 3


def _finite(x: T) -> float:
    return largest(x.nan_to_num(0.0, 0.0, 0.0))


def compare_updates(
    stage: str, step: int, ours: Tensors, theirs: Tensors, old: Tensors, tally: Tally
) -> Differs | None:
    """The first difference of new weights and slots, relative to their change."""
    for name, mine in ours.items():
        other = theirs.get(name)
        if other is None and torch.equal(mine, old[name]):
            continue  # a slot that does not exist yet
        if other is None:
            return Differs(stage, name, step, 0.0, 0.0, "your optimizer keeps no such tensor")
        if mine.shape != other.shape:
            return Differs(stage, name, step, 0.0, 0.0, f"shapes {tuple(mine.shape)} and {tuple(other.shape)}")
        change = largest((other - old[name]).nan_to_num(0.0, 0.0, 0.0))
        limit = UPDATE * change + WEIGHT * max(largest(old[name]), _finite(other))
        far = largest(distance(mine, other))
        if far > limit:
            detail = f"by up to {far:.3g}, where it changes by up to {change:.3g}"
            return Differs(stage, name, step, far, change, detail)
        tally.add(stage, 1)
    lost = (name for name, other in theirs.items() if name not in ours and other is not None and other.dim())
    return next((Differs(stage, name, step, 0.0, 0.0, "the program keeps no such tensor") for name in lost), None)
