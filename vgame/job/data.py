"""The data of a bundle on disk: small tensors in data.safetensors, tensors of large files as copies of the files.

    BUNDLE/data.json         {"files": {PLACE: [NAME OF THE FILE IN THE BUNDLE, BYTE OF THE FIRST WORD]}}, if any
    BUNDLE/data-PLACE.words  a copy of the words, so that an edit of the original does not change the order; file
                             systems that share blocks (Btrfs, XFS) take no space for it

In: labels and tensors. Out: the same tensors, in memory or in their files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch

from vgame.commit.mapped import map_words, source_of
from vgame.commit.tensor import tensor_root
from vgame.errors import BundleError, DataError
from vgame.program.program import TensorLabel
from vgame.program.tensor_file import pack_tensors, read_tensors
from vgame.system.files import copy_file, parse_json, read_file, write_atomic

MOST_BYTES = 2**20


def save_data(folder: Path, labels: Sequence[TensorLabel], tensors: Sequence[torch.Tensor]) -> None:
    sources = {i: source for i, tensor in enumerate(tensors) if (source := source_of(tensor)) is not None}
    held = [i for i in range(len(tensors)) if i not in sources]
    write_atomic(folder / "data.safetensors", pack_tensors([labels[i] for i in held], [tensors[i] for i in held]))
    files = {str(i): [f"data-{i:04d}.words", source.offset] for i, source in sources.items()}
    if not files:
        (folder / "data.json").unlink(missing_ok=True)
        return
    for i, source in sources.items():
        name, offset = f"data-{i:04d}.words", source.offset
        copy_file(source.descriptor, folder / name, offset, offset + source.words.nbytes)
        if tensor_root(_mapped(folder, labels[i], name, offset)) != tensor_root(tensors[i]):
            raise DataError(f"{source.path} changed while it was copied; prepare the job again")
    write_atomic(folder / "data.json", (json.dumps({"files": files}, indent=1) + "\n").encode())


def load_data(folder: Path, labels: Sequence[TensorLabel]) -> tuple[torch.Tensor, ...]:
    """The tensors in the order of their labels, flat; tensors in files are memory-mapped. The caller checks roots."""
    files = files_of(folder, len(labels))
    held = read_tensors(folder / "data.safetensors", [l for i, l in enumerate(labels) if i not in files])
    here = iter(held)
    return tuple(_mapped(folder, label, *files[i]) if i in files else next(here) for i, label in enumerate(labels))


def _mapped(folder: Path, label: TensorLabel, name: str, offset: int) -> torch.Tensor:
    try:
        return map_words(folder / name, offset, prod(label.shape), label.integer)
    except OSError as error:
        raise BundleError(
            f"{folder / name} cannot be read: {error.strerror or error}; get it from the client"
        ) from None
    except (DataError, ValueError) as error:
        raise BundleError(f"{error}; get it again from the client") from None


def files_of(folder: Path, count: int) -> dict[int, tuple[str, int]]:
    """The tensors with files of their own, of `count` in all: place -> (name of the file, byte of the first word)."""
    path = folder / "data.json"
    try:
        found = {
            int(place): (name, offset)
            for place, (name, offset) in parse_json(read_file(path, MOST_BYTES))["files"].items()
        }
        for place, (name, offset) in found.items():
            if not 0 <= place < count or name != f"data-{place:04d}.words" or type(offset) is not int or offset < 0:
                raise ValueError(f"{place}: {name!r} from byte {offset!r} is no file of a bundle")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read: {error}; get the bundle again from the client") from None
    return found
