"""The entries of one operator as bytes, three ways.

In: the operator's entries and its number of elements. Out: bytes, and entries again.

    naive    one byte per element: 0 down, 1 none, 2 up
    packed   five elements per byte, base 3, the first one lowest: the paper's
    sparse   varint count; if it is not 0: k (one byte), then one stream of bits: the directions, the k low
             bits of every gap, the gaps' high parts in unary (so many 0, then 1). Gaps are between positions, less
             one. This is Rice's code, within 0.1 bit per entry of the entropy of entries that fall at random
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from vgame.errors import VgameError
from vgame.logged.sums import Entries


class LogError(VgameError):
    """A rounding log is damaged, truncated, out of order, or does not match its commitment."""


class Encoding(IntEnum):
    """The encoding of entries; a byte in a log's header."""

    NAIVE = 0
    PACKED = 1
    SPARSE = 2


def encode(entries: Entries, elements: int, encoding: Encoding) -> bytes:
    """The entries of an operator with so many elements."""
    if encoding is Encoding.SPARSE:
        return _encode_sparse(entries, elements)
    digits = np.ones(elements, np.uint8)
    digits[entries.positions] = np.where(entries.up, 2, 0)
    if encoding is Encoding.NAIVE:
        return digits.tobytes()
    digits = np.concatenate([digits, np.ones(-elements % 5, np.uint8)]).reshape(-1, 5)
    return (digits @ np.array([1, 3, 9, 27, 81], np.uint8)).astype(np.uint8).tobytes()


def decode(data: bytes | memoryview, elements: int, encoding: Encoding) -> Entries:
    """The inverse of `encode`; LogError (without a place, which the caller adds) for bytes that `encode` cannot
    return."""
    entries = _decode_sparse(data, elements) if encoding is Encoding.SPARSE else _decode_dense(data, elements, encoding)
    if encode(entries, elements, encoding) != data:
        raise LogError("its bytes are not the encoding of any entries")
    return entries


def _decode_dense(data: bytes | memoryview, elements: int, encoding: Encoding) -> Entries:
    digits = np.frombuffer(data, np.uint8)
    if encoding is Encoding.PACKED:
        digits = (digits[:, None] // np.array([1, 3, 9, 27, 81], np.uint8) % 3).reshape(-1)
    positions = np.flatnonzero(digits[:elements] != 1)
    return Entries(positions.astype(np.int64), digits[positions] == 2)


# --- sparse ---


def varint(value: int) -> bytes:
    """A number in seven bits a byte, the low ones first."""
    parts = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(part | 0x80 for part in parts[:-1]), parts[-1]])


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(value, position after it)."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 56:
            raise LogError("its bytes end inside a number")
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at


def rice_parameter(count: int, elements: int) -> int:
    """Low bits per gap: ceil(log2(ln(golden ratio) * mean gap)), the best for gaps of entries that fall at random
    (Kiely 2004)."""
    return max(0, math.ceil(math.log2(0.4812 * elements / count)))


def _encode_sparse(entries: Entries, elements: int) -> bytes:
    count = len(entries)
    if not count:
        return varint(0)
    k = rice_parameter(count, elements)
    gaps = np.diff(entries.positions, prepend=-1) - 1
    low = (gaps[:, None] >> np.arange(k)) & 1
    ends = np.cumsum((gaps >> k) + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    bits = np.concatenate([entries.up.astype(np.uint8), low.astype(np.uint8).reshape(-1), unary])
    return varint(count) + bytes([k]) + np.packbits(bits, bitorder="little").tobytes()


def _decode_sparse(data: bytes | memoryview, elements: int) -> Entries:
    count, at = read_varint(data, 0)
    if not count:
        return Entries()
    if count > elements:
        raise LogError("its bytes name more entries than there are elements")
    k = rice_parameter(count, elements)
    # SAFETY: with so few bits no gap exceeds 63 bits, and the unpacked entries are no larger than the operator.
    if data[at : at + 1] != bytes([k]) or 8 * (len(data) - at - 1) > count * (k + 2) + (elements >> k) + 7:
        raise LogError("its bytes are not the encoding of any entries")
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=at + 1), bitorder="little")
    ends = np.flatnonzero(bits[count * (k + 1) :])
    if len(ends) != count:
        raise LogError("its bytes name another number of entries than they hold")
    low = bits[count : count * (k + 1)].reshape(count, k).astype(np.int64) @ (1 << np.arange(k, dtype=np.int64))
    gaps = (np.diff(ends, prepend=-1) - 1 << k) + low
    positions = np.cumsum(gaps + 1) - 1
    if positions[-1] >= elements:
        raise LogError("its bytes name an element that does not exist")
    return Entries(positions.astype(np.int64), bits[:count] == 1)


def entropy_bytes(count: int, elements: int) -> float:
    """Least size of `count` entries that fall at random on `elements`, directions included."""
    if not 0 < count < elements:
        return count / 8
    p = count / elements
    return (elements * (-p * math.log2(p) - (1 - p) * math.log2(1 - p)) + count) / 8
