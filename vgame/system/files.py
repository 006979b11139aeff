"""Atomic files: each is complete or absent, even after a kill or on a full disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from vgame.errors import VgameError

HALF = ".half"  # suffix of a file that is being written


def _umask() -> int:
    """The user's umask; it can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


MODE = 0o666 & ~_umask()  # of new files; read during the import, while there is one thread


@contextmanager
def half_file(folder: Path, name: str, mode: int = MODE) -> Iterator[tuple[IO[bytes], Path]]:
    """A new file in a folder, locked as long as its writer lives. At the end it is removed, unless it was moved."""
    descriptor, half = tempfile.mkstemp(HALF, f".{name}.", folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(OSError):  # some file systems have no locks; files left there are not removed
                fcntl.flock(file, fcntl.LOCK_EX)
            os.fchmod(descriptor, mode)
            yield file, Path(half)
    finally:
        Path(half).unlink(missing_ok=True)


def write_atomic(
    path: Path, data: bytes | Iterable[bytes | memoryview] | Callable[[IO[bytes]], None], mode: int = MODE
) -> None:
    """Write to a temporary file beside the target, flush it to the disk, then rename. Pieces are written one by one; a
    function writes to the file itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half_file(path.parent, path.name, mode) as (file, half):
            if callable(data):
                data(file)
            else:
                file.writelines([data] if isinstance(data, bytes | bytearray | memoryview) else data)
            flush(file)
            os.replace(half, path)
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror or error}; nothing was changed") from None


def flush(file: IO[bytes]) -> None:
    """Write a file's buffered data to the disk."""
    file.flush()
    os.fsync(file.fileno())


BLOCK = 4096  # bytes; file systems share data between files in blocks


def copy_file(descriptor: int, target: Path, begin: int, end: int) -> None:
    """Copy the bytes from `begin` to `end` of an open file to the same place in a new file, atomically. The part before
    their first block becomes a hole; file systems that can share blocks do so."""
    write_atomic(target, lambda file: _copy(descriptor, file.fileno(), begin // BLOCK * BLOCK, end))


def _copy(source: int, target: int, at: int, end: int) -> None:
    os.lseek(target, at, os.SEEK_SET)
    while at < end:
        try:
            done = os.copy_file_range(source, target, end - at, at)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            done = os.sendfile(target, source, at, end - at)
        if not done:
            raise OSError(errno.EIO, "the file that is copied became shorter")
        at += done


def truncate(path: Path, size: int) -> None:
    """Cut a file to `size` bytes, if it exists and is longer."""
    try:
        with suppress(FileNotFoundError), open(path, "r+b", opener=no_link) as file:
            if os.fstat(file.fileno()).st_size > size:
                os.truncate(file.fileno(), size)
    except OSError as error:
        raise VgameError(f"{path} cannot be cut: {error.strerror}; free space, then resume") from None


def remove_halves(folder: Path) -> None:
    """Remove the unfinished files of killed writers from a folder."""
    for half in folder.glob(f".*{HALF}"):
        with suppress(OSError), open(half, "rb", opener=no_link) as file:  # BlockingIOError: its writer lives
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            half.unlink()


def no_link(path: str, flags: int, mode: int = 0o666) -> int:
    """An opener for `open`, which follows no link and does not wait for a pipe; OSError unless it is a regular file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a file is expected", path)
    return descriptor


def private(path: str, flags: int) -> int:
    """`no_link` for a lock file, readable only by its owner: any reader could hold the lock."""
    descriptor = no_link(path, flags, 0o600)
    with suppress(OSError):  # it belongs to another user
        os.fchmod(descriptor, 0o600)
    return descriptor


def refuse_links(*folders: Path) -> None:
    """OSError if a folder is a link: files would be written and deleted elsewhere."""
    for folder in folders:
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a link; move the folder that holds it, and name that", str(folder))


# ---- untrusted files ----


def open_file(path: Path, follow: bool = False) -> IO[bytes]:
    """Open an untrusted file for reading; OSError unless it is a regular file. A pipe or a device could be read for
    ever, and a link leads elsewhere. `follow`: the user has named the file, so it may be a link."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        told = "a file is expected, it is a link" if error.errno == errno.ELOOP else error.strerror
        raise OSError(error.errno, told, str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "a file is expected", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, most: int, follow: bool = False) -> bytes:
    """The content of such a file; OSError if it has more than `most` bytes."""
    with open_file(path, follow) as file:
        if (size := os.fstat(file.fileno()).st_size) > most or len(data := file.read(size + 1)) > most:
            raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
        if len(data) > size:
            raise OSError(errno.EAGAIN, "it grew while it was read", str(path))
    return data


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 of the digests of the contents of files."""
    whole = hashlib.sha256()
    for path in paths:
        with open_file(path, follow=True) as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def refuse_other_digest(paths: Sequence[Path], digest: str) -> None:
    """OSError if the files do not have this digest: they have changed since."""
    if digest_of(paths) != digest:
        raise OSError(errno.EAGAIN, "it changed while it was read", str(paths[0]))


#: Maximum nesting depth of lists and objects in JSON; vgame's own files have at most six levels.
MOST_DEPTH = 200
#: The strings of a text of JSON, the last one perhaps without an end. Possessive, so the search never goes back: its
#: time is proportional to the text.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def json_text(data: bytes) -> str:
    """The text of JSON; ValueError unless it is UTF-8, with at most MOST_DEPTH lists and objects in each other. A
    parser calls itself for each level, and libraries (py_ecc, eth) raise Python's recursion limit above the capacity of
    its C stack. INVARIANT: `json` does not choose the encoding: in UTF-16 and UTF-32, brackets are other bytes."""
    text = data.decode()
    if data.count(b"[") + data.count(b"{") > MOST_DEPTH:
        brackets = _STRINGS.sub(b"", data).translate(None, _NO_BRACKETS)
        depth = accumulate(1 if bracket in b"[{" else -1 for bracket in brackets)
        if max(depth, default=0) > MOST_DEPTH:
            raise ValueError(f"more than {MOST_DEPTH} lists or objects lie in each other")
    return text


def parse_json(data: bytes) -> Any:
    """The value of a JSON text; ValueError if an object has a key twice (two readers could use different values), or if
    `json_text` refuses it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in pairs:
            if key in fields:
                raise ValueError(f"the key {key[:200]!r} stands in it twice")
            fields[key] = value
        return fields

    return json.loads(json_text(data), object_pairs_hook=unique)
