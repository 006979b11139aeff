"""Program files: all data needed to run and to prove a program, without the model's source.

Layout: magic ‖ header ‖ per state tensor its source record ‖ per operator u32 length ‖ record ‖ per constant dtype u8
‖ elements u32 ‖ words
‖ u32 length ‖ labels as JSON. Only the content covered by the header has meaning; the labels are for display.
"""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from vgame.commit.tensor import from_words, tensor_bytes
from vgame.errors import ProgramError
from vgame.program import encoding
from vgame.program.operators import Operator
from vgame.program.program import Labels, Program, Source, TensorLabel
from vgame.system.files import parse_json, read_file, write_atomic

MAGIC, OLD_MAGIC = b"vgame program 2\n", b"vgame program 1\n"
HEADER_BYTES = 124
MOST_BYTES = 2**32  # of a program file
OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories of control, formatting and invalid characters


def encode_program(program: Program) -> bytes:
    """The content of a program file."""
    return b"".join(_parts(program))


def _parts(program: Program) -> Iterator[bytes | memoryview]:
    yield from (MAGIC, program.header, *program.source_records)
    for record in program.records:
        yield struct.pack(">I", len(record)) + record
    for tensor in program.constants:
        yield struct.pack(">BI", tensor.dtype == torch.int32, tensor.numel())
        yield tensor_bytes(tensor) if tensor.numel() else b""
    labels = json.dumps(asdict(program.labels), sort_keys=True).encode()
    yield struct.pack(">I", len(labels)) + labels


def _is_content(data: bytes, program: Program) -> bool:
    """Whether the data are a result of `encode_program`."""
    view, place = memoryview(data), 0
    for part in _parts(program):
        if view[place : place + len(part)] != part:
            return False
        place += len(part)
    return place == len(data)


def save_program(program: Program, path: Path) -> None:
    """Write the file atomically."""
    write_atomic(path, encode_program(program))


def load_program(path: Path) -> Program:
    """Read a file; its records must have the roots stated in its header."""
    try:
        data = read_file(path, MOST_BYTES)
    except OSError as error:
        raise ProgramError(f"the program file {path} cannot be read: {error.strerror}") from None
    return decode_program(data, str(path))


def decode_program(data: bytes, what: str) -> Program:
    """The program of a file's content; accepts exactly the results of `encode_program`."""
    if data.startswith(OLD_MAGIC):
        raise ProgramError(f"{what} has program format 1; this vgame reads format 2: prepare the job again")
    if not data.startswith(MAGIC):
        raise ProgramError(f"{what} is not a vgame program file (it does not start with {MAGIC!r})")
    try:
        program, header = _parse(encoding.Reader(memoryview(data)[len(MAGIC) :], what))
    except (struct.error, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ProgramError(f"{what} is damaged: {error}") from None
    if program.header != header:
        raise ProgramError(f"{what} is damaged: its records do not have the roots that its header states")
    if not _is_content(data, program):
        raise ProgramError(f"{what} is damaged: it is not in canonical form")
    return program


def _parse(reader: encoding.Reader) -> tuple[Program, bytes]:
    (header,) = reader.take(f"{HEADER_BYTES}s")
    version, states, operators, constants, data, scalars, loss = struct.unpack(">7I", header[:28])
    if version != encoding.VERSION:
        raise ProgramError(
            f"{reader.what} has version {version}; this vgame reads version {encoding.VERSION}: prepare the job again"
        )
    sources = tuple(_source(reader) for _ in range(states))
    parsed = tuple(_operator(reader, i) for i in range(operators))
    tensors = tuple(_constant(reader) for _ in range(constants))
    (size,) = reader.take("I")
    labels = _labels(parse_json(reader.take(f"{size}s")[0]))
    reader.done()
    return Program(parsed, sources, tensors, data, scalars, loss, labels), header


def _operator(reader: encoding.Reader, index: int) -> Operator:
    record = reader.part(reader.take("I")[0])
    return encoding.read_operator(record, f"operator {index} of {reader.what}", reader.pool)


def _source(reader: encoding.Reader) -> Source:
    integer, elements = reader.take("BI")
    return Source(reader.ref(), elements, bool(integer))


def _constant(reader: encoding.Reader) -> torch.Tensor:
    integer, elements = reader.take("BI")
    return from_words(np.frombuffer(reader.part(4 * elements), "<u4"), integer=bool(integer))


def _labels(fields: dict) -> Labels:
    def tensor(item: dict) -> TensorLabel:
        return TensorLabel(str(item["name"]), tuple(int(n) for n in item["shape"]), bool(item["integer"]))

    shared: dict[str, str] = {}  # most operators of a module have its name
    labels = Labels(
        tuple(shared.setdefault(name, name) for name in map(str, fields["operators"])),
        tuple(map(tensor, fields["state"])),
        tuple(map(tensor, fields["data"])),
        tuple(map(str, fields["scalars"])),
    )
    if any(not 0 <= n < 2**32 for label in (*labels.state, *labels.data) for n in label.shape):
        raise ValueError("a label has a shape with a size below 0 or above 2^32 - 1")
    names = (*labels.operators, *labels.scalars, *(label.name for label in (*labels.state, *labels.data)))
    if any(unicodedata.category(c) in OBEYED for name in names for c in name):
        raise ValueError("a label holds a control character, which a terminal would execute")
    return labels
