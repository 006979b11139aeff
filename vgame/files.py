"""Files that are whole or not there: nothing is ever half written, not even by a kill or a full disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from vgame.errors import VgameError


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary file beside the target, flush it to the disk, then rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            os.fchmod(descriptor, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror}; nothing was changed") from None
