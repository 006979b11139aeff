"""Tensors on disk: a safetensors file with keys such as `0007 fc.weight`: the position identifies the tensor, the name
is for display.

In: labels and flat tensors. Out: a file, or exactly the tensors of the labels, in memory, so that the hashed words are
the ones used even if the file changes later. In files of earlier versions the keys are the names alone; they are read
too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from vgame.errors import BundleError
from vgame.program.program import TensorLabel
from vgame.system.files import open_file, parse_json

TYPES = {torch.float32: "F32", torch.int32: "I32"}


def keys(labels: Sequence[TensorLabel]) -> list[str]:
    """The keys of the tensors in a file."""
    return [f"{i:04d} {label.name}" for i, label in enumerate(labels)]


def pack_tensors(labels: Sequence[TensorLabel], tensors: Sequence[torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The content of a file as `safetensors` writes it, piece by piece, with one tensor at a time in memory."""
    assert len(labels) == len(tensors)
    called, at, header = keys(labels), 0, dict[str, Any]()
    places = sorted(range(len(labels)), key=lambda i: (labels[i].integer, called[i].encode()))
    for i in places:
        end = at + 4 * prod(labels[i].shape)
        kind = TYPES[torch.int32 if labels[i].integer else torch.float32]
        header[called[i]] = {"dtype": kind, "shape": labels[i].shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for i in places:
        words = tensors[i].detach().cpu().contiguous().reshape(-1)
        assert TYPES[words.dtype] == header[called[i]]["dtype"] and words.numel() == prod(labels[i].shape)
        yield words.numpy().view(np.uint8).data


def file_bytes(labels: Sequence[TensorLabel], tensors: Sequence[torch.Tensor]) -> int:
    """Size of a file of these tensors, in bytes."""
    return sum(len(piece) for piece in pack_tensors(labels, tensors))


def most_bytes(labels: Sequence[TensorLabel]) -> int:
    """Largest size of a file of these tensors, in bytes."""
    return 8 + _most_header(labels) + sum(4 * prod(label.shape) for label in labels)


def _most_header(labels: Sequence[TensorLabel]) -> int:
    return 1000 + sum(12 * len(label.name) + 24 * len(label.shape) + 120 for label in labels)


def read_tensors(path: Path, labels: Sequence[TensorLabel]) -> tuple[torch.Tensor, ...]:
    """The tensors of a file in the order of their labels, flat; BundleError unless it holds them and nothing else."""
    return tuple(each_tensor(path, labels))


def each_tensor(path: Path, labels: Sequence[TensorLabel]) -> Iterator[torch.Tensor]:
    """The tensors of a file, one after the other."""
    try:
        with open_file(path) as file:
            yield from _read(file, labels)
    except OSError as error:
        raise BundleError(f"{path} cannot be read as a safetensors file: {error.strerror or error}") from None
    except (ValueError, RuntimeError, MemoryError) as error:  # also torch's error for too many words
        raise BundleError(f"{path} cannot be read as a safetensors file: {error}") from None
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None


def _read(file: IO[bytes], labels: Sequence[TensorLabel]) -> Iterator[torch.Tensor]:
    header, start = _header(file, labels)
    names = [label.name for label in labels]
    called = names if set(header) == set(names) and names else keys(labels)
    places = [_place(header.pop(key, None), label) for key, label in zip(called, labels, strict=True)]
    if header:
        raise BundleError(f"it holds {next(iter(header))[:200]!r}, which is not a tensor of the job")
    _check_places(places, file.seek(0, 2) - start)
    for (first, _), label in zip(places, labels, strict=True):
        yield _tensor(file, start + first, label)


def _header(file: IO[bytes], labels: Sequence[TensorLabel]) -> tuple[dict[str, Any], int]:
    """(header of the file, byte of the first word); its length is bounded by these labels."""
    most = _most_header(labels)
    size = int.from_bytes(file.read(8), "little")
    if size > most:
        raise ValueError(f"its header has {size:,} bytes, at most {most:,} are expected")
    header = parse_json(file.read(size))
    if not isinstance(header, dict):
        raise ValueError("its header is not a table of tensors")
    header.pop("__metadata__", None)
    return header, 8 + size


def _place(found: Any, label: TensorLabel) -> tuple[int, int]:
    """Position of a tensor's words, from the first word of all."""
    dtype = torch.int32 if label.integer else torch.float32
    if found is None:
        raise BundleError(f"{label.name} should be {label.shape} of {dtype}, found nothing")
    try:
        kind, shape, (first, end) = found["dtype"], tuple(found["shape"]), found["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ValueError(f"its entry for {label.name} is damaged") from None
    if kind != TYPES[dtype] or shape != label.shape:
        raise BundleError(
            f"{label.name} should be {label.shape} of {dtype}, found {str(shape)[:200]} of {str(kind)[:20]}"
        )
    if type(first) is not int or type(end) is not int or end - first != 4 * prod(label.shape):
        raise ValueError(f"its entry for {label.name} is damaged")
    return first, end


def _check_places(places: Sequence[tuple[int, int]], size: int) -> None:
    """ValueError unless the tensors fill the file without gaps."""
    at = 0
    for first, end in sorted(places):
        if first != at:
            raise ValueError(f"a tensor stands at byte {first}, {at} is expected")
        at = end
    if at != size:
        raise ValueError(f"its tensors have {size:,} bytes, {at:,} are expected")


def _tensor(file: IO[bytes], start: int, label: TensorLabel) -> torch.Tensor:
    tensor = torch.empty(prod(label.shape), dtype=torch.int32 if label.integer else torch.float32)
    file.seek(start)
    if file.readinto(tensor.numpy().view(np.uint8)) != 4 * tensor.numel():
        raise ValueError("it became shorter while it was read")
    return tensor
