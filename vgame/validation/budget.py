"""Limits of a validation in seconds and memory. It stops at a limit, and the rest is not compared."""

from __future__ import annotations

import time

from vgame.system.memory import free, resident

SHARE = 0.5  # share of the memory that is free at the start
MOMENT = 1e-3  # seconds between two checks of the memory


class Exhausted(Exception):
    """The budget is used up; the text names the omitted part."""


class Budget:
    """A limit of seconds from now on, and of additional bytes of resident memory; by default SHARE of the machine's
    free memory. Without /proc, memory has no limit."""

    def __init__(self, seconds: float, memory: float | None = None) -> None:
        self.seconds, self.until, self.looked = seconds, time.monotonic() + seconds, 0.0
        self.memory = SHARE * free() if memory is None else memory
        self.most = resident() + self.memory

    @property
    def over(self) -> bool:
        """Whether the seconds are over."""
        return time.monotonic() > self.until

    def check(self) -> None:
        """Raise Exhausted if the budget is used up; called before each operator."""
        now = time.monotonic()
        if now > self.until:
            raise Exhausted(f"the part after {self.seconds:g} seconds")
        if now > self.looked + MOMENT:
            self.looked = now
            if resident() > self.most:
                raise Exhausted(f"the part that needs more than {self.memory / 1e9:.1f} GB of memory")
