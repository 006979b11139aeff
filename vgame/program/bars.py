"""Progress bars of tqdm while a step is traced: their texts do not change, and the user's code may not read them.

In: nothing. Out: a context in which a bar's texts are neither set nor read; whether a call sets one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from vgame.program.traps import refused
from vgame.system.installed import is_of_user

SETS = ("set_description", "set_description_str", "set_postfix", "set_postfix_str")
TEXTS = {"__dict__", "desc", "format_dict", "postfix"}  # attributes that give a text
SHOWN = ("__repr__", "__str__", "__format__")


@contextmanager
def bars_still() -> Iterator[None]:
    """Context in which bars keep the texts that they have."""
    kind = _bar()
    with ExitStack() as stack:
        for name in SETS if kind else ():
            stack.enter_context(patch.object(kind, name, _still(getattr(kind, name))))
        for name in SHOWN if kind else ():
            stack.enter_context(patch.object(kind, name, _unread(getattr(kind, name)), create=True))
        if kind:
            stack.enter_context(patch.object(kind, "__getattribute__", _attribute, create=True))
        yield


def sets_text(found: Any, bar: Any) -> bool:
    """Whether a function sets a text of a bar that writes to the process's standard output or error."""
    kind = _bar()
    if kind is None or not any(found is vars(kind).get(name) for name in SETS):
        return False
    stream = object.__getattribute__(bar, "__dict__").get("fp") if isinstance(bar, kind) else sys
    return stream is None or vars(stream).get("_wrapped") in (sys.stdout, sys.stderr)


def _bar() -> Any:
    return getattr(sys.modules.get("tqdm.std"), "tqdm", None)


def _still(original: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(original)
    def still(self: Any, *args: Any, **kwargs: Any) -> None:
        pass

    return still


def _refuse_read(frame: Any) -> None:
    if is_of_user(frame.f_code.co_filename):
        raise refused("the text of a progress bar")


def _unread(original: Callable[..., str]) -> Callable[..., str]:
    def show(self: Any, *args: Any) -> str:
        _refuse_read(sys._getframe(1))
        return original(self, *args)

    return show


def _attribute(self: Any, name: str) -> Any:
    if name in TEXTS:
        _refuse_read(sys._getframe(1))
    return object.__getattribute__(self, name)
