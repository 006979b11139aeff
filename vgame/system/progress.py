"""The output of a role while it works: bars and lines in a terminal, plain lines without one, JSON lines for
programs."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unicodedata import category

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from vgame.errors import VgameError

PLAIN_EVERY = 5.0  # seconds between two plain progress lines


def plain(text: str) -> str:
    """Text for a terminal: characters that would move the cursor, change the direction of writing or end the line are
    escaped. Names in it come from untrusted files and chains."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(ascii(c)[1:-1] if category(c) in hidden and c not in "\n\t" else c for c in text)


class NullProgress:
    """Drops reports of progress."""

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        """Report an event: `text` for people, the fields for programs."""

    def stage(self, text: str) -> None:
        """Report a stage that begins now and may take a while."""

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        """Report the progress of a long task."""

    def beat(self) -> None:
        """Report the end of a round without an error."""


NULL_PROGRESS = NullProgress()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise an OSError, as on a full disk; rich would end the process."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class Reporter(NullProgress):
    """Events of a role. `json_lines`: one JSON object per event on stdout.

    If the output cannot be written (a full disk, a closed pipe), the role `who` continues, because a bond may be at
    stake; without `who` it is a VgameError.
    """

    def __init__(self, json_lines: bool = False, who: str = "") -> None:
        self.json_lines, self.who = json_lines, who
        # receive every event, even if the output cannot be written
        self.listeners: list[Callable[[str, dict[str, Any]], None]] = []
        self.console = self._make_console()
        self._unheard = False
        self._bar: Progress | None = None
        self._task: Any = None
        self._last = 0.0

    def _make_console(self) -> Console:
        width = None if sys.stdout.isatty() else 160
        return _Console(stderr=self.json_lines, highlight=False, width=width, soft_wrap=width is not None)

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        self._tell(event, {"text": text, **fields})
        with self._speaking():
            if self.json_lines:
                print(json.dumps({"event": event, "who": self.who, **fields}), flush=True)
            elif text:
                self.console.print(Text.assemble((f"{self.who} " if self.who else "", "bold"), plain(text)))

    def _tell(self, event: str, fields: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener(event, fields)

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._bear(error)

    def _bear(self, error: OSError) -> None:
        """Report once, on stderr, that a role's output cannot be written; VgameError without a role."""
        if not self.who:
            raise VgameError(f"the output cannot be written: {error.strerror}") from None
        self.console = self._make_console()  # the old one keeps what it could not write
        if not self._unheard:
            self._unheard = True
            fail(f"what the {self.who} says cannot be written: {error.strerror}; it plays on, unheard")

    def beat(self) -> None:
        self._tell("beat", {})

    def deadline(self, left: int | None, worst: int) -> None:
        """Report the most urgent duty: the seconds left for it (None: nothing is due), and those that it takes at
        worst."""
        self._tell("deadline", {"left": left, "worst": worst})

    def stage(self, text: str) -> None:
        """Shown only to people; programs receive the events that follow."""
        if not self.json_lines:
            self.emit("stage", text)

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        self._tell("progress", {"what": what, "done": done, "total": total, "detail": detail})
        if self.json_lines:
            if time.monotonic() - self._last > 0.25 or done == total:
                self._last = time.monotonic()
                self.emit("progress", what=what, done=done, total=total, detail=detail)
        elif self.console.is_terminal:
            self._advance_bar(what, done, total, detail)
        elif time.monotonic() - self._last > PLAIN_EVERY or done == total:
            self._last = time.monotonic()
            with self._speaking():
                print(f"{self.who} {what}: {done} of {total} {detail}".strip(), flush=True)

    def _advance_bar(self, what: str, done: int, total: int, detail: str) -> None:
        if self._bar is None:
            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
            self._bar = Progress(
                *columns, TimeRemainingColumn(), TextColumn("{task.fields[detail]}"), console=self.console
            )
            self._bar.start()
            self._task = self._bar.add_task(what, total=total, detail=detail)
        self._bar.update(self._task, description=what, completed=done, total=total, detail=detail)
        if done == total:
            self.close()

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def fail(message: str) -> None:
    """One sentence on stderr, if it can be written."""
    with suppress(OSError):
        print(f"vgame: {plain(message)}", file=sys.stderr, flush=True)


def drop_unsaid() -> None:
    """Called before the process ends: drops the output that stdout did not accept. Otherwise Python would change the
    exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
