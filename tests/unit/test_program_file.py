"""Program files: reading returns the written program, and any damage is one clear error (vgame/program/file.py)."""

from __future__ import annotations

import json
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_validate import PROGRAM

from vgame.arithmetic.functions import Function
from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.errors import ProgramError
from vgame.program import encoding
from vgame.program.file import MAGIC, decode_program, encode_program, load_program, save_program
from vgame.program.operators import Access, Copy, Dim, Map, Ref, RefClass
from vgame.program.program import Labels, Program, TensorLabel

LABELS = Labels(PROGRAM.labels.operators, (TensorLabel("w", (2, 3)),), (TensorLabel("x", (10, 3)),), ("lr",))
CONSTANTS = (torch.tensor([1.5, -0.0, torch.inf, torch.nan]), torch.tensor([3, -4], dtype=torch.int32))
PROGRAM_WITH_ALL = replace(PROGRAM, constants=CONSTANTS, labels=LABELS)
FILE = encode_program(PROGRAM_WITH_ALL)


def same(a: Program, b: Program) -> bool:
    words = [[t.view(torch.int32).tolist() for t in p.constants] for p in (a, b)]
    others = [(p.operators, p.sources, p.data, p.scalars, p.loss, p.labels, p.root) for p in (a, b)]
    return words[0] == words[1] and others[0] == others[1]


def test_a_saved_program_is_the_same_program(tmp_path: Path) -> None:
    save_program(PROGRAM_WITH_ALL, tmp_path / "p.vgp")
    loaded = load_program(tmp_path / "p.vgp")
    assert same(loaded, PROGRAM_WITH_ALL)
    assert [t.dtype for t in loaded.constants] == [torch.float32, torch.int32]


def test_a_file_takes_less_than_ten_times_its_size_in_memory(tmp_path: Path) -> None:
    """Equal parts of operators are one object."""
    last = Ref(RefClass.OPERATOR, len(PROGRAM.operators) - 1)
    seen = Access(last, (Dim(8), Dim(4)), ((0, 1), (1, 1)))
    more = tuple(Map(Function.ADD, (8, 4), (replace(seen, fill=i), seen), False) for i in range(4000))
    labels = replace(LABELS, operators=tuple(f"layer {i // 16} weight" for i in range(len(PROGRAM.operators) + 4000)))
    program = replace(PROGRAM_WITH_ALL, operators=PROGRAM.operators + more, labels=labels)
    save_program(program, path := tmp_path / "p.vgp")
    tracemalloc.start()
    try:
        loaded = load_program(path)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert loaded.root == program.root and taken < 10 * path.stat().st_size
    assert len({id(access.dims) for operator in loaded.operators[-4000:] for access in operator.accesses}) == 1


def test_labels_are_not_part_of_the_root() -> None:
    assert replace(PROGRAM_WITH_ALL, labels=Labels()).root == PROGRAM_WITH_ALL.root
    assert replace(PROGRAM_WITH_ALL, loss=3).root != PROGRAM_WITH_ALL.root


def test_every_truncation_is_refused() -> None:
    for length in range(len(FILE)):
        with pytest.raises(ProgramError, match=r"^it "):
            decode_program(FILE[:length], "it")


def test_every_extension_is_refused() -> None:
    for more in (b"\0", b"\n", FILE):
        with pytest.raises(ProgramError, match="bytes too many"):
            decode_program(FILE + more, "it")


def test_every_flipped_bit_is_refused_or_another_program() -> None:
    """Same root: a label, or the type of a constant (its users fix that). Another root: the counts of data and
    scalars."""
    same, other = set(), set()
    for bit in range(8 * len(FILE)):
        changed = bytearray(FILE)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            program = decode_program(bytes(changed), "it")
        except ProgramError as error:
            assert str(error).startswith(("it ", "operator ")), error
            continue
        assert encode_program(program) == bytes(changed)
        (same if program.root == PROGRAM_WITH_ALL.root else other).add(bit // 8)
    labels = FILE.index(b'{"data"')
    first_type = labels - 4 - (5 + 8) - (5 + 16)  # the second constant, -4, would be a NaN as binary32
    assert {b for b in same if b < labels} == {first_type} and max(same) > labels
    assert other == set(range(len(MAGIC) + 16, len(MAGIC) + 24))


def with_record(index: int, record: bytes) -> bytes:
    """A file whose header commits to another record at `index`."""
    program = PROGRAM_WITH_ALL
    records = [record if i == index else r for i, r in enumerate(program.records)]
    root = Tree(Kind.OPERATORS, [leaf_hash(Kind.OPERATORS, r) for r in records]).root
    header = program.header[:60] + root + program.header[92:]
    old = [struct.pack(">I", len(r)) + r for r in (program.records[index], record)]
    return FILE.replace(program.header, header).replace(*old)


def test_the_finite_flag_is_set_exactly_where_it_must_be() -> None:
    program = PROGRAM_WITH_ALL
    assert decode_program(with_record(3, program.records[3]), "it").root == program.root
    for index in range(len(program.operators)):
        flags = [r[2] & encoding.FINITE for r in program.records]
        assert bool(flags[index]) == (index in (10, 12)), "the loss, and the binary32 output that becomes state"
        record = bytearray(program.records[index])
        record[2] ^= encoding.FINITE
        with pytest.raises(ProgramError, match="records do not have the roots"):
            decode_program(with_record(index, bytes(record)), "it")


def test_the_error_of_an_invalid_record_names_its_operator() -> None:
    record = bytearray(PROGRAM_WITH_ALL.records[4])
    record[0] = 9
    with pytest.raises(ProgramError, match="operator 4 of it is not a valid operator"):
        decode_program(with_record(4, bytes(record)), "it")


def with_labels(text: str) -> bytes:
    start = FILE.index(b'{"data"')
    return FILE[: start - 4] + struct.pack(">I", len(text)) + text.encode()


def test_labels_that_are_not_canonical_are_refused() -> None:
    fields = json.loads(FILE[FILE.index(b'{"data"') :])
    canonical = json.dumps(fields, sort_keys=True)
    assert with_labels(canonical) == FILE
    infinite = canonical.replace("[10, 3]", "[Infinity]")
    for text in (
        canonical.replace(": ", ":"),
        "[]",
        "{}",
        "{",
        "[" * 10_000,
        infinite,
        canonical.replace("[10, 3]", "3"),
        canonical.replace('"name": "', '"name": "\\u001b[2K'),
    ):
        with pytest.raises(ProgramError, match="is damaged"):
            decode_program(with_labels(text), "it")


def test_a_missing_file_and_another_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"none\.vgp cannot be read: No such file"):
        load_program(tmp_path / "none.vgp")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ProgramError, match="is not a vgame program file"):
        load_program(tmp_path / "text")
    (tmp_path / "newer").write_bytes(MAGIC + struct.pack(">I", 3) + FILE[len(MAGIC) + 4 :])
    with pytest.raises(ProgramError, match="has version 3; this vgame reads version 2: prepare the job again"):
        load_program(tmp_path / "newer")
    (tmp_path / "older").write_bytes(b"vgame program 1\n" + FILE[len(MAGIC) :])
    with pytest.raises(ProgramError, match="has program format 1; this vgame reads format 2: prepare the job again"):
        load_program(tmp_path / "older")


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.vgp"
    save_program(PROGRAM_WITH_ALL, path)
    copy = replace(PROGRAM, operators=tuple(o for o in PROGRAM.operators if not isinstance(o, Copy)))

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vgame.system.files.os.fsync", refuse)
    with pytest.raises(Exception, match=r"p\.vgp cannot be written: No space left on device; nothing was changed"):
        save_program(copy, path)
    assert path.read_bytes() == FILE and [f.name for f in tmp_path.iterdir()] == ["p.vgp"]
