"""Memory of this process and of its machine, where the system tells (Linux)."""

from __future__ import annotations

import re
from contextlib import suppress
from math import inf
from mmap import PAGESIZE
from pathlib import Path


def start_peak() -> None:
    """What the process holds at most is counted from now on, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int | None:
    """Bytes that the process has held at most; None where the system does not say."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found[1]) if found else None
    return None


def resident() -> int:
    """Bytes of the process that are in memory; 0 where the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
    return 0


def free() -> float:
    """Bytes that processes can have without swapping; infinite where the system does not say."""
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return 1024.0 * int(found[1]) if found else inf
    return inf
