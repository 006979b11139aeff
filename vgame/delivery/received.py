"""The received state as a safetensors file with the module's own keys, written piece by piece: no tensor is ever whole
in memory.

In: a bundle (names, shapes, types), the roots of the state's tensors, deciphered leaves in any order. Out: the file,
complete or absent. Equivalent to: `write_weights(path, pack_weights(...))` of the module's tensors.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from math import prod
from pathlib import Path

import numpy as np
import torch

from vgame.commit.words import LEAF_WORDS
from vgame.delivery.sealed import Piece
from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.job.state_keys import TYPES
from vgame.job.weights import metadata, pack_header
from vgame.system.files import flush, half_file, remove_halves


def refuse_place(path: Path) -> None:
    """VgameError if no file can be written. Called before anything is paid."""
    try:
        if path.is_dir():
            raise VgameError(f"{path} is a folder; the name of a file is expected, {path / 'model.safetensors'} say")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists() and not _is_replaceable(path):
            raise VgameError(f"{path} belongs to another account, which alone may replace it here; name another file")
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror or error}; name another file") from None


def _is_replaceable(path: Path) -> bool:
    """In a sticky folder, such as /tmp, only the owner of a file or of the folder may replace it."""
    folder = path.parent.stat()
    return not folder.st_mode & stat.S_ISVTX or os.geteuid() in (0, folder.st_uid, path.lstat().st_uid)


class StateFile:
    """`with StateFile(...) as file`: at its end the file is there; after an error it is not. It is written in `folder`,
    to which no other account can write, under a name that no other process uses. If it cannot be moved to its place, it
    stays there."""

    def __init__(self, path: Path, folder: Path, bundle: Bundle, roots: Sequence[bytes]) -> None:
        self.path, self.folder, self.bundle = path, folder, bundle
        numbers = {label.name: t for t, label in enumerate(bundle.program.labels.state)}
        kinds = {
            name: torch.int32 if l.integer else torch.float32 for name, l in zip(numbers, self._labels, strict=True)
        }
        keys = bundle.keys or {name: (name, str(kind).removeprefix("torch.")) for name, kind in kinds.items()}
        self.places: dict[int, list[tuple[int, torch.dtype]]] = {}  # by tensor: begin and type for each of its keys
        shapes = {key: (TYPES[kind], self._labels[numbers[name]].shape) for key, (name, kind) in keys.items()}
        self.head, begins = pack_header(metadata(bundle, bundle.steps, roots, keys), shapes)
        for key, begin in begins.items():
            self.places.setdefault(numbers[keys[key][0]], []).append((begin, shapes[key][0]))
        end = sum(prod(shape) * dtype.itemsize for dtype, shape in shapes.values())
        self.size = len(self.head) + end

    @property
    def _labels(self):  # type: ignore[no-untyped-def]
        return self.bundle.program.labels.state

    def __enter__(self) -> StateFile:
        remove_halves(self.folder)
        with ExitStack() as stack:
            self.file, self.half = stack.enter_context(half_file(self.folder, "state"))
            self.file.truncate(self.size)
            self.file.write(self.head)
            self.end = stack.pop_all()
        return self

    def write(self, piece: Piece, leaves: np.ndarray) -> None:
        """The words of a piece, under every key of its tensor, in the key's type."""
        source = self.bundle.program.sources[piece.tensor]
        first = piece.first * LEAF_WORDS
        words = leaves.reshape(-1).view(np.int32)[: source.elements - first]
        values = torch.from_numpy(words)
        values = values if source.integer else values.view(torch.float32)
        for begin, dtype in self.places.get(piece.tensor, ()):
            self.file.seek(len(self.head) + begin + first * dtype.itemsize)
            self.file.write(memoryview(values.to(dtype).view(torch.uint8).numpy()))

    def __exit__(self, kind: type | None, *_: object) -> None:
        with self.end:
            if kind is None:
                flush(self.file)
                self._move()

    def _move(self) -> None:
        try:
            os.replace(self.half, self.path)
        except OSError as error:
            os.replace(self.half, kept := self.folder / self.path.name)
            raise VgameError(f"{self.path} cannot be written: {error.strerror or error}; the file is {kept}") from None
