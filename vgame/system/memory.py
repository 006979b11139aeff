"""Memory of this process and of its machine, where the system shows it (Linux)."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


def free(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this process can have without swapping, as the machine and its control groups allow; infinite if the
    system does not tell. `proc`, `groups`: where the system's files are."""
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


#: What the files of a control group with memory are called: limit, use, the kernel's part of it that can be given back.
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def _left_in(root: Path, path: str) -> Iterator[float]:
    """Bytes that a control group and each one above it leave."""
    limit, use, given_back = VERSION_1 if root.name == "memory" else VERSION_2
    for folder in (root / path, *(root / path).parents):
        with suppress(OSError, ValueError):  # "max": no limit; the root has none
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            held = int((folder / use).read_text()) - int(stat.get(given_back, 0))
            yield max(0.0, float(int((folder / limit).read_text()) - held))
        if folder == root:
            return
