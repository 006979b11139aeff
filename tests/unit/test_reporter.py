"""Output that cannot be written: an agent plays on, any other command has failed; both with one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MANY = 2_000


def say(who: str, json_lines: bool, stdout: int) -> subprocess.CompletedProcess[str]:
    """A process that reports `MANY` events and long work to `stdout`, then exit code 0 as a role's end."""
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
def deaf(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
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
def test_agent_plays_on(deaf: tuple[int, str], json_lines: bool) -> None:
    """Its bond is at stake, with or without readers."""
    result = say("trainer", json_lines, deaf[0])
    assert result.stderr.splitlines() == [
        f"vgame: what the trainer says cannot be written: {deaf[1]}; it plays on, unheard",
        "played on",
    ]
    assert result.returncode == 0


@pytest.mark.parametrize("json_lines", [False, True])
def test_command_has_failed(deaf: tuple[int, str], json_lines: bool) -> None:
    """Its output is its purpose."""
    result = say("", json_lines, deaf[0])
    assert result.stderr.splitlines() == [f"vgame: the output cannot be written: {deaf[1]}"]
    assert result.returncode == 1
