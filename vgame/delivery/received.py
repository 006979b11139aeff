"""The received state as a safetensors file with the module's own keys, written piece by piece: no tensor is ever whole
in memory.

In: a bundle (names, shapes, types), the roots of the state's tensors, deciphered leaves in any order. Out: the file,
whole or not there. Equivalent to: `write_weights(path, pack_weights(...))` of the module's tensors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
import torch

from vgame.commit.words import LEAF_WORDS
from vgame.delivery.sealed import Piece
from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.job.state_keys import TYPES
from vgame.job.weights import metadata, pack_header


def half_of(path: Path) -> Path:
    """The name of the file until it is whole."""
    return path.with_name(f".{path.name}.half")


def refuse_place(path: Path) -> None:
    """VgameError where no file can be written: known before anything is paid."""
    try:
        if path.is_dir():
            raise VgameError(f"{path} is a folder; the name of a file is expected, {path / 'model.safetensors'} say")
        path.parent.mkdir(parents=True, exist_ok=True)
        half_of(path).unlink(missing_ok=True)
        half_of(path).touch(exist_ok=False)
        half_of(path).unlink()
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror or error}; name another file") from None


class StateFile:
    """`with StateFile(...) as file`: at its end the file is there; after an error nothing is."""

    def __init__(self, path: Path, bundle: Bundle, roots: Sequence[bytes]) -> None:
        self.path, self.half, self.bundle = path, half_of(path), bundle
        numbers = {label.name: t for t, label in enumerate(bundle.program.labels.state)}
        kinds = {
            name: torch.int32 if l.integer else torch.float32 for name, l in zip(numbers, self._labels, strict=True)
        }
        keys = bundle.keys or {name: (name, str(kind).removeprefix("torch.")) for name, kind in kinds.items()}
        self.places: dict[int, list[tuple[int, torch.dtype]]] = {}  # of a tensor: where it begins, in which type
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
        self.half.unlink(missing_ok=True)
        self.file: IO[bytes] = open(self.half, "xb")
        try:
            self.file.truncate(self.size)
            self.file.write(self.head)
        except BaseException as problem:
            self.__exit__(type(problem))
            raise
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
        try:
            with self.file:
                if kind is None:
                    self.file.flush()
                    os.fsync(self.file.fileno())
            if kind is None:
                os.replace(self.half, self.path)
        finally:
            self.half.unlink(missing_ok=True)
