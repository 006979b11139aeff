"""Tensors as words and roots (docs/formats.md section 1).

In: torch tensors of float32 or int32. Out: little-endian words, roots of tensors and of lists of tensors.
NaN is canonicalised here and nowhere else: no operator depends on a NaN's payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from vgame.arithmetic import gate
from vgame.commit.mapped import look_through, source_of
from vgame.commit.merkle import Kind, fold, tree_height
from vgame.commit.words import words_root

CANONICAL_NAN = 0x7FC00000
#: Tensor -> (its version, its root), for the tensor's lifetime.
_roots = WeakTensorKeyDictionary()


def checked(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor. TypeError unless it is float32 or int32."""
    if tensor.dtype not in (torch.float32, torch.int32):
        raise TypeError(f"a tensor of {tensor.dtype} has no words: float32 and int32 do")
    return tensor


def to_words(tensor: torch.Tensor) -> np.ndarray:
    """Row-major little-endian uint32 words of a float32 or int32 tensor; NaN becomes 0x7fc00000."""
    flat = checked(tensor).detach().contiguous().reshape(-1)
    values = flat.cpu().numpy()
    words = values.view(np.uint32).astype("<u4", copy=False)
    if flat.dtype == torch.float32 and values.size and np.isnan(values.max()):  # a maximum shows whether there is a NaN
        words = np.where(np.isnan(values), np.uint32(CANONICAL_NAN), words)
    return words


def from_words(words: np.ndarray, *, integer: bool) -> torch.Tensor:
    """The flat tensor whose words these are."""
    tensor = torch.from_numpy(np.ascontiguousarray(words, dtype=np.uint32).view(np.int32).copy())
    return tensor if integer else tensor.view(torch.float32)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The words as bytes, without a copy if possible."""
    return memoryview(to_words(tensor)).cast("B")


def tensor_root(tensor: torch.Tensor) -> bytes:
    """Root of the TENSOR tree. A tensor that has not changed since its last hashing is not hashed again; for a tensor
    in a file see vgame.commit.mapped.

    SAFETY: torch counts its own writes only; nothing in vgame writes to a tensor by other means once it has been
    hashed.
    """
    _hash([tensor])
    return _roots[tensor][1]


def _root_here(tensor: torch.Tensor) -> bytes:
    source = source_of(tensor)
    return words_root(tensor_bytes(tensor)) if source is None else bytes.fromhex(look_through(source).root)


def _hash(tensors: Sequence[torch.Tensor]) -> None:
    """Store the roots of changed tensors; tensors on a GPU are hashed there, all together."""
    changed = [t for t in tensors if source_of(t) or _roots.get(t, (None, b""))[0] != t._version]
    there = [checked(t) for t in changed if gate.in_use(t.device)]
    here = [t for t in changed if not gate.in_use(t.device)]
    found = [_root_here(t) for t in here]
    if there:
        from vgame.commit import gpu_sha  # imported only where it runs

        found += gpu_sha.roots(there)
    for tensor, root in zip(here + there, found, strict=True):
        _roots[tensor] = tensor._version, root


@runtime_checkable
class Rooted(Protocol):
    """A sequence of tensors that also computes their roots."""

    @property
    def roots(self) -> Sequence[bytes]: ...


def tensor_roots(tensors: Iterable[torch.Tensor]) -> Sequence[bytes]:
    """The root of each tensor. From an iterator, one tensor at a time is in memory."""
    if isinstance(tensors, Rooted):
        return tensors.roots
    if isinstance(tensors, Sequence):
        _hash(tensors)
    return [tensor_root(t) for t in tensors]


def tensors_root(kind: Kind, tensors: Iterable[torch.Tensor]) -> bytes:
    """Root of a tree whose leaves are the roots of these tensors (STATE, DATA)."""
    roots = tensor_roots(tensors)
    return fold(kind, roots, tree_height(len(roots)))
