"""Errors that only a trace raises: code without a call that vgame could refuse (`json.dumps(n)`, `timedelta(days=n)`)
rejects an unknown number, or one that changes from step to step, because its class is not Python's.

In: a list of errors. Out: a context, or a period that begins at the read of a number, in which the errors that pass
through the user's code are added to the list. `caught.py` refuses those that this code has caught.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from vgame.errors import VgameError
from vgame.program.hidden_state import calls_loss, is_library_file
from vgame.system.installed import is_installed

#: Errors that the class of a number cannot cause. Errors of torch's functions are in `fails.py`; a missing method or
#: key is refused where it is read.
OTHER = (AttributeError, ImportError, LookupError, OSError, StopAsyncIteration, StopIteration, Warning, VgameError)
Key = tuple[str, int, type]  # file, line, class


class Raised:
    """Records errors of this thread's code, only while this is needed, because it slows Python down."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors, self.on, self.before = errors, False, sys.gettrace()
        self.usual: set[Key] = set()  # errors of a pass without numbers that change
        self.is_usual = self.changes = self.read = False

    @contextmanager
    def usually(self, changes: bool) -> Iterator[None]:
        """Context of passes without numbers that change. `changes`: a later pass reaches such numbers; of its errors,
        those that these passes do not have are recorded."""
        self.is_usual, self.changes = True, changes
        yield
        self.is_usual = False

    def reads(self) -> None:
        """An unknown number is read."""
        self.read = True
        self.begin()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context of code of the user's."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self, frame: FrameType | None = None) -> None:
        """`frame`: a frame of the user's that is already running."""
        if self.on or not (self.changes or self.read):
            return
        self.on, self.before = True, sys.gettrace()
        sys.settrace(self._call)
        frame = frame or sys._getframe(1)
        while frame is not None and not calls_loss(frame):
            frame.f_trace = self._call(frame, "call", None) or frame.f_trace
            frame = frame.f_back

    def end(self) -> None:
        if self.on:
            self.on = False
            sys.settrace(self.before)

    def _call(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if is_library_file(frame.f_code.co_filename) or is_installed(frame.f_code.co_filename):
            return None  # also of a library that torch calls
        frame.f_trace_lines = False
        return self._notes

    def _notes(self, frame: FrameType, event: str, given: Any) -> Callable[..., Any]:
        if event == "exception" and _counts(*given):
            _, error, _ = given
            key = frame.f_code.co_filename, frame.f_lineno, type(error)
            if self.is_usual and not self.read:
                self.usual.add(key)
            elif key not in self.usual and all(error is not known for known in self.errors):
                self.errors.append(error)
        return self._notes


def _counts(kind: type[BaseException], error: Any, place: TracebackType | None) -> bool:
    """Whether an error may come from a number's class: not where a statement of the user's raises it."""
    plain = issubclass(kind, RuntimeError) and not issubclass(kind, NotImplementedError | RecursionError)
    if not issubclass(kind, Exception) or issubclass(kind, OTHER) or plain or place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    raises = dis.opname[code.co_code[place.tb_lasti]] == "RAISE_VARARGS"
    return not raises or is_library_file(code.co_filename)
