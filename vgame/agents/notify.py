"""`--notify COMMAND`: a user's command for urgent events.

In: the events of a reporter. Out: for disputes, their ends, and alarms, the command runs with the event as one JSON
object on its input. One command runs at a time, in parallel to the role, and is killed after LIMIT seconds. Its output
and its exit code have no effect on the role.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from vgame.agents.config import KEY_VARIABLE, KEYSTORE_VARIABLE, PASSWORD_VARIABLE
from vgame.errors import VgameError
from vgame.system.progress import fail

#: The events that run the command, by rank. Alarms that more than half of the endpoints show come before all others,
#: because one endpoint can invent any number of alarms. Alarms of the kind "bond" come last, because other accounts can
#: cause any number of them.
NOTIFIED = ("alarm", "over", "phase", "verdict", "dispute")
LIMIT = 30.0  # maximum seconds for one command
WAITING = 100  # maximum number of queued events of each rank; further events are dropped
SECRETS = (KEY_VARIABLE, KEYSTORE_VARIABLE, PASSWORD_VARIABLE)  # variables that the command does not inherit


def notify(command: str, role: str, limit: float = LIMIT) -> Callable[[str, dict[str, Any]], None]:
    """A listener that passes events to the command; VgameError if there is no such program."""
    words = _words(command)
    events: queue.PriorityQueue[tuple[int, int, str]] = queue.PriorityQueue()
    numbers = count()
    problems: set[str] = set()

    def work() -> None:
        while True:
            *_, line = events.get()
            if (why := _run(words, line, limit)) and why not in problems:
                problems.add(why)  # each problem is reported once
                fail(f"{_named(command)}: {why}; the {role} goes on")
            events.task_done()

    def hear(event: str, fields: dict[str, Any]) -> None:
        if event in NOTIFIED:
            rank = len(NOTIFIED) if fields.get("kind") == "bond" else NOTIFIED.index(event)
            rank -= bool(fields.get("confirmed")) and rank == 0
            line = {"time": round(time.time(), 3), "role": role, "event": event}
            if sum(waits == rank for waits, *_ in list(events.queue)) < WAITING:
                events.put((rank, next(numbers), json.dumps(line | fields, default=str) + "\n"))

    threading.Thread(target=work, daemon=True).start()
    atexit.register(_finish, events, limit)
    return hear


def _named(command: str) -> str:
    """The option, with its program if that is a plain word or a file; any other text may be a secret and is left
    out."""
    program = next(iter(command.split()), "''")
    plain = re.fullmatch(r"[\w.+-]+|''", program) or shutil.which(program) or Path(program).exists()
    return f"--notify {program}" if plain else "--notify"


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise VgameError(f"{_named(command)}: {error}; a command is expected, as in a shell") from None
    if not words or shutil.which(words[0]) is None:
        raise VgameError(f"{_named(command)}: there is no such program; give its path, or sh -c '...'")
    return words


def _run(words: list[str], line: str, limit: float) -> str:
    """The reason why the command failed; empty if it did not."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(words, **pipes, text=True, env=environment, start_new_session=True)
    except OSError as error:
        return str(error.strerror)
    try:
        process.communicate(line, timeout=limit)
    except subprocess.TimeoutExpired:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"it was killed because it still ran after {limit:g} s"
    return f"it ended with exit code {process.returncode}" if process.returncode else ""


def _finish(events: queue.PriorityQueue[tuple[int, int, str]], limit: float) -> None:
    """At the end of the process: process the queued events, for at most the time limit of one command."""
    end = time.monotonic() + limit
    while events.unfinished_tasks and time.monotonic() < end:
        time.sleep(0.05)
