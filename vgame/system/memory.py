"""Memory of this process and of its machine, if the system shows it (Linux)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from mmap import PAGESIZE
from pathlib import Path


def start_peak() -> None:
    """Measure the peak from now on, if the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int | None:
    """Peak memory of the process, in bytes; None if the system does not show it."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found[1]) if found else None
    return None


def resident() -> int:
    """Resident memory of the process, in bytes; 0 if the system does not show it."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE
    return 0


def free(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this process can still allocate without swapping, within the limits of the machine and its control
    groups; infinite if the system does not show them. `proc`, `groups`: the folders of the system's files."""
    left = inf
    with suppress(OSError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
        left = 1024.0 * int(found[1]) if found else inf
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):  # version 2, version 1
                left = min([left, *_left_in(groups / kinds, path.strip("/"))])
    return left


#: Names in a control group: the files of the memory limit and use, and the entry of the cache that the kernel can free.
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def _left_in(root: Path, path: str) -> Iterator[float]:
    """Bytes left in a control group, and in each one above it."""
    limit, use, given_back = VERSION_1 if root.name == "memory" else VERSION_2
    for folder in (root / path, *(root / path).parents):
        with suppress(OSError, ValueError):  # "max": no limit; the root has none
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            held = int((folder / use).read_text()) - int(stat.get(given_back, 0))
            yield max(0.0, float(int((folder / limit).read_text()) - held))
        if folder == root:
            return
