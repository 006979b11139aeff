"""One untrusted source of files: a folder behind a URL that fsspec reads (https, s3, memory, file, ...).

In: names of files, the largest size of each. Out: local files, whole or not at all. The caller checks their content.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from vgame.errors import StoreError, VgameError, how_to_install
from vgame.system.endpoints import hide_secrets, without_login
from vgame.system.files import HALF, open_file

CONNECT = 10.0  # seconds
SILENT = 30.0  # seconds without a byte of the file, or until all headers are there
SLOWEST = 2**16  # bytes a second; slower downloads are aborted
BLOCK = 2**20


class Unfit(StoreError):
    """A file could not be fetched, or is not valid."""


class Absent(Unfit):
    """The source reports that it has no such file."""


def is_url(run: object) -> bool:
    return isinstance(run, str) and "://" in run


class Source:
    """A folder behind a URL. No redirect is followed. `until`: the time (of time.monotonic) after which no request is
    made."""

    until = math.inf

    def __init__(self, url: str) -> None:
        import fsspec

        place, mark, query = url.partition("?") if url.startswith(("http://", "https://")) else (url, "", "")
        self.url, self.query = place.rstrip("/") + mark + query, mark + query
        self.shown = without_login(self.url)  # in messages
        try:
            kind = fsspec.utils.get_protocol(url)
            self.system, self.root = fsspec.core.url_to_fs(
                place.rstrip("/"), **(_careful() if kind in ("http", "https") else {})
            )
        except (ImportError, ValueError) as error:
            raise VgameError(
                f"{self.shown} cannot be read: {self._reason(error)}; http and https need the extra remote: "
                f"{how_to_install('remote')}"
            ) from None

    def has(self, name: str) -> bool:
        """Whether the source has a file; Unfit without an answer."""
        try:
            self._info(name)
        except Absent:
            return False
        return True

    def _info(self, name: str) -> dict[str, Any]:
        self._refuse_late(name)
        try:
            return dict(self.system.info(self._place(name)))
        except Exception as error:  # every library of fsspec raises its own errors
            if isinstance(error, FileNotFoundError):  # fsspec also raises this if a server fails
                error = error.__cause__ or error
            if isinstance(error, FileNotFoundError) or getattr(error, "status", 0) in (404, 410):
                raise Absent(f"{self.shown}/{name} is not there") from None
            raise Unfit(f"{self.shown}/{name} cannot be read: {self._reason(error)}") from None

    def _place(self, name: str) -> str:
        """The URL of a file, with the query of the source's URL."""
        return f"{self.root}/{name}{self.query}"

    def _reason(self, error: Exception) -> str:
        none = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        return hide_secrets(" ".join(str(error).split()), self.url)[:300] or none

    def _refuse_late(self, name: str) -> None:
        if time.monotonic() > self.until:
            raise Unfit(f"{self.shown}/{name}: no time is left for it")

    def fetch(self, name: str, most: int, path: Path, only: bool = False) -> None:
        """The whole file, at `path`; Unfit if it cannot be fetched, has more than `most` bytes or another length than
        the source states. `only`: fetch only its first `most` bytes."""
        size = self._info(name).get("size")
        if only:
            size = None if size is None else min(size, most)
        elif size is not None and size > most:
            raise Unfit(f"{self.shown}/{name} has {size:,} bytes, at most {most:,} are expected")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, half = tempfile.mkstemp(HALF, f".{path.name}.", path.parent)
        except OSError as error:
            raise VgameError(f"{path} cannot be written: {error.strerror}; free space, or set VGAME_CACHE") from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                with suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                got = self._copy(name, file, most, only)
                if size is not None and got != size:
                    raise Unfit(f"{self.shown}/{name} broke off after {got:,} of {size:,} bytes")
                file.flush()
                os.replace(half, path)
        except FileNotFoundError:
            raise Unfit(f"{half} was removed while it was written") from None
        finally:
            Path(half).unlink(missing_ok=True)

    def _copy(self, name: str, file: IO[bytes], most: int, only: bool) -> int:
        """The number of bytes written. The allowed time grows with the bytes received."""
        got, begin = 0, time.monotonic()
        for block in self._blocks(name):
            block = block[: most - got] if only else block
            if not block:
                break
            got += len(block)
            self._refuse_late(name)
            if got > most:
                raise Unfit(f"{self.shown}/{name} has more than {most:,} bytes, at most that many are expected")
            if time.monotonic() - begin > SILENT + got / SLOWEST:
                raise Unfit(f"{self.shown}/{name} is too slow: {got:,} bytes in {time.monotonic() - begin:.0f} s")
            try:
                file.write(block)
            except OSError as error:
                raise VgameError(
                    f"{file.name} cannot be written: {error.strerror}; free space, or set VGAME_CACHE"
                ) from None
        return got

    def _blocks(self, name: str):
        """The bytes as a stream, which works with servers without ranges; read errors become Unfit."""
        try:
            if "file" in self.system.protocol:
                with open_file(Path(self.root, name)) as file:
                    yield from iter(lambda: file.read(BLOCK), b"")
                return
            web = "http" in self.system.protocol
            limit = {"timeout": SILENT} if web else {}  # overhead between the bytes of the file does not count
            with self.system.open(self._place(name), "rb", block_size=0 if web else BLOCK) as stream:
                while block := stream.read(BLOCK, **limit):
                    yield block
        except FileNotFoundError:
            raise Absent(f"{self.shown}/{name} is not there") from None
        except VgameError:
            raise
        except Exception as error:
            raise Unfit(f"{self.shown}/{name} broke off: {self._reason(error)}") from None


def _careful() -> dict[str, Any]:
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENT)
    identity = {"Accept-Encoding": "identity"}
    return {
        "allow_redirects": False,
        "headers": identity,
        "client_kwargs": {"timeout": limits, "middlewares": (_answered,)},
        "skip_instance_cache": True,
    }


async def _answered(request: Any, ask: Any) -> Any:
    """The response without its body, within the time limit: aiohttp's sock_read restarts with each byte of a header."""
    async with asyncio.timeout(SILENT):
        return await ask(request)
