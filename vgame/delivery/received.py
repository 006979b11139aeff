"""The received state as a safetensors file with the module's own keys, written piece by piece: no tensor is ever whole
in memory.

In: a bundle (names, shapes, types), the roots of the state's tensors, deciphered leaves in any order. Out: the file,
whole or not there. Equivalent to: `write_weights(path, pack_weights(...))` of the module's tensors, but for the order
of its header's fields.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch

from vgame.commit.words import LEAF_WORDS
from vgame.delivery.sealed import Piece
from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.job.state_keys import TYPES
from vgame.job.weights import metadata

#: How safetensors names the types of a state.
NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class StateFile:
    """`with StateFile(...) as file`: at its end the file is there; after an error nothing is."""

    def __init__(self, path: Path, bundle: Bundle, roots: Sequence[bytes]) -> None:
        if path.is_dir():
            raise VgameError(f"{path} is a folder; the name of a file is expected, {path / 'model.safetensors'} say")
        self.path, self.half, self.bundle = path, path.with_name(f".{path.name}.half"), bundle
        numbers = {label.name: t for t, label in enumerate(bundle.program.labels.state)}
        kinds = {
            name: torch.int32 if l.integer else torch.float32 for name, l in zip(numbers, self._labels, strict=True)
        }
        keys = bundle.keys or {name: (name, str(kind).removeprefix("torch.")) for name, kind in kinds.items()}
        self.places: dict[int, list[tuple[int, torch.dtype]]] = {}  # of a tensor: where it begins, in which type
        header: dict[str, object] = {"__metadata__": metadata(bundle, bundle.steps, roots, keys)}
        end = 0
        # Equivalent to: the order in which safetensors writes, wide types first.
        for key, (name, kind) in sorted(keys.items(), key=lambda item: (-TYPES[item[1][1]].itemsize, item[0])):
            dtype, label = TYPES[kind], self._labels[numbers[name]]
            begin, end = end, end + int(np.prod(label.shape, dtype=np.int64)) * dtype.itemsize
            self.places.setdefault(numbers[name], []).append((begin, dtype))
            header[key] = {"dtype": NAMES[dtype], "shape": list(label.shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.head = len(text).to_bytes(8, "little") + text
        self.size = len(self.head) + end

    @property
    def _labels(self):  # type: ignore[no-untyped-def]
        return self.bundle.program.labels.state

    def __enter__(self) -> StateFile:
        self.half.unlink(missing_ok=True)
        self.file: IO[bytes] = open(self.half, "xb")
        self.file.truncate(self.size)
        self.file.write(self.head)
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
        with self.file:
            if kind is None:
                self.file.flush()
                os.fsync(self.file.fileno())
        if kind is None:
            os.replace(self.half, self.path)
        else:
            self.half.unlink(missing_ok=True)
