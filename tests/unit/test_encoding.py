"""Operator and source records: every field at its place of docs/formats.md, and one encoding for each operator."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_draws import operators, refs, words

from vgame.arithmetic.functions import Function
from vgame.errors import ProgramError
from vgame.program.encoding import header, operator_record, program_root, read_operator, source_record
from vgame.program.operators import (
    Access,
    ArgMax,
    Contract,
    Copy,
    Dim,
    Gather,
    Map,
    Operator,
    Philox,
    ReduceMax,
    Ref,
    RefClass,
    Shuffle,
    Variant,
)

A, B = Ref(RefClass.OPERATOR, 0x010203), Ref(RefClass.STATE, 5)
ACCESS = Access(A, (Dim(7, -3, 2),), ((0, -1), (255, 0)), 0x7FC00000)
ACCESS_BYTES = "01010203 7fc00000 01 00000007 fffffffd 00000002 00ffffffff ff00000000"

#: operator, finite, record as the page lays it out
PAGE: list[tuple[Operator, bool, str]] = [
    (Map(Function.NEG, (3, 4), (ACCESS,), False), True, "01 01 02 0000000c 02 00000003 00000004" + ACCESS_BYTES),
    (Copy((3, 4), (ACCESS, ACCESS), True), False, "02 00 01 0000000c 02 00000003 00000004 02" + ACCESS_BYTES * 2),
    (
        Contract(Variant.ONE_HOT, 2, 3, 4, 5, A, B, False, True),
        False,
        "03 02 00 00000018 00000002 00000003 00000004 00000005 02 01010203 02000005",
    ),
    (
        Contract(Variant.SUM, 1, 3, 1, 5, A, shared_a=True),
        True,
        "03 01 02 00000003 00000001 00000003 00000001 00000005 01 01010203 00000000",
    ),
    (Gather(2, 3, 4, A, B, 9, True), False, "04 00 01 00000006 00000002 00000003 00000004 00000009 01010203 02000005"),
    (ReduceMax(2, 5, 3, B), False, "05 00 00 00000004 00000002 00000005 00000003 02000005"),
    (ArgMax(2, 5, B), False, "06 00 01 00000002 00000002 00000005 02000005"),
    (Philox(9), False, "07 00 01 00000009"),
    (Shuffle(9, 100), False, "08 00 01 00000009 00000064"),
]


@pytest.mark.parametrize(("operator", "finite", "record"), PAGE, ids=lambda v: type(v).__name__)
def test_records_are_as_the_page_lays_them_out(operator: Operator, finite: bool, record: str) -> None:
    assert operator_record(operator, finite) == bytes.fromhex(record)
    assert read_operator(bytes.fromhex(record), "it") == operator


def test_source_record_and_header() -> None:
    assert source_record(True, 258, B) == bytes.fromhex("01 00000102 02000005")
    roots = [bytes([i]) * 32 for i in (1, 2, 3)]
    raw = header((1, 2, 3, 4, 5, 6), *roots)
    assert raw == struct.pack(">7I", 2, 1, 2, 3, 4, 5, 6) + b"".join(roots) and len(raw) == 124
    assert program_root(raw).hex() == "18d3caffae04bf75e1cb5978cb5413fcca1c0b892d77eae6523b99ed6f687ec6"


@settings(max_examples=400, deadline=None)
@given(operators, st.booleans())
def test_reading_returns_the_written_words(operator: Operator, finite: bool) -> None:
    assert read_operator(operator_record(operator, finite), "it") == operator


def read_or_refuse(record: bytes) -> None:
    """A record is refused with a ProgramError, or it is the canonical record of its operator."""
    try:
        operator = read_operator(record, "it")
    except ProgramError as error:
        assert "it" in str(error)
        return
    assert record in (operator_record(operator, False), operator_record(operator, True))


@settings(max_examples=60, deadline=None)
@given(operators, st.booleans(), st.binary(min_size=1, max_size=20))
def test_no_truncation_or_extension_is_accepted(operator: Operator, finite: bool, more: bytes) -> None:
    record = operator_record(operator, finite)
    for length in range(len(record)):
        with pytest.raises(ProgramError, match=r"^it "):
            read_operator(record[:length], "it")
    with pytest.raises(ProgramError, match="bytes too many"):
        read_operator(record + more, "it")


@settings(max_examples=60, deadline=None)
@given(operators, st.booleans())
def test_every_flipped_bit_is_refused_or_another_operator(operator: Operator, finite: bool) -> None:
    record = operator_record(operator, finite)
    for bit in range(8 * len(record)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        read_or_refuse(bytes(changed))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_canonical(record: bytes) -> None:
    read_or_refuse(record)


REFUSED = {
    "kind 0": ("00 00 00 00000001", "0 is not a valid Code"),
    "kind 9": ("09 00 00 00000001", "9 is not a valid Code"),
    "an unknown function": ("01 00 00 00000001 01 00000001", "0 is not a valid Function"),
    "an unknown variant": (
        "03 03 00 00000018 00000002 00000003 00000004 00000005 02 01010203 02000005",
        "valid Variant",
    ),
    "a function of a copy": ("02 01 01 00000001 00 00", "canonical"),
    "an undefined flag": ("07 00 05 00000009", "canonical"),
    "random words that are binary32": ("07 00 00 00000009", "canonical"),
    "an integer sum": ("03 01 01 00000003 00000001 00000003 00000001 00000005 01 01010203 00000000", "canonical"),
    "elements that the body does not imply": ("06 00 01 00000003 00000002 00000005 02000005", "canonical"),
    "a third bit of `shared`": (
        "03 02 00 00000018 00000002 00000003 00000004 00000005 04 01010203 02000005",
        "canonical",
    ),
    "an unknown class of references": (
        "06 00 01 00000002 00000002 00000005 06000005",
        "class 6, which does not exist",
    ),
    "blocks of nothing": ("05 00 00 00000004 00000002 00000005 00000000 02000005", "is not a valid operator"),
    "elements beyond 32 bits": ("06 00 01 00000002 00000002 00000005 02000005 00", "1 bytes too many"),
    "a product beyond 32 bits": ("02 00 01 00000000 02 00010000 00010000 00", "is not a valid operator"),
}


@pytest.mark.parametrize(("record", "message"), REFUSED.values(), ids=REFUSED)
def test_invalid_records_are_refused(record: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        read_operator(bytes.fromhex(record), "it")


def test_an_index_that_needs_more_than_24_bits_has_no_record() -> None:
    with pytest.raises(ProgramError, match="STATE 16777216 cannot be referred to"):
        operator_record(ArgMax(1, 1, Ref(RefClass.STATE, 2**24)), False)


@given(st.booleans(), words, refs)
def test_source_records_differ_where_sources_differ(integer: bool, elements: int, ref: Ref) -> None:
    record = source_record(integer, elements, ref)
    assert len(record) == 9
    others = [source_record(not integer, elements, ref), source_record(integer, elements ^ 1, ref)]
    others.append(source_record(integer, elements, Ref(ref.cls, ref.index ^ 1)))
    assert record not in others
