"""The folder of one delivery, into which other accounts can put no links and no keys."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from vgame.errors import VgameError


def own_folder(folder: Path, mode: int = 0o700) -> None:
    """Make the folder if there is none, and let only its owner write to it. VgameError if it belongs to another
    account, or is a link."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise VgameError(f"{folder} is no folder of this account: move it away, or name another place")
        if found.st_mode & 0o022:
            folder.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
    except OSError as error:
        raise VgameError(f"{folder} cannot be made: {error.strerror}; name another place") from None
