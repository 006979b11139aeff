"""A rounding log on disk: one record per step, appended; and its Merkle root, which the run tree contains.

    header   "VGLOG" ‖ version 1 ‖ encoding ‖ bits ‖ identity of the job (32 bytes) ‖ checksum of all before
    record   step u32 ‖ length u32 ‖ sections ‖ checksum of the checksum before (the first: the header's) and of this
    section  varint operator ‖ varint length ‖ entries (encoding.py) ‖ checksum of step, operator and entries

Numbers are little-endian, sections in program order; the sparse encoding leaves out operators without entries. A kill
while appending leaves a partial record at the end: readers stop before it, and writers cut it off. Damage elsewhere is
an error that names step and operator: the records' checksums detect it and fix the order of records, the sections'
checksums locate it.

Checksums are four bytes of BLAKE2b. (Nested CRCs can hide changes: CRCs are linear.)

The root does not depend on the encoding: tree.py.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vgame.logged.encoding import Encoding, LogError, decode, encode, read_varint, varint
from vgame.logged.kernels import StepEntries, sum_operators
from vgame.logged.sums import Entries
from vgame.logged.tree import interval_root
from vgame.program.program import Program
from vgame.system.files import no_link, open_file, truncate

MAGIC, VERSION = b"VGLOG", 1
HEADER = 8 + 32 + 4
FRAME = 12  # bytes of a record without its sections


def checksum(*parts: bytes | memoryview) -> bytes:
    """Four bytes that detect damage. Parts are not joined: an untrusted record may be large."""
    summed = hashlib.blake2b(digest_size=4)
    for part in parts:
        summed.update(part)
    return summed.digest()


def most_of_a_step(program: Program) -> int:
    """Bytes of a step's sections, at most, in any encoding."""
    return sum(8 * program.operators[i].elements + 64 for i in sum_operators(program))


@dataclass(frozen=True, slots=True)
class Record:
    """Place of a step's sections, and the checksum after them."""

    step: int
    start: int
    length: int
    checksum: bytes


class LogFile:
    """A log that is read and appended. Opening checks every whole record."""

    def __init__(
        self, path: Path, program: Program, identity: bytes, bits: int, encoding: Encoding = Encoding.SPARSE,
        *, writable: bool = True,
    ) -> None:  # fmt: skip
        self.path, self.program, self.operators = path, program, sum_operators(program)
        head = MAGIC + bytes([VERSION, encoding, bits]) + identity
        self.most = most_of_a_step(program)
        if writable and (not path.exists() or path.stat().st_size < HEADER):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write("wb", head + checksum(head))
        self.encoding = self._open_header(identity, bits)
        self.records: list[Record] = []
        self.look()

    # ---- reading ----

    def _open_header(self, identity: bytes, bits: int) -> Encoding:
        head = self._read(0, HEADER)
        if head[:5] != MAGIC or head[5] != VERSION:
            raise LogError(f"{self.path} is not a rounding log of version {VERSION}")
        if checksum(head[:-4]) != head[-4:]:
            raise LogError(f"{self.path}: the header is damaged; get the log again from the trainer")
        if head[8:40] != identity:
            raise LogError(
                f"{self.path} is the log of another job (identity {head[8:16].hex()}...), not of "
                f"{identity[:8].hex()}..."
            )
        if head[7] != bits or head[6] not in list(Encoding):
            raise LogError(f"{self.path} is a log for {head[7]} bits in encoding {head[6]}; the job orders {bits} bits")
        return Encoding(head[6])

    def _read(self, start: int, size: int) -> bytes:
        try:
            with open_file(self.path) as file:
                file.seek(start)
                data = file.read(size)
        except OSError as error:
            raise LogError(f"{self.path} cannot be read: {error.strerror}") from None
        if len(data) < size:
            raise LogError(f"{self.path} ends at byte {start + len(data)}, {start + size} are expected")
        return data

    def look(self) -> None:
        """Read the whole records appended since the last call."""
        size, (at, last) = self.path.stat().st_size, self._end()
        while at + FRAME <= size:
            step, length = struct.unpack("<II", self._read(at, 8))
            if at + FRAME + length > size:
                break
            if length > self.most:
                raise LogError(f"{self.path}: a record of {length:,} bytes, a step has at most {self.most:,}")
            body = memoryview(self._read(at, FRAME + length))
            if step != len(self.records) + 1:
                raise LogError(
                    f"{self.path}: the record of step {step} stands in place of step {len(self.records) + 1}"
                )
            last = checksum(last, body[:-4])
            if body[-4:] != last:
                raise LogError(
                    f"{self.path}: step {step}, {self._damaged(step, body[8:-4])}; get the log again from the trainer"
                )
            self.records.append(Record(step, at + 8, length, last))
            at += FRAME + length

    def _damaged(self, step: int, sections: memoryview) -> str:
        """The damaged part of a record, as text."""
        try:
            self._parse(step, sections)
        except LogError as error:
            return str(error).partition(f"step {step}, ")[2]
        return "its place among the other steps is wrong: records were replaced or reordered"

    def _parse(self, step: int, sections: memoryview) -> StepEntries:
        found: dict[int, Entries] = {}
        at, last = 0, -1
        while at < len(sections):
            where = f"after operator {last}"
            try:
                operator, at = read_varint(sections, at)
                size, at = read_varint(sections, at)
                if operator not in self.operators or operator <= last:
                    raise LogError(f"operator {operator} is not expected there")
                where = f"operator {self.program.operator_name(operator)}"
                data, given = sections[at : at + size], sections[at + size : at + size + 4]
                if given != checksum(struct.pack("<II", step, operator), data):
                    raise LogError("its entries are damaged")
                found[operator] = decode(data, self.program.operators[operator].elements, self.encoding)
            except LogError as error:
                raise LogError(f"{self.path}: step {step}, {where}: {error}") from None
            at, last = at + size + 4, operator
        return found

    def _end(self) -> tuple[int, bytes]:
        """(end of the last whole record, its checksum)."""
        if not self.records:
            return HEADER, self._read(HEADER - 4, 4)
        record = self.records[-1]
        return record.start + record.length + 4, record.checksum

    @property
    def steps(self) -> int:
        """Number of whole steps."""
        return len(self.records)

    def read(self, step: int) -> StepEntries:
        """The entries of a step (counted from 1), by operator; operators without entries are omitted."""
        if not 1 <= step <= self.steps:
            raise LogError(f"{self.path} ends after step {self.steps}: the entries of step {step} are missing")
        record = self.records[step - 1]
        entries = self._parse(step, memoryview(self._read(record.start, record.length)))
        return {operator: one for operator, one in entries.items() if len(one)}

    def interval(self, first: int, last: int) -> Interval:
        """The steps first..last."""
        return Interval(self, range(first, last + 1))

    def root(self, first: int, last: int) -> bytes:
        """Root over the steps first..last."""
        return interval_root(self.program, self.interval(first, last))

    # ---- writing ----

    def append(self, steps: Mapping[int, StepEntries]) -> None:
        """Append the next steps, durably."""
        end, last = self._end()
        truncate(self.path, end)
        data = b""
        for step in sorted(steps):
            assert step == len(self.records) + 1, "steps are appended in order"
            sections = self.sections(step, steps[step])
            body = struct.pack("<II", step, len(sections)) + sections
            last = checksum(last, body)
            self.records.append(Record(step, end + len(data) + 8, len(sections), last))
            data += body + last
        self._write("ab", data)

    def sections(self, step: int, entries: StepEntries) -> bytes:
        """The body of a record."""
        parts = []
        for operator in self.operators:
            one = entries.get(operator, Entries())
            if len(one) or self.encoding is not Encoding.SPARSE:
                data = encode(one, self.program.operators[operator].elements, self.encoding)
                parts += [
                    varint(operator),
                    varint(len(data)),
                    data,
                    checksum(struct.pack("<II", step, operator), data),
                ]
        return b"".join(parts)

    def keep(self, steps: int) -> None:
        """Cut the log after so many steps."""
        del self.records[steps:]
        truncate(self.path, self._end()[0])

    def _write(self, mode: str, data: bytes) -> None:
        try:
            with open(self.path, mode, opener=no_link) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise LogError(f"{self.path} cannot be written: {error.strerror}; free space, then resume") from None


@dataclass(frozen=True, slots=True)
class Interval(Sequence[StepEntries]):
    """Consecutive steps of a log, each read on demand: a log may have an entry for every element."""

    log: LogFile
    steps: range

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, i: int) -> StepEntries:
        return self.log.read(self.steps[i])
