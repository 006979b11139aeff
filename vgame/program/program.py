"""A program: one training step as a flat list of operators, with its root (docs/formats.md section 3).

The root covers everything with meaning; `Labels` are for display (names of modules, shapes of tensors).
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import torch

from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.commit.tensor import tensor_root
from vgame.errors import ProgramError
from vgame.program import encoding
from vgame.program.operators import Operator, Ref, RefClass


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a new state tensor: an operator's output, or itself (unchanged by the program)."""

    ref: Ref
    elements: int
    integer: bool = False


@dataclass(frozen=True, slots=True)
class TensorLabel:
    """Name and shape of a tensor."""

    name: str
    shape: tuple[int, ...]
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Labels:
    """Names for display; not part of the program root. ProgramError for duplicate names: weights would be confused."""

    operators: tuple[str, ...] = ()
    state: tuple[TensorLabel, ...] = ()
    data: tuple[TensorLabel, ...] = ()
    scalars: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, labels in (("state", self.state), ("data", self.data)):
            names = Counter(label.name for label in labels)
            if twice := [name for name, count in names.items() if count > 1]:
                raise ProgramError(
                    f"{len(twice)} names of {what} tensors are used more than once; the first is {twice[0]!r}"
                )

    @property
    def root(self) -> bytes:
        """SHA-256 over names, types and shapes of the state's and the data's tensors (docs/formats.md section 7)."""
        parts = [b"vgame labels 1\n"]
        for labels in (self.state, self.data):
            parts.append(struct.pack(">I", len(labels)))
            for label in labels:
                name, rank = label.name.encode(), len(label.shape)
                parts.append(struct.pack(">I", len(name)) + name)
                parts.append(struct.pack(f">BI{rank}Q", label.integer, rank, *label.shape))
        return hashlib.sha256(b"".join(parts)).digest()


@dataclass(frozen=True)
class Program:
    """One training step. `constants` are flat float32 or int32 tensors; `data` counts the data set's tensors."""

    operators: tuple[Operator, ...]
    sources: tuple[Source, ...]
    constants: tuple[torch.Tensor, ...]
    data: int
    scalars: int
    loss: int
    labels: Labels = field(default_factory=Labels)

    @cached_property
    def finite(self) -> frozenset[int]:
        """Operators whose every word must be finite: the loss, and binary32 outputs that become state."""
        outputs = {s.ref.index for s in self.sources if s.ref.cls is RefClass.OPERATOR and not s.integer}
        return frozenset(outputs | {self.loss})

    @cached_property
    def records(self) -> tuple[bytes, ...]:
        return tuple(encoding.operator_record(op, i in self.finite) for i, op in enumerate(self.operators))

    @cached_property
    def source_records(self) -> tuple[bytes, ...]:
        return tuple(encoding.source_record(s.integer, s.elements, s.ref) for s in self.sources)

    @cached_property
    def operator_tree(self) -> Tree:
        return Tree(Kind.OPERATORS, [leaf_hash(Kind.OPERATORS, r) for r in self.records])

    @cached_property
    def source_tree(self) -> Tree:
        return Tree(Kind.SOURCES, [leaf_hash(Kind.SOURCES, r) for r in self.source_records])

    @cached_property
    def constant_tree(self) -> Tree:
        return Tree(Kind.CONSTANTS, [tensor_root(t) for t in self.constants])

    @cached_property
    def header(self) -> bytes:
        counts = (len(self.sources), len(self.operators), len(self.constants), self.data, self.scalars, self.loss)
        return encoding.header(counts, self.source_tree.root, self.operator_tree.root, self.constant_tree.root)

    @cached_property
    def root(self) -> bytes:
        return encoding.program_root(self.header)

    def operator_name(self, index: int) -> str:
        """`17 contract dot conv2`, for display."""
        label = self.labels.operators[index] if index < len(self.labels.operators) else ""
        return " ".join(filter(None, [str(index), self.operator_kind(index), label]))

    def operator_kind(self, index: int) -> str:
        """`contract dot`, for display."""
        operator = self.operators[index]
        detail = getattr(operator, "function", getattr(operator, "variant", None))
        return " ".join(
            filter(None, [type(operator).__name__.lower(), detail.name.lower() if detail is not None else ""])
        )
