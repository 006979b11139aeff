"""Learning-rate schedules by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Learning rate `lr`, a decimal string, after `warmup` steps that lead to it from 0."""

    lr: str
    warmup: int = 0
    kind = "constant"


@dataclass(frozen=True, kw_only=True)
class Linear(Constant):
    """From `lr` to `final` in equal steps."""

    final: str = "0"
    kind = "linear"


@dataclass(frozen=True, kw_only=True)
class Cosine(Constant):
    """From `lr` to `final` along half a wave of the cosine."""

    final: str = "0"
    kind = "cosine"


@dataclass(frozen=True, kw_only=True)
class StepDecay(Constant):
    """`lr`, multiplied by `factor` every `every` steps."""

    every: int = 1
    factor: str = "0.1"
    kind = "step"
