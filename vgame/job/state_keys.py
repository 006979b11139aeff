"""Which key of a module's state_dict is which tensor of the state: tied weights have several keys, bfloat16 and
integers have types of their own.

    BUNDLE/module.json   {"keys": {KEY: [NAME OF THE STATE TENSOR, TYPE]},
                          "before": steps of the run that the job continues}

Like all names this is in no root of an order; spec.json has its digest. INVARIANT: a key that is the name of a state
tensor means that tensor, and a type of integers an integer tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from math import prod
from pathlib import Path

import torch

from vgame.errors import BundleError, VgameError
from vgame.program.program import TensorLabel
from vgame.system.files import parse_json, read_file, write_atomic

FILE = "module.json"
MOST_BYTES = 2**24
MOST_BEFORE = 2**40
MOST_COPIES = 32  # all keys together hold so many times the state at most; tied weights have a key for each place
TYPES = {str(t).removeprefix("torch."): t for t in (
    torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)}  # fmt: skip

Keys = Mapping[str, tuple[str, str]]


def module_keys(model: torch.nn.Module) -> Keys:
    """The keys of the module's state_dict."""
    names = {id(t): name for name, t in (*model.named_buffers(), *model.named_parameters())}
    tensors = {k: t for k, t in model.state_dict(keep_vars=True).items() if id(t) in names}
    return {key: (names[id(t)], str(t.dtype).removeprefix("torch.")) for key, t in tensors.items()}


def keys_root(keys: Keys, before: int) -> bytes:
    """The digest of the file for spec.json, independent of white space and key order."""
    content = json.dumps([sorted((key, *what) for key, what in keys.items()), before], separators=(",", ":"))
    return hashlib.sha256(b"vgame keys 1\n" + content.encode()).digest()


def save_keys(folder: Path, keys: Keys, before: int) -> None:
    write_atomic(folder / FILE, (json.dumps({"keys": keys, "before": before}, indent=1) + "\n").encode())


def load_keys(folder: Path, labels: Sequence[TensorLabel]) -> tuple[Keys, int]:
    """The keys of a bundle, and the steps before its first. BundleError if they do not fit the state."""
    path, integers = folder / FILE, {label.name: label.integer for label in labels}
    try:
        found = parse_json(read_file(path, MOST_BYTES))
        keys = {str(key): (str(name), str(kind)) for key, (name, kind) in found["keys"].items()}
        before = found.get("before", 0)
        if type(before) is not int or not 0 <= before < MOST_BEFORE:
            raise ValueError(f"it counts {str(before)[:40]} steps before the first")
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read: {error.strerror or error}; get the bundle again from the client"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read: {error}; get the bundle again from the client") from None
    for key, (name, kind) in keys.items():
        if name not in integers or kind not in TYPES or (key in integers and key != name):
            raise BundleError(f"{path}: the key {key!r} is {name!r} of {kind!r}; a tensor of the state is expected")
        if integers[name] == TYPES[kind].is_floating_point:
            held = "integers" if integers[name] else "floating-point numbers"
            raise BundleError(
                f"{path}: the key {key!r} is of {kind!r}, but {name!r} holds {held}; a type of these is expected"
            )
    sizes = {label.name: prod(label.shape) for label in labels}
    held, most = sum(sizes[name] for name, _ in keys.values()), MOST_COPIES * sum(sizes.values())
    if held > most:
        raise BundleError(
            f"{path}: its keys hold {held:,} words, {MOST_COPIES} times the state is the most, {most:,}; name each "
            "tensor under fewer keys, or do not use the bundle"
        )
    return keys, before


def state_dict(
    keys: Keys, labels: Sequence[TensorLabel], state: Sequence[torch.Tensor], slots: bool
) -> dict[str, torch.Tensor]:
    """The state as a module loads it; with `slots` also all other tensors of the state, by their own names."""
    tensors = {l.name: t.detach().cpu().reshape(l.shape).clone() for l, t in zip(labels, state, strict=True)}
    if not keys:
        return tensors
    typed = {(name, kind): tensors[name].to(TYPES[kind]) for name, kind in set(keys.values())}
    named = {key: typed[what] for key, what in keys.items()}
    mine = {name for name, _ in keys.values()}
    return named | {n: t for n, t in tensors.items() if slots and n not in mine}


def averaged(keys: Keys, names: Container[str]) -> Keys:
    """The keys, with the average of each tensor that has one; VgameError if none has."""
    found = {k: (f"average.{name}" if f"average.{name}" in names else name, kind) for k, (name, kind) in keys.items()}
    if found == keys:
        raise VgameError("the run keeps no average of its weights: only a task with `average` does; leave it out")
    return found
