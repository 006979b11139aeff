"""The client's disk: files of an earlier job, files that a crash has damaged, and no free space for a while.

In: a world, a folder, whether lost data can still be received. Out: the folder as a process finds it; writes that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from world import LONGEST, World

import vgame.delivery.fetch as fetching

FILES = ("chunks", "hashes", "leaves")
DAMAGES = ("longer", "lost", "shorter", "other", "zeros")
MOST = 2**14  # bytes of an earlier job's file, at most: twice those of these states
FULL = "No space left on device"


class Disk:
    """`renewed`: whether everything can be received again; if not, only the file of pairs is damaged, or files grow."""

    def __init__(self, world: World, folder: Path, renewed: Callable[[], bool]) -> None:
        self.world, self.folder, self.renewed = world, folder, renewed
        self.until, self.begun = 0.0, False

    def begin(self) -> None:
        """A process starts."""
        world, tape = self.world, self.world.tape
        if not self.begun and world.on("files", 50):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in FILES:
                size = tape.pick((0, 100, 1_000, 3_000, MOST))
                (self.folder / name).write_bytes(bytes([tape.byte()]) * size)
            world.log("the folder has files of an earlier job")
        elif self.begun and world.on("files", 50):
            self._damage()
        self.begun = True

    def _damage(self) -> None:
        tape, renewed = self.world.tape, self.renewed()
        name, damage = tape.pick(FILES), tape.pick(DAMAGES)
        if not renewed and name != "chunks":
            damage = "longer"
        path, place = self.folder / name, tape.byte()
        if not path.exists():
            return
        data = path.read_bytes()
        place = place * len(data) // 256
        self.world.log(f"the file {name} is {damage}")
        match damage:
            case "lost":
                return path.unlink()
            case "longer":
                data += bytes(1 + tape.byte())
            case "shorter":
                data = data[:place]
            case "other":
                data = data[:place] + bytes(b ^ 1 for b in data[place : place + 600]) + data[place + 600 :]
            case "zeros":
                data = bytes(len(data))
        path.write_bytes(data)

    @property
    def is_full(self) -> bool:
        world = self.world
        if self.until <= world.now and world.on("room", 6) and world.allows(seconds := 1 + world.tape.below(LONGEST)):
            self.until = world.now + seconds
            world.log(f"the disk is full for {seconds} s")
        return self.until > world.now

    @contextmanager
    def installed(self) -> Iterator[None]:
        """All writes of received data go to this disk."""

        def writer(write: Any, half: bool) -> Any:
            def limited(path: Path, *args: Any) -> None:
                if self.is_full:
                    if half:  # a truncated write
                        write(path, args[0], args[1][: len(args[1]) // 2])
                    raise OSError(28, FULL)
                write(path, *args)

            return limited

        with ExitStack() as stack:
            for name, half in (("_write", True), ("write_atomic", False)):
                stack.enter_context(patch.object(fetching, name, writer(getattr(fetching, name), half)))
            yield


__all__ = ["FULL", "Disk"]
