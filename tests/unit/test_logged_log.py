"""The rounding log: encodings against each other, files that are cut, damaged, reordered or of another job, and its
root."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from vgame.logged.encoding import Encoding, LogError, decode, encode, entropy_bytes, varint
from vgame.logged.logfile import HEADER, LogFile, checksum
from vgame.logged.sums import Entries
from vgame.logged.tree import interval_root, step_root
from vgame.program.operators import Contract, Ref, RefClass, Variant
from vgame.program.program import Program, Source


def program() -> Program:
    """Three sum operators of 60, 1 and 7 elements, and one of a single term, which is never logged."""
    state = Ref(RefClass.STATE, 0)
    sizes = ((6, 10, 5), (1, 1, 4), (3, 4, 1), (7, 1, 9))
    operators = tuple(Contract(Variant.DOT, 1, m, n, k, state, state) for m, n, k in sizes)
    return Program(operators, (Source(state, 4),), (), 0, 0, 1)


def entries(dice: np.random.Generator, elements: int, share: float) -> Entries:
    positions = np.flatnonzero(dice.random(elements) < share).astype(np.int64)
    return Entries(positions, dice.random(len(positions)) < 0.5)


def equal(x: Entries, y: Entries) -> bool:
    return np.array_equal(x.positions, y.positions) and np.array_equal(x.up, y.up)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_decoding_inverts_encoding(encoding: Encoding) -> None:
    dice = np.random.default_rng(1)
    for elements in (1, 2, 4, 5, 6, 99, 1000):
        for share in (0.0, 0.01, 0.3, 0.9, 1.0):
            one = entries(dice, elements, share)
            data = encode(one, elements, encoding)
            assert equal(decode(data, elements, encoding), one)
            if encoding is not Encoding.SPARSE:
                assert len(data) == (elements if encoding is Encoding.NAIVE else -(-elements // 5))
    last = Entries(np.array([10**9 - 1]), np.array([True]))
    if encoding is Encoding.SPARSE:
        assert equal(decode(encode(last, 10**9, encoding), 10**9, encoding), last)


def test_sparse_is_near_the_entropy() -> None:
    dice = np.random.default_rng(2)
    for share in (1e-3, 1e-2, 0.1, 0.5):
        one = entries(dice, 400_000, share)
        size, least = len(encode(one, 400_000, Encoding.SPARSE)), entropy_bytes(len(one), 400_000)
        assert 0.97 * least < size < 1.06 * least + 4, share


@pytest.mark.parametrize("encoding", list(Encoding))
def test_changed_bytes_are_refused_or_mean_other_entries(encoding: Encoding) -> None:
    """Every single byte changed: never the same entries again."""
    one = Entries(np.array([3, 4, 40]), np.array([True, False, True]))
    data = encode(one, 60, encoding)
    refused = 0
    for at in range(len(data)):
        for change in (1, 0x80, 0xFF):
            bad = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            try:
                assert not equal(decode(bad, 60, encoding), one)
            except LogError:
                refused += 1
    assert refused > 0
    for bad in (data[:-1], data + b"\0"):
        with pytest.raises(LogError):
            decode(bad, 60, encoding)


@pytest.mark.parametrize("zeros", [1 << 22, 1 << 23, 1 << 24])
def test_gaps_beyond_64_bits_are_refused(zeros: int) -> None:
    """Two gaps around `zeros` times 2^40, the second one such that the sum modulo 2^64 may be small again."""
    bits = np.zeros(2 + 80 + (1 << 24) + 2, np.uint8)
    bits[[82 + zeros, -1]] = 1
    data = bytes([2, 40]) + np.packbits(bits, bitorder="little").tobytes()
    with pytest.raises(LogError):
        decode(data, 1000, Encoding.SPARSE)


IDENTITY = bytes(range(32))


def steps(count: int) -> dict[int, dict[int, Entries]]:
    dice = np.random.default_rng(3)
    return {s: {0: entries(dice, 60, 0.1), 3: entries(dice, 7, 0.5)} for s in range(1, count + 1)}


@pytest.fixture(params=list(Encoding))
def log(request, tmp_path: Path) -> LogFile:
    log = LogFile(tmp_path / "log", program(), IDENTITY, 32, request.param)
    log.append(steps(5))
    return log


def reopened(log: LogFile) -> LogFile:
    return LogFile(log.path, log.program, IDENTITY, 32, log.encoding)


def test_a_log_is_read_back_and_appended(log: LogFile) -> None:
    again = reopened(log)
    assert again.steps == 5 and again.encoding is log.encoding
    again.append({6: steps(6)[6]})
    for step, made in steps(6).items():
        found = reopened(log).read(step)
        assert set(found) == {o for o, e in made.items() if len(e)} and all(equal(found[o], made[o]) for o in found)
    with pytest.raises(LogError, match="ends after step 6: the entries of step 7 are missing"):
        again.read(7)
    again.keep(2)
    assert reopened(log).steps == 2 and reopened(log).read(2).keys() == steps(5)[2].keys()


def test_a_truncated_log_is_read_up_to_its_last_whole_step(log: LogFile) -> None:
    data = log.path.read_bytes()
    ends = [HEADER, *(r.start + r.length + 4 for r in log.records)]
    for size in range(HEADER, len(data)):
        log.path.write_bytes(data[:size])
        cut = reopened(log)
        assert cut.steps == sum(end <= size for end in ends) - 1
    cut.append({cut.steps + 1: steps(5)[cut.steps + 1]})
    assert log.path.read_bytes() == data


def test_damage_is_named(log: LogFile) -> None:
    """One bit of any byte: an error, or a shorter log (a length that reaches beyond the end looks like a cut)."""
    data, named = log.path.read_bytes(), 0
    for at in range(HEADER, len(data)):
        log.path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            found = reopened(log)
        except LogError as error:
            named += "step " in str(error) and "operator " in str(error)
        else:
            with pytest.raises(LogError, match="are missing"):
                found.read(5)
    assert named > 0.4 * (len(data) - HEADER)
    first = log.records[1].start + 5
    log.path.write_bytes(data[:first] + bytes([data[first] ^ 1]) + data[first + 1 :])
    with pytest.raises(LogError, match="step 2, operator 0 contract dot: its entries are damaged"):
        reopened(log)


def test_reordered_and_replaced_records_are_refused(log: LogFile) -> None:
    data, records = log.path.read_bytes(), log.records
    parts = [data[r.start - 8 : r.start + r.length + 4] for r in records]
    log.path.write_bytes(data[:HEADER] + parts[1] + parts[0] + b"".join(parts[2:]))
    with pytest.raises(LogError, match="the record of step 2 stands in place of step 1"):
        reopened(log)
    log.path.write_bytes(data[:HEADER] + parts[0] + b"\1\0\0\0" + parts[2][4:] + b"".join(parts[2:]))
    with pytest.raises(LogError, match="the record of step 1 stands in place of step 2"):
        reopened(log)
    other = LogFile(log.path.parent / "other", log.program, IDENTITY, 32, log.encoding)
    made = steps(5) | {1: {}}
    other.append(made)
    theirs = other.path.read_bytes()
    record = other.records[1]
    log.path.write_bytes(
        data[:HEADER] + parts[0] + theirs[record.start - 8 : record.start + record.length + 4] + b"".join(parts[2:])
    )
    with pytest.raises(LogError, match="step 2, its place among the other steps is wrong"):
        reopened(log)


def test_a_log_of_another_job_is_refused(log: LogFile) -> None:
    with pytest.raises(LogError, match="the log of another job"):
        LogFile(log.path, log.program, bytes(32), 32)
    with pytest.raises(LogError, match="is a log for 32 bits"):
        LogFile(log.path, log.program, IDENTITY, 28)
    data = log.path.read_bytes()
    log.path.write_bytes(data[:7] + bytes([28]) + data[8:])
    with pytest.raises(LogError, match="the header is damaged"):
        reopened(log)
    log.path.write_bytes(b"another file" * 9)
    with pytest.raises(LogError, match="is not a rounding log"):
        reopened(log)


def test_the_root_is_that_of_the_entries_in_every_encoding(tmp_path: Path) -> None:
    roots = set()
    for encoding in Encoding:
        log = LogFile(tmp_path / encoding.name, program(), IDENTITY, 32, encoding)
        log.append(steps(4))
        roots.add(log.root(2, 4))
    assert roots == {interval_root(program(), [steps(4)[s] for s in (2, 3, 4)])}
    one = steps(1)[1]
    flipped = Entries(one[0].positions, one[0].up ^ (np.arange(len(one[0])) == 0))
    moved = Entries(one[0].positions + (np.arange(len(one[0])) == len(one[0]) - 1), one[0].up)
    found = {step_root(program(), {**one, 0: other}) for other in (one[0], flipped, moved)} | {
        step_root(program(), {3: one[0]})
    }
    assert len(found) == 4


@pytest.mark.parametrize("damaged", [False, True])
def test_a_large_record_is_in_memory_once(tmp_path: Path, damaged: bool) -> None:
    """The trainer determines the size of its records."""
    ref = Ref(RefClass.STATE, 0)
    large = Program((Contract(Variant.DOT, 1, 1 << 17, 1, 2, ref, ref),), (Source(ref, 4, False),), (), 0, 0, 0)
    log = LogFile(tmp_path / "log", large, IDENTITY, 32)
    data = bytes(log.most - 12)
    sections = varint(0) + varint(len(data)) + data + checksum(struct.pack("<II", 1, 0) + data)
    body = struct.pack("<II", 1, len(sections)) + sections
    with open(log.path, "ab") as file:
        file.write(body + checksum(log._end()[1] + body + bytes(damaged)))
    tracemalloc.start()
    with pytest.raises(LogError, match="not the encoding of any entries") if damaged else nullcontext():
        log.look()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert log.steps == (not damaged) and peak < 1.5 * log.most
