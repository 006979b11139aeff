"""Loops that numba compiles once for a machine, also where processes begin together. Where its cache cannot be read or
written, every process compiles its own."""

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
    """One process compiles at a time, and who has waited for it finds what it has compiled: processes that begin
    together need the same loops. Who has waited for `MOST` seconds compiles beside it, now and later: the other one may
    be stopped, and a bond at stake. The holder of numba's lock uses it."""

    MOST = 60.0

    def __init__(self) -> None:
        self.folder, self.waits = -1, True

    def take(self, path: str) -> bool:
        """Whether others may have compiled meanwhile."""
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
        """After this the turn is another process's, if it was taken within."""
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
    """One file for each loop and types of its arguments, which begins with a hash of the rest and says itself what it
    was compiled from.

    numba has an index beside the files, written before them: after a full disk or a kill between the two, the index of
    the new sources names a file of the old ones, and the old loop would compute for ever.
    """

    def __init__(self, cache_path: str, filename_base: str, folder: Path) -> None:
        super().__init__(cache_path, filename_base, [numba.__version__, sources(folder)])
        self._base, self._folder = filename_base, folder

    def _place(self, key: tuple) -> str:
        return self._data_path(f"{self._base}.{sha256(repr(key).encode()).hexdigest()[:16]}.nbc")

    def save(self, key: tuple, data: Any) -> None:
        if sources.__wrapped__(self._folder) != self._source_stamp[1]:  # changed since they were loaded
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
        except Exception:  # there is none, or numba's of another version
            return None
        return data if (stamp, known) == (self._source_stamp, key) else None

    def _is_ours(self, file: os.stat_result) -> bool:
        """Whether only this user and root could have written it, and the owner of the sources, who chooses the code
        anyway."""
        return file.st_uid in (0, os.geteuid(), self._folder.stat().st_uid) and not file.st_mode & 0o022


class _Cache(FunctionCache):
    """numba's, but a full disk or a damaged file ends no process: a bond may be at stake.

    And numba looks whether the loop's own file has changed, though the loop holds what it calls and the tables that it
    reads in other files: here they are all files of the folder above its own, and below that. Loops take nothing from
    elsewhere.
    """

    def __init__(self, function: Callable, options: Mapping[str, Any]) -> None:
        super().__init__(function)
        folder = Path(function.__code__.co_filename).parent.parent
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, folder)
        self._options = sorted(options.items())

    def _index_key(self, signature: Any, codegen: Any) -> tuple:
        """numba's has what a closure holds, and another loop differs in every process: here it is its code."""
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
    """A hash over all modules in a folder, and below it; an editor's are hidden."""
    told = sha256()
    for path in sorted(folder.rglob("*.py")):
        if not path.name.startswith("."):
            told.update(f"{path.relative_to(folder).as_posix()}\n".encode() + sha256(path.read_bytes()).digest())
    return told.hexdigest()


def _code(value: Any) -> Any:
    """What two functions differ in, also in what they hold, or two other values; the same in every process."""
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
    one name, and a process that loads both would run one for the other.
    """

    def compile_(function: Callable) -> Any:
        if function.__closure__:
            function.__qualname__ += f".{sha256(repr(_code(function)).encode()).hexdigest()[:12]}"
        loop = njit(nogil=True, **options)(function)
        with suppress(RuntimeError, OSError):  # there is no folder for the cache, or a file has just gone
            loop._cache = _Cache(function, options)
            loop.compile = _in_turn(loop.compile)
        return loop

    return compile_
