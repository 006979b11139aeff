"""Seconds and memory that a validation may take; what comes after them is not compared."""

from __future__ import annotations

import os
import time
from pathlib import Path

SHARE = 0.5  # of the memory that is free when it begins
MOMENT = 1e-3  # seconds between two looks at the memory
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Exhausted(Exception):
    """The budget is used up; the text says what of it."""


class Budget:
    """From now on so many seconds, and bytes of resident memory beside those that the process has; by default SHARE of
    what the machine has free. Where the system does not tell (no /proc) memory has no bound."""

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


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def free() -> float:
    """Bytes that processes can have without swapping; infinite where the system does not tell."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return float("inf")
