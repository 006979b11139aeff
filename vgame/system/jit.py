"""Loops that numba compiles once for a machine. Where its cache cannot be read or written, every process compiles its
own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    """numba's, but a full disk or a damaged file ends nobody: a bond may be at stake.

    And numba looks whether the loop's own file has changed, though the loop holds what it calls in other files: here
    they are all files of its folder and of the folder above (tables, codes). Loops take nothing from elsewhere.
    """

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        folder = Path(function.__code__.co_filename).parent
        # an editor's are hidden
        files = [p for place in (folder.parent, folder) for p in sorted(place.glob("[!.]*.py"))]
        self._cache_file._source_stamp = [(p.name, p.stat().st_mtime_ns, p.stat().st_size) for p in files]

    def load_overload(self, *args: Any) -> Any:
        try:
            return super().load_overload(*args)
        except Exception:  # a damaged file can raise anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, *args: Any) -> None:
        with suppress(Exception):  # it reads the index again
            super().save_overload(*args)


def compiled_loop(**options: Any) -> Callable[[Callable], Any]:
    """A decorator like numba's `njit`; the loops do not hold the interpreter's lock."""

    def compile_(function: Callable) -> Any:
        loop = njit(nogil=True, **options)(function)
        with suppress(RuntimeError, OSError):  # there is no folder for the cache, or a file has just gone
            loop._cache = _Cache(function)
        return loop

    return compile_
