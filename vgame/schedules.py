"""Learning-rate schedules by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Learning rate `lr` throughout, after the warm-up."""

    lr: str
    """The peak, a decimal in quotes ("0.1"): it is rounded once, to binary32."""
    warmup: int = 0
    """Steps that lead to `lr` from 0, linearly."""
    kind = "constant"


@dataclass(frozen=True, kw_only=True)
class Linear(Constant):
    """From `lr` to `final` in equal steps."""

    final: str = "0"
    """Rate at the end, a decimal in quotes."""
    kind = "linear"


@dataclass(frozen=True, kw_only=True)
class Cosine(Constant):
    """From `lr` to `final` along half a wave of the cosine."""

    final: str = "0"
    """Rate at the end, a decimal in quotes."""
    kind = "cosine"


@dataclass(frozen=True, kw_only=True)
class StepDecay(Constant):
    """`lr`, multiplied by `factor` after each `every` steps."""

    every: int = 1
    """Steps from one drop to the next."""
    factor: str = "0.1"
    """Factor of each drop, a decimal in quotes."""
    kind = "step"
