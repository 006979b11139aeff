"""The cost of a job on this machine, in one line. In: counts and measurements of vgame/runs/pace.py. Out: text for
people, fields for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_SIZES = ("bytes", "KB", "MB", "GB", "TB")
#: Seconds of a unit, its name; the same of the next smaller unit.
_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The cost of the rest of a run on this machine. None: not measured."""

    steps: int
    """Steps left."""
    checkpoints: int
    """Checkpoints left."""
    disk: int
    """Bytes added to the run's folder, without the bundle."""
    step: float | None = None
    """Seconds."""
    checkpoint: float | None = None
    """Seconds of one checkpoint: hash, write, read back, hash again."""
    memory: int | None = None
    """Peak memory of the process, in bytes."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Forecast:
        """Make a forecast from the fields of an event."""
        return cls(**{name: value for name, value in fields.items() if name in cls.__slots__})

    @property
    def seconds(self) -> float | None:
        """Seconds of all steps, and of all checkpoints if one was measured."""
        return None if self.step is None else self.steps * self.step + self.checkpoints * (self.checkpoint or 0.0)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the event."""
        return asdict(self) | {"seconds": self.seconds}

    @property
    def cost(self) -> str:
        """3.4 s (13 ms a step), 427 MB of memory, 7.39 MB of disk: the known parts."""
        parts = [f"{size(self.disk)} of disk"]
        if self.memory is not None:
            parts.insert(0, f"{size(self.memory)} of memory")
        if self.step is not None and self.seconds is not None:
            parts.insert(0, f"{duration(self.seconds)} ({duration(self.step)} a step)")
        return ", ".join(parts)

    def __str__(self) -> str:
        return f"{self.steps} steps take about {self.cost}"


def size(count: int) -> str:
    """Bytes as text, to three digits: 1.27 GB."""
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_SIZES):
        value, unit = value / 1000, unit + 1
    return f"{value:.3g} {_SIZES[unit]}"


def duration(seconds: float) -> str:
    """Seconds as text, in two digits or two units: 13 ms, 4.2 s, 12 min, 3 h 20 min."""
    if seconds < 59.5:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.0995 else f"{seconds:.2g} s"
    unit, name, below, part = next(row for row in _UNITS if round(seconds) >= row[0])
    whole, rest = divmod(round(seconds / below), unit // below)
    return f"{whole} {name} {rest} {part}" if rest else f"{whole} {name}"
