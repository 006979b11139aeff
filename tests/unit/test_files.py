"""Atomic files, and the leftovers of a kill."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from vgame.system.files import read_file, remove_halves, write_atomic

WRITER = """
import os, sys, time
from pathlib import Path
from vgame.system.files import write_atomic
os.fsync = lambda _: (print("writing", flush=True), time.sleep(600))
write_atomic(Path(sys.argv[1]), b"new")
"""


def writer(path: Path) -> subprocess.Popen:
    """A process in the middle of writing a file."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    return process


def test_leftovers_of_a_killed_writer_are_removed_and_a_live_one_is_kept(tmp_path: Path) -> None:
    write_atomic(tmp_path / "run.json", b"old")
    process = writer(tmp_path / "run.json")
    try:
        (half,) = tmp_path.glob(".run.json.*")
        remove_halves(tmp_path)
        assert half.exists()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert half.exists() and (tmp_path / "run.json").read_bytes() == b"old"
    (tmp_path / ".mine").write_bytes(b"")
    remove_halves(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".mine", "run.json"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    write_atomic(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="cannot be written: No space left on device"):
        write_atomic(tmp_path / "a", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"


MADE = """
import sys
import tracemalloc
from pathlib import Path
from vgame.system.files import private, write_atomic
write_atomic(Path(sys.argv[1]) / "state", b"1")
open(Path(sys.argv[1]) / "lock", "ab", opener=private)
"""


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_files_keep_the_users_umask_and_locks_are_the_users_alone(tmp_path: Path, umask: int, mode: int) -> None:
    """A private run must not be readable by others, and a readable lock could be held by them."""
    (tmp_path / "lock").touch(0o644)
    subprocess.run([sys.executable, "-c", MADE, str(tmp_path)], check=True, umask=umask)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("state", "lock")]
    assert modes == [mode, 0o600]


def test_no_more_memory_than_the_file_needs_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    tracemalloc.start()
    try:
        assert read_file(path, 2**30) == b"abc"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    with pytest.raises(OSError, match="more than 2 bytes"):
        read_file(path, 2)
