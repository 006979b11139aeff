"""The end of an interrupted demonstration: one sentence, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest
from chains import wait_until
from wide import of_many

DEMO = [sys.executable, "-m", "vgame.cli", "demo", "--quick", "--report"]


def family(session: int) -> list[int]:
    """All processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def role(session: int, name: str) -> int | None:
    """The process that writes a role's log."""
    for pid in family(session):
        try:
            if Path(os.readlink(f"/proc/{pid}/fd/2")).name == f"{name}.log":
                return pid
        except OSError:
            continue
    return None


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A demonstration that has come to its first scene."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = forked.Popen([*DEMO, str(tmp_path / "report.html")], text=True, session=True, **pipes)
    assert wait_until(lambda: role(process.pid, "trainer") or process.poll() is not None, 120)
    assert len(family(process.pid)) >= 5  # it, the chain, the nursery, both roles
    yield process
    process.kill()
    process.communicate()


def interrupt(demo: subprocess.Popen) -> None:
    """Ctrl-C reaches every process of the terminal."""
    os.killpg(demo.pid, signal.SIGINT)


def lose_the_trainer(demo: subprocess.Popen) -> None:
    os.kill(role(demo.pid, "trainer"), signal.SIGKILL)


ENDS = [
    (interrupt, "vgame: interrupted; start the same command again to go on"),
    (subprocess.Popen.terminate, ""),
    (lose_the_trainer, "vgame: the trainer process stopped: it was ended from outside, without a message"),
]


@pytest.mark.parametrize(("end", "sentence"), of_many(ENDS, ENDS[2]))
def test_one_sentence_and_no_process_is_left(
    demo: subprocess.Popen, end: Callable[[subprocess.Popen], None], sentence: str
) -> None:
    end(demo)
    begin = time.monotonic()
    assert demo.communicate(timeout=60)[1].strip() == sentence
    assert demo.returncode != 0 and time.monotonic() - begin < 30
    assert wait_until(lambda: not family(demo.pid), 5)


def test_the_roles_of_a_killed_demonstration_end(demo: subprocess.Popen) -> None:
    demo.kill()
    assert wait_until(lambda: not family(demo.pid), 30)
