"""Peak memory of the demonstration: the proportional set sizes (PSS) of all its processes, added up, sampled twice a
second. Linux only.

python experiments/demo_memory.py [vgame demo's options]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def tree(root: int) -> list[int]:
    """The process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        parents.setdefault(parent, []).append(int(status.parent.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def pss(pid: int) -> int:
    """Bytes; shared pages count in parts. 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def main() -> int:
    demo = subprocess.Popen([sys.executable, "-m", "vgame.cli", "demo", *sys.argv[1:]])
    peak = processes = 0
    while demo.poll() is None:
        pids = tree(demo.pid)
        now = sum(map(pss, pids))
        peak, processes = max(peak, now), max(processes, len(pids))
        time.sleep(0.5)
    print(f"peak PSS {peak / 1e9:.2f} GB, up to {processes} processes")
    return demo.returncode


if __name__ == "__main__":
    raise SystemExit(main())
