"""Loops that numba compiles once per machine, even if several processes start together. If its cache cannot be read or
written, every process compiles the loops itself."""

from __future__ import annotations

import fcntl
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps


class _Turn:
    """A lock between processes: one compiles at a time, and the others then load its result, because processes that
    start together need the same loops. A process that has waited for `MOST` seconds compiles without the lock, now and
    later: the holder may be stopped, and a bond may be at stake. Within a process, only the holder of numba's compiler
    lock uses this."""

    MOST = 60.0

    def __init__(self) -> None:
        self.folder, self.waits = -1, True

    def take(self, path: str) -> bool:
        """Wait for the lock; False if it is held already, or if this process no longer waits. If True, another process
        may have compiled the loop meanwhile."""
        if self.folder >= 0 or not self.waits:
            return False
        with suppress(OSError):
            self.folder = os.open(path, os.O_RDONLY)
            end = time.monotonic() + self.MOST
            while time.monotonic() < end:
                with suppress(BlockingIOError):
                    fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                time.sleep(0.05)
        self.waits = False
        return True

    @contextmanager
    def ended(self) -> Iterator[None]:
        """At the end of this context the lock is released, if it was taken inside."""
        known = self.folder
        try:
            yield
        finally:
            if self.folder != known:
                with suppress(OSError):
                    fcntl.flock(self.folder, fcntl.LOCK_UN)  # a fork may have the same descriptor
                os.close(self.folder)
                self.folder = known


_turn = _Turn()


class _Files(IndexDataCacheFile):
    """One file for each loop and its argument types. It begins with a hash of the rest, and contains a hash of its
    sources.

    There is no index. numba writes one before the files: after a full disk or a kill between the two, the index of the
    new sources would name a file of the old ones, and the old loop would run for ever.
    """

    def __init__(self, cache_path: str, filename_base: str, folder: Path) -> None:
        super().__init__(cache_path, filename_base, [numba.__version__, sources(folder)])
        self._base, self._folder = filename_base, folder

    def _place(self, key: tuple) -> str:
        return self._data_path(f"{self._base}.{sha256(repr(key).encode()).hexdigest()[:16]}.nbc")

    def save(self, key: tuple, data: Any) -> None:
        if sources.__wrapped__(self._folder) != self._source_stamp[1]:  # the sources were changed after the import
            return
        with self._open_for_write(self._place(key)) as file:
            body = dumps((self._source_stamp, key, data))
            os.fchmod(file.fileno(), 0o644)
            file.write(sha256(body).digest() + body)

    def load(self, key: tuple) -> Any:
        try:
            with open(self._place(key), "rb") as file:
                if not self._is_ours(os.fstat(file.fileno())):
                    return None
                held = file.read()
            if sha256(body := held[32:]).digest() != held[:32]:
                return None  # it is damaged: its machine code could compute anything
            stamp, known, data = pickle.loads(body)
        except Exception:  # there is no file, or one of another version of numba
            return None
        return data if (stamp, known) == (self._source_stamp, key) else None

    def _is_ours(self, file: os.stat_result) -> bool:
        """Whether only this user, root, or the owner of the sources (who controls the code anyway) could have written
        the file."""
        return file.st_uid in (0, os.geteuid(), self._folder.stat().st_uid) and not file.st_mode & 0o022


class _Cache(FunctionCache):
    """numba's cache, with two changes. A full disk or a damaged file does not end the process: a bond may be at stake.

    And a loop is compiled again if any file in the folder above its own, or below that, has changed. numba checks only
    the loop's own file, although the compiled code contains functions and tables from other files. Loops use nothing
    from other folders.
    """

    def __init__(self, function: Callable, options: Mapping[str, Any]) -> None:
        super().__init__(function)
        folder = Path(function.__code__.co_filename).parent.parent
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, folder)
        self._options = sorted(options.items())

    def _index_key(self, signature: Any, codegen: Any) -> tuple:
        """numba's key contains the values in a closure. If one is another loop, that key differs in every process; this
        one contains the loop's code instead."""
        return repr(signature), codegen.magic_tuple(), repr(self._options), _code(self._py_func)

    def load_overload(self, *args: Any) -> Any:
        found = self._load(*args)
        return self._load(*args) if found is None and _turn.take(self._cache_path) else found

    def _load(self, *args: Any) -> Any:
        with suppress(Exception):  # a file that is damaged, though it could be read
            return super().load_overload(*args)

    def save_overload(self, *args: Any) -> None:
        with suppress(Exception):
            super().save_overload(*args)


@cache
def sources(folder: Path) -> str:
    """A hash over all modules in a folder and below it, without hidden files, which editors make."""
    told = sha256()
    for path in sorted(folder.rglob("*.py")):
        if not path.name.startswith("."):
            told.update(f"{path.relative_to(folder).as_posix()}\n".encode() + sha256(path.read_bytes()).digest())
    return told.hexdigest()


def _code(value: Any) -> Any:
    """A key for a function, from its code and the values in its closure, or for another value; the same in every
    process."""
    function = getattr(value, "py_func", value)
    if not hasattr(function, "__code__"):
        return sha256(dumps(value)).hexdigest()
    code = function.__code__
    constants = [repr(constant) for constant in code.co_consts if not hasattr(constant, "co_code")]
    held = [_code(cell.cell_contents) for cell in function.__closure__ or ()]
    return function.__module__, function.__qualname__, code.co_firstlineno, code.co_code, constants, held


def _in_turn(compile_: Callable) -> Callable:
    def in_turn(signature: Any) -> Any:
        with global_compiler_lock, _turn.ended():
            return compile_(signature)

    return in_turn


def compiled_loop(**options: Any) -> Callable[[Callable], Any]:
    """A decorator like numba's `njit`; the loops do not hold the interpreter's lock.

    INVARIANT: closures of one function that hold different values have different names. numba names machine code by the
    name of the function, a counter of the process, and types: two closures that two processes have compiled could have
    the same name, and a process that loads both would run the wrong one.
    """

    def compile_(function: Callable) -> Any:
        if function.__closure__:
            function.__qualname__ += f".{sha256(repr(_code(function)).encode()).hexdigest()[:12]}"
        loop = njit(nogil=True, **options)(function)
        with suppress(RuntimeError, OSError):  # there is no folder for the cache, or a file was just deleted
            loop._cache = _Cache(function, options)
            loop.compile = _in_turn(loop.compile)
        return loop

    return compile_
