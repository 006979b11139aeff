"""Python's warnings in a terminal: each is one sentence, shown once.

In: warnings from vgame, a user's script or a library. Out: lines on stderr.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from vgame.system.installed import is_of_user
from vgame.system.progress import fail

INSIDE = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)


def warn(text: str, place: str = "") -> None:
    """One sentence on stderr, with the place in the user's code if there is one."""
    fail(f"warning: {place}{text}")


def show_as_sentences() -> None:
    """Show warnings in this form from now on, in this process."""
    seen: set[str] = set()

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        text, own = " ".join(str(message).split()), is_of_user(filename)
        if text in seen or (issubclass(category, INSIDE) and not own):
            return  # already shown, or about a library's code
        seen.add(text)
        warn(text, f"{os.path.relpath(filename)}:{lineno}: " if own else "")

    warnings.showwarning = show
