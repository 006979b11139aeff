"""Follow a page like its reader: write its files, type its shell blocks unchanged into a terminal.

Only a reader's own values are replaced: names in capitals, and a port that may be in use.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def section(page: str, heading: str) -> str:
    """From a heading, without its marks, to the next of its rank or above; within a block # begins a comment."""
    found: list[str] = []
    rank, fenced = 0, False
    for line in (ROOT / page).read_text().splitlines():
        fenced ^= line.startswith("```")
        marks = 0 if fenced else len(line) - len(line.lstrip("#"))
        if rank and 0 < marks <= rank:
            break
        if rank:
            found.append(line + "\n")
        elif marks and line.lstrip("# ") == heading:
            rank = marks
    assert found, f"{page} has no heading {heading!r}"
    return "".join(found)


def files(text: str) -> Iterator[tuple[str, str]]:
    """Name and content of every block that "`NAME`, ...:" announces."""
    yield from re.findall(r"^`([\w.]+)`,[^`]*:\n\n```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[str]:
    """Every shell block, within a list too."""
    found = re.finditer(r"^( *)```sh\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block[2]) for block in found]


def inline(text: str, start: str) -> str:
    """The inline command that starts with this text, on one line."""
    found = re.search(rf"`({re.escape(start)}[^`]*)`", text)
    assert found, f"no command starts with {start!r}"
    return " ".join(found[1].split())


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with a reader's own values; each must occur."""
    for name, value in values.items():
        assert re.search(rf"\b{name}\b", text), f"{name} is not in {text!r}"
        text = re.sub(rf"\b{name}\b", value, text)
    return text


def _controlled() -> None:
    """Makes the terminal the controlling one: Ctrl-C reaches its jobs, even if the tests run in the background and
    ignore it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for key in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(key, signal.SIG_DFL)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def environment(folder: Path) -> dict[str, str]:
    """A reader's environment, with `vgame` on the path; the folder is the home."""
    path = f"{Path(sys.executable).absolute().parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder), "OMP_NUM_THREADS": "1", "PS1": ""}


class Terminal:
    """An interactive bash; `seen` is all of its output, without an echo of the input."""

    def __init__(self, folder: Path) -> None:
        self.seen, (self._line, theirs) = "", os.openpty()
        modes = termios.tcgetattr(theirs)
        modes[1] &= ~termios.ONLCR
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        termios.tcsetwinsize(theirs, (50, 200))
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"], cwd=folder, env=environment(folder),
            start_new_session=True, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=_controlled,
        )  # fmt: skip
        os.close(theirs)

    def type(self, text: str) -> None:
        """Type a line, and Enter."""
        os.write(self._line, text.strip("\n").encode() + b"\n")

    def interrupt(self, seconds: float = 20) -> None:
        """Ctrl-C, then wait until the shell reads again: earlier input may be lost."""
        os.write(self._line, b"\x03")
        end = time.monotonic() + seconds
        while os.tcgetpgrp(self._line) != self._shell.pid:
            assert time.monotonic() < end, f"not interrupted within {seconds} s:\n{self.seen[-4000:]}"
            time.sleep(0.05)
        time.sleep(0.5)  # it leaves the command that was interrupted

    def run(self, text: str, seconds: float = 60) -> str:
        """The output of a command until it ends."""
        mark = f"ended {time.monotonic_ns()}"
        before = len(self.seen)
        self.type(f"{text}\necho {mark.replace(' ', '  ')}")
        self.wait(mark, seconds)
        return self.seen[before:].rpartition(mark)[0]

    def wait(self, pattern: str, seconds: float) -> re.Match[str]:
        """Wait for the pattern in the output, for at most `seconds`."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.seen)) is None:
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} within {seconds} s:\n{self.seen[-4000:]}"
            if select.select([self._line], [], [], left)[0]:
                self.seen += os.read(self._line, 2**16).decode(errors="replace")
        return found

    def close(self) -> None:
        """Like closing a window: bash and its jobs end."""
        self._shell.send_signal(signal.SIGHUP)
        self._shell.wait(20)
        os.close(self._line)


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    made = Terminal(folder)
    try:
        yield made
    finally:
        made.close()
