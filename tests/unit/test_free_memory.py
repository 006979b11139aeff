"""The free memory of this process: of the machine, and of its control groups."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from vgame.system.memory import free

GB = 10**9


def system(folder: Path, cgroup: str = "", **files: str) -> dict[str, Path]:
    """Files as the kernel shows them; names with __ for / and _dot_ for a dot."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable:   16000000 kB\n")
    (folder / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = folder / "groups" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": folder / "proc", "groups": folder / "groups"}


def group(limit: str, used: int, inactive: int, at: str = "") -> dict[str, str]:
    stat = f"anon 1\ninactive_file {inactive}\n"
    return {f"{at}memory_dot_max": limit, f"{at}memory_dot_current": str(used), f"{at}memory_dot_stat": stat}


def test_the_machine_has_the_limit_without_a_group(tmp_path: Path) -> None:
    assert free(**system(tmp_path, "0::/\n")) == 16_384_000_000
    assert free(tmp_path / "none", tmp_path / "none") == inf


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (group("4000000000\n", 3 * GB, GB), 2 * GB),
        (group("4000000000\n", 5 * GB, 0), 0),
        (group("max\n", 3 * GB, 0), 16_384_000_000),
        (group("90000000000\n", 3 * GB, 0), 16_384_000_000),
        (group("max\n", 1, 0, "job__") | group("2000000000\n", GB, 0), GB),  # the one above is smaller
        (group("nonsense", 1, 0), 16_384_000_000),
    ],
)
def test_a_group_bounds_it(tmp_path: Path, files: dict[str, str], left: int) -> None:
    """In a container the machine's memory is not the process's."""
    path = "/job" if any(name.startswith("job__") for name in files) else "/"
    assert free(**system(tmp_path, f"0::{path}\n", **files)) == left


def test_a_group_of_version_1_bounds_it(tmp_path: Path) -> None:
    names = {
        "memory__box__memory_dot_limit_in_bytes": "3000000000\n",
        "memory__box__memory_dot_usage_in_bytes": "2500000000\n",
        "memory__box__memory_dot_stat": "total_inactive_file 500000000\n",
    }
    assert free(**system(tmp_path, "5:cpu:/\n4:memory:/box\n", **names)) == GB
