"""Untrusted texts within all limits of size that could cost a search hours, or a decoder gigabytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from vgame.chain.abi import refuse_overlap
from vgame.chain.wallet import MOST_TEXT, TOO_CHEAP
from vgame.system.files import json_text, parse_json

MIB = 2**20
TEXTS = {
    "an open string of escaped quotes": b"[" * 300 + b'"' + rb"\"" * (2 * MIB),
    "an open string of backslashes": b"[" * 300 + b'"' + rb"\\" * (2 * MIB),
    "an open string that ends with a backslash": b"[" * 300 + b'"' + b"a" * (4 * MIB) + b"\\",
    "strings without end, one in another": b"[" * 300 + b'"a' * (2 * MIB),
    "many short strings": b"[" * 300 + b'"a"' * MIB,
    "one key many times": b"{" + b'"a":1,' * (MIB // 2) + b'"a":1}',
    "many keys, the last two equal": b"{" + b"".join(b'"%d":1,' % n for n in range(MIB // 4)) + b'"0":1}',
}


@pytest.mark.parametrize("read", [json_text, parse_json])
@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_a_text_takes_no_longer_than_its_size(text: bytes, read: Callable[[bytes], object]) -> None:
    begin = time.process_time()
    with suppress(ValueError):
        read(text)
    assert time.process_time() - begin < 5


def test_brackets_in_strings_are_not_counted() -> None:
    inside = '["' + "[" * 1_000 + r"\"[[[" + '"]'
    assert parse_json(inside.encode()) == ["[" * 1_000 + '"[[[']


def test_the_reason_of_a_refusal_is_searched_at_its_beginning() -> None:
    begin = time.process_time()
    assert not TOO_CHEAP.search(("tip" * MIB)[:MOST_TEXT])
    assert time.process_time() - begin < 1


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(32) for number in numbers)


def test_overlapping_elements_are_refused() -> None:
    """A decoder would copy the last element once for each entry of the list."""
    whole = words(32, 2, 64, 128, 3) + b"abc".ljust(32, b"\0") + words(1) + b"d".ljust(32, b"\0")
    refuse_overlap(whole)
    refuse_overlap(words(32, 0))
    count, size = 1_000, 32 * 1_000
    bomb = words(32, count, *[32 * count] * count, size) + bytes(size)
    with pytest.raises(ValueError, match="longer than the data"):
        refuse_overlap(bomb)
    with pytest.raises(ValueError, match="longer than the data"):
        refuse_overlap(words(32, 2**255))
