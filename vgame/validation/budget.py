"""Seconds and memory that a validation may take; what comes after them is not compared."""

from __future__ import annotations

import time

from vgame.system.memory import free, resident

SHARE = 0.5  # of the memory that is free when it begins
MOMENT = 1e-3  # seconds between two looks at the memory


class Exhausted(Exception):
    """The budget is used up; the text names what was left out."""


class Budget:
    """From now on so many seconds, and bytes of resident memory beside those that the process has; by default SHARE of
    what the machine has free. Without /proc memory has no bound."""

    def __init__(self, seconds: float, memory: float | None = None) -> None:
        self.seconds, self.until, self.looked = seconds, time.monotonic() + seconds, 0.0
        self.memory = SHARE * free() if memory is None else memory
        self.most = resident() + self.memory

    @property
    def over(self) -> bool:
        """Are the seconds over?"""
        return time.monotonic() > self.until

    def check(self) -> None:
        """Exhausted if nothing more may be computed; asked before each operator."""
        now = time.monotonic()
        if now > self.until:
            raise Exhausted(f"what comes after {self.seconds:g} seconds")
        if now > self.looked + MOMENT:
            self.looked = now
            if resident() > self.most:
                raise Exhausted(f"what needs more than {self.memory / 1e9:.1f} GB of memory")
