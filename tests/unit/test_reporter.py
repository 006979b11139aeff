"""Output that cannot be written: an agent continues, any other command fails; both with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MANY = 2_000


def report(who: str, json_lines: bool, stdout: int) -> subprocess.CompletedProcess[str]:
    """A process that reports `MANY` events and long work to `stdout`, and ends with exit code 0 like a role."""
    body = f"""
import sys
from vgame.cli import options
from vgame.cli import commands as cli
from vgame.system.progress import Reporter

@options.app.command()
def talk():
    reporter = Reporter({json_lines}, {who!r})
    for i in range({MANY}):
        reporter.emit("event", f"event {{i}}")
    reporter.progress("training", 1, 1)
    print("played on", file=sys.stderr)

sys.argv = ["vgame", "talk"]
cli.main()
"""
    return subprocess.run(
        [sys.executable, "-c", body], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )


@pytest.fixture(params=["full disk", "broken pipe"])
def broken_output(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """(a file that cannot be written, the reason)"""
    if request.param == "full disk":
        if not Path("/dev/full").exists():
            pytest.skip("this system has no /dev/full")
        with open("/dev/full", "wb") as file:
            yield file.fileno(), "No space left on device"
        return
    read, write = os.pipe()
    os.close(read)
    yield write, "Broken pipe"
    os.close(write)


@pytest.mark.parametrize("json_lines", [False, True])
def test_an_agent_continues(broken_output: tuple[int, str], json_lines: bool) -> None:
    """Its bond is at stake, with or without readers."""
    result = report("trainer", json_lines, broken_output[0])
    assert result.stderr.splitlines() == [
        f"vgame: what the trainer says cannot be written: {broken_output[1]}; it plays on, unheard",
        "played on",
    ]
    assert result.returncode == 0


@pytest.mark.parametrize("json_lines", [False, True])
def test_another_command_fails(broken_output: tuple[int, str], json_lines: bool) -> None:
    """Its output is its purpose."""
    result = report("", json_lines, broken_output[0])
    assert result.stderr.splitlines() == [f"vgame: the output cannot be written: {broken_output[1]}"]
    assert result.returncode == 1
