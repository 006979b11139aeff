"""Loops that numba compiles once for a machine. Where its cache cannot be read or written, every process compiles its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class _Cache(FunctionCache):
    """numba's, but a full disk or a damaged file ends nobody: a bond may be at stake."""

    def load_overload(self, *args: Any) -> Any:
        try:
            return super().load_overload(*args)
        except Exception:  # a damaged file can raise anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, *args: Any) -> None:
        with suppress(OSError):
            super().save_overload(*args)


def compiled_loop(**options: Any) -> Callable[[Callable], Any]:
    """A decorator like numba's `njit`; the loops do not hold the interpreter's lock."""

    def compile_(function: Callable) -> Any:
        loop = njit(nogil=True, **options)(function)
        with suppress(RuntimeError):  # there is no folder for the cache
            loop._cache = _Cache(function)
        return loop

    return compile_
