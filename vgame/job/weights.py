"""Exported weights: write a file that a module loads; check that a file is the state which a final claim certifies.

In: a run, or a file and the final state root of a claim. Out: a safetensors file with the module's own keys, whose
header names the root of every tensor of the state; or the verdict about a file, as one line of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from vgame.commit.mapped import PIECE, join_pieces, piece_root
from vgame.commit.merkle import Kind, fold, tree_height
from vgame.commit.tensor import tensor_bytes, tensor_root
from vgame.errors import BundleError, VgameError
from vgame.job.state_keys import TYPES, averaged, state_dict
from vgame.system.files import open_file, parse_json, write_atomic

if TYPE_CHECKING:
    from vgame.job.bundle import Bundle

HEAD = "vgame"  # key in the file's metadata
ROOT_BYTES = 32
#: Names of the types in safetensors.
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


def of_average(bundle: Bundle, wanted: bool = True) -> Bundle:
    """The bundle with keys for the averages of the weights; VgameError if there are none."""
    names = {label.name for label in bundle.program.labels.state}
    return replace(bundle, keys=averaged(bundle.keys, names)) if wanted else bundle


def named(bundle: Bundle, state: Sequence[torch.Tensor], slots: bool) -> dict[str, torch.Tensor]:
    """The state by the keys of the bundle's module."""
    return state_dict(bundle.keys, bundle.program.labels.state, state, slots)


def pack_weights(
    bundle: Bundle, step: int, state: Sequence[torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> Iterator[bytes | memoryview]:
    """The content of a file with `tensors` (the module's, or also the slots); deterministic. Tied weights are written
    under each of their keys."""
    head = metadata(bundle, step, list(map(tensor_root, state)), tensors)
    first, places = pack_header(head, {key: (t.dtype, t.shape) for key, t in tensors.items()})
    yield first
    for key in places:
        yield tensors[key].contiguous().reshape(-1).view(torch.uint8).numpy().data


def pack_header(
    metadata: Mapping[str, str], tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]]
) -> tuple[bytes, dict[str, int]]:
    """(header of a safetensors file, offset of each tensor after it): wide types first, then by key. The library does
    not specify the order of its header."""
    places, header, end = dict[str, int](), dict[str, Any](), 0
    for key in sorted(tensors, key=lambda key: (-tensors[key][0].itemsize, key)):
        dtype, shape = tensors[key]
        places[key], end = end, end + prod(shape) * dtype.itemsize
        header[key] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [places[key], end]}
    text = json.dumps({"__metadata__": metadata} | header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, places


def metadata(bundle: Bundle, step: int, roots: Sequence[bytes], keys: Iterable[str]) -> dict[str, str]:
    """The metadata of the header: the tensor of the state for each key, and the roots of all tensors."""
    places = [[label.name, root.hex()] for label, root in zip(bundle.program.labels.state, roots, strict=True)]
    names = {key: name for key, (name, _) in bundle.keys.items()}
    head = {
        "job": bundle.identity.hex(), "step": step, "state": places,
        "keys": {key: names.get(key, key) for key in sorted(keys)},
    }  # fmt: skip
    return {"format": "pt", HEAD: json.dumps(head)}


def write_weights(path: Path, content: Iterable[bytes | memoryview]) -> None:
    if path.is_dir():
        raise VgameError(
            f"{path} is a folder; the name of a file is expected, {path / 'model.safetensors'} for example"
        )
    write_atomic(path, content)


def read_weights(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
    """The tensors of a safetensors file and the metadata of `vgame export`; VgameError if it cannot be read."""
    try:
        open_file(path, follow=True).close()
        with safe_open(path, "pt") as file:
            head = (file.metadata() or {}).get(HEAD)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        return tensors, None if head is None else parse_json(head.encode())
    except OSError as error:
        raise VgameError(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise VgameError(f"{path} is not a safetensors file that can be read: {error}") from None


def check_weights(path: Path, final_state: bytes, bundle: Bundle | None = None) -> list[str]:
    """The keys of a file whose words are those of the state with this root; VgameError names the failed check.

    With `bundle`, names, types and shapes must also match the order, and no key may be missing. Without it they are the
    file's own: no root covers them.
    """
    tensors, head = read_weights(path)
    names, roots, keys = _places(path, tensors, head)
    found = fold(Kind.STATE, roots, tree_height(len(roots)))
    if found != final_state:
        raise VgameError(
            f"{path} is not what the claim certifies: its state has the root {found.hex()}, the claim's final state "
            f"is {final_state.hex()}"
        )
    if bundle is not None:
        _check_names(path, bundle, names, keys)
        _check_types(path, bundle, tensors, keys)
    for key, tensor in tensors.items():
        if (root := _root(path, key, tensor)) != roots[names.index(keys[key])]:
            raise VgameError(
                f"{path} is not what the claim certifies: the tensor {key} holds other words (root {root.hex()})"
            )
    return list(tensors)


def _places(
    path: Path, tensors: Mapping[str, torch.Tensor], head: Any
) -> tuple[list[str], list[bytes], dict[str, str]]:
    """(names and roots of the tensors of the whole state, the state tensor of each key of the file)."""
    if head is None and tensors and all(key[:4].isdigit() and key[4:5] == " " for key in tensors):
        keys = {key: key[5:] for key in sorted(tensors, key=lambda key: int(key[:4]))}  # a checkpoint of a run
        return list(keys.values()), [_root(path, key, tensors[key]) for key in keys], keys
    try:
        names = [str(name) for name, _ in head["state"]]
        roots = [bytes.fromhex(root) for _, root in head["state"]]
        keys = {key: str(head["keys"][key]) for key in tensors}
        if (
            len(set(names)) < len(names)
            or not set(keys.values()) <= set(names)
            or any(len(r) != ROOT_BYTES for r in roots)
        ):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise VgameError(
            f"{path} does not say which state it is of; give a file of `vgame export RUN --out FILE`, or a run's "
            "states/STEP.safetensors"
        ) from None
    if not tensors:
        raise VgameError(f"{path} holds no tensor")
    return names, roots, keys


def _check_names(path: Path, bundle: Bundle, names: Sequence[str], keys: Mapping[str, str]) -> None:
    if list(names) != [label.name for label in bundle.program.labels.state]:
        raise BundleError(f"{path}: the names of the state's tensors are not those of the order")
    for key, (name, _) in bundle.keys.items():
        if keys.get(key, keys.get(f"{names.index(name):04d} {name}")) != name:
            raise BundleError(
                f"{path}: the order's {key} is the state tensor {name}, the file says {keys.get(key, 'nothing')}"
            )


def _check_types(path: Path, bundle: Bundle, tensors: Mapping[str, torch.Tensor], keys: Mapping[str, str]) -> None:
    """VgameError if a type differs from the order's: the same words would be other numbers."""
    labels = {label.name: label for label in bundle.program.labels.state}
    for key, tensor in tensors.items():
        label = labels[keys[key]]
        _, kind = bundle.keys.get(key, (label.name, "int32" if label.integer else "float32"))
        found, expected = (tuple(tensor.shape), tensor.dtype), (label.shape, TYPES[kind])
        if found != expected:
            raise BundleError(
                f"{path}: {key} is {found[0]} of {found[1]}, the order's is {expected[0]} of {expected[1]}; get the "
                "weights again, or export them from the run"
            )


def _root(path: Path, key: str, tensor: torch.Tensor) -> bytes:
    """The root of a tensor, computed piece by piece: a file may be sparse, and its numbers narrower than words."""
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.bfloat16):
        raise VgameError(f"{path}: {key} is {tensor.dtype}; what a claim certifies are float32 words")
    count, pieces = tensor.numel(), tensor.reshape(-1).split(PIECE)
    return join_pieces([piece_root(_words(path, key, piece), count) for piece in pieces], count)


def _words(path: Path, key: str, numbers: torch.Tensor) -> memoryview:
    words = numbers.to(torch.float32 if numbers.is_floating_point() else torch.int32)
    if not torch.equal(words.to(numbers.dtype), numbers) and not bool(numbers.isnan().any()):
        raise VgameError(f"{path}: {key} holds integers beyond 32 bits, which no run has")
    return tensor_bytes(words)
