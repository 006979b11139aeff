"""Files that are whole or not there: nothing is ever half written, not even by a kill or a full disk."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from vgame.errors import VgameError

HALF = ".half"  # ends the name of a file that is being written


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary file beside the target, flush it to the disk, then rename. The file is locked as long as its writer lives."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(HALF, f".{path.name}.", path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                with suppress(OSError):  # some file systems have no locks: what is left there stays
                    fcntl.flock(file, fcntl.LOCK_EX)
                os.fchmod(descriptor, 0o644)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
                os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror}; nothing was changed") from None


def cut(path: Path, size: int) -> None:
    """Forget what lies behind so many bytes of a file, if there is any."""
    try:
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)
    except OSError as error:
        raise VgameError(f"{path} cannot be cut: {error.strerror}; free space, then resume") from None


def remove_halves(folder: Path) -> None:
    """Remove what writers that were killed left in a folder."""
    for half in folder.glob(f".*{HALF}"):
        with suppress(OSError), open(half, "rb") as file:  # BlockingIOError: its writer lives
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            half.unlink()


def check_file(path: Path) -> None:
    """OSError unless it is a file: a pipe or a device in a folder of somebody else would be read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "a file is expected", str(path))


def read_file(path: Path, most: int) -> bytes:
    """A file of somebody else; OSError if it is none or has more than `most` bytes."""
    check_file(path)
    with open(path, "rb") as file:
        if len(data := file.read(most + 1)) > most:
            raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return data
