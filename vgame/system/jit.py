"""Loops that numba compiles once for a machine. Where its cache cannot be read or written, every process compiles its
own."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    """numba's, but a full disk or a damaged file ends nobody: a bond may be at stake.

    And numba looks whether the loop's own file has changed, though the loop holds what it calls and the tables that it
    reads in other files: here they are all files of the folder above its own, and below that. Loops take nothing from
    elsewhere.
    """

    def __init__(self, function: Callable) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = _stamp(str(Path(function.__code__.co_filename).parent.parent))

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        """numba's has what a closure holds, and another loop differs in every process: here it is its name, for the
        stamp says that its sources are the same."""
        function = self._py_func
        held = [cell.cell_contents for cell in function.__closure__ or ()]
        names = tuple(getattr(value, "__name__", value) for value in held)
        return signature, codegen.magic_tuple(), function.__qualname__, function.__code__.co_code, names

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


def _stamp(folder: str) -> list[tuple[str, int, int]]:
    """Of the sources in a folder, and below it; an editor's are hidden."""
    found = []
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.is_dir() and entry.name != "__pycache__":
            found += _stamp(entry.path)
        elif entry.name.endswith(".py") and not entry.name.startswith("."):
            stat = entry.stat()
            found.append((entry.path, stat.st_mtime_ns, stat.st_size))
    return found


def compiled_loop(**options: Any) -> Callable[[Callable], Any]:
    """A decorator like numba's `njit`; the loops do not hold the interpreter's lock."""

    def compile_(function: Callable) -> Any:
        loop = njit(nogil=True, **options)(function)
        with suppress(RuntimeError, OSError):  # there is no folder for the cache, or a file has just gone
            loop._cache = _Cache(function)
        return loop

    return compile_
