"""Every rule of docs/formats.md section 3 has a program that breaks it, and is refused by a message that names the
operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from vgame.arithmetic.functions import Function
from vgame.commit.words import tensor_height
from vgame.errors import ProgramError
from vgame.program.operators import (
    BROADCAST,
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
    identity_access,
    immediate,
)
from vgame.program.program import Labels, Program, Source
from vgame.program.validate import MAX_WITNESS, tensors_of, undecidable, validate, witness_bytes

DATA = [(30, False), (10, True)]
STEPS = 7


def op(index: int) -> Ref:
    return Ref(RefClass.OPERATOR, index)


WEIGHTS, COUNTER, FROZEN = (Ref(RefClass.STATE, i) for i in range(3))
RATE = Access(Ref(RefClass.SCALAR, 0), (), ((BROADCAST, 0),))
(LOAD, LABELS, PRODUCT, MAXIMA, SHIFTED, GUESS, WORDS, KEEP, SUMS, LOSS, TURNED, UPDATE, COUNT) = range(1, 14)

#: Linear layer on a shuffled batch, with one of every kind of operator. Index 0 is the shuffle.
OPERATORS: tuple[Operator, ...] = (
    Shuffle(4, 10),
    Gather(4, 3, 10, op(0), Ref(RefClass.DATA, 0), 0, False),
    Gather(4, 1, 10, op(0), Ref(RefClass.DATA, 1), 0, True),
    Contract(Variant.DOT, 1, 4, 2, 3, op(LOAD), WEIGHTS),
    ReduceMax(4, 2, 2, op(PRODUCT)),
    Map(
        Function.SUB,
        (4, 2),
        (Access(op(PRODUCT), (Dim(8),), ((0, 2), (0, 1))), Access(op(MAXIMA), (Dim(4),), ((0, 1), (BROADCAST, 0)))),
        False,
    ),
    ArgMax(4, 2, op(SHIFTED)),
    Philox(8),
    Map(Function.SELECT, (8,), (identity_access(op(WORDS), 8), identity_access(op(SHIFTED), 8), immediate(0)), False),
    Contract(Variant.ONE_HOT, 1, 2, 3, 4, op(LABELS), Ref(RefClass.CONSTANT, 0)),
    Contract(Variant.SUM, 1, 1, 1, 8, op(KEEP)),
    Copy((6,), (Access(op(SUMS), (Dim(6, 5),), ((0, -1),)), identity_access(WEIGHTS, 6)), False),
    Map(Function.MUL, (6,), (identity_access(op(TURNED), 6), RATE), False),
    Map(Function.IADD, (1,), (identity_access(COUNTER, 1), immediate(1)), True),
)
SOURCES = (Source(op(UPDATE), 6), Source(op(COUNT), 1, True), Source(FROZEN, 2))
PROGRAM = Program(
    OPERATORS, SOURCES, (torch.arange(12.0),), 2, 1, LOSS, Labels(tuple(f"layer{i}" for i in range(len(OPERATORS))))
)


def test_the_program_that_the_others_differ_from_is_valid() -> None:
    validate(PROGRAM, DATA, STEPS)
    assert {type(o) for o in OPERATORS} == {Map, Copy, Contract, Gather, ReduceMax, ArgMax, Philox, Shuffle}
    assert {o.variant for o in OPERATORS if isinstance(o, Contract)} == set(Variant)


# ---- rules about one operator ----


@dataclass(frozen=True)
class Broken:
    """The operator at `index` is replaced by `change(it)`; the expected message."""

    index: int
    change: Callable[[Any], Operator]
    message: str


def fields(**values: Any) -> Callable[[Any], Operator]:
    return lambda operator: replace(operator, **values)


def access(number: int, **values: Any) -> Callable[[Any], Operator]:
    """The operator with changed fields of one access."""

    def change(operator: Any) -> Operator:
        accesses = list(operator.accesses)
        accesses[number] = replace(accesses[number], **values)
        return replace(operator, accesses=tuple(accesses))

    return change


BROKEN = {
    # references
    "an operator that reads itself": Broken(
        MAXIMA, fields(operand=op(MAXIMA)), "reads OPERATOR 4, which does not exist before it"
    ),
    "an operator that reads a later one": Broken(
        MAXIMA, fields(operand=op(SHIFTED)), "reads OPERATOR 5, which does not exist"
    ),
    "an unknown state tensor": Broken(PRODUCT, fields(b=Ref(RefClass.STATE, 3)), "reads STATE 3, which does not exist"),
    "an unknown constant": Broken(SUMS, fields(b=Ref(RefClass.CONSTANT, 1)), "reads CONSTANT 1, which does not exist"),
    "an unknown datum": Broken(LOAD, fields(table=Ref(RefClass.DATA, 2)), "reads DATA 2, which does not exist"),
    "an unknown scalar": Broken(UPDATE, access(1, ref=Ref(RefClass.SCALAR, 1)), "reads SCALAR 1, which does not exist"),
    "an immediate with an index": Broken(
        COUNT, access(1, ref=Ref(RefClass.IMMEDIATE, 1)), "reads IMMEDIATE 1, which does not exist"
    ),
    # rows come from tensors
    "a product over an immediate": Broken(PRODUCT, fields(b=Ref(RefClass.IMMEDIATE)), "reads rows of IMMEDIATE"),
    "a product over a scalar": Broken(
        PRODUCT, lambda o: replace(o, n=1, k=1, m=12, b=Ref(RefClass.SCALAR)), "reads rows of SCALAR"
    ),
    "a gather from an immediate": Broken(LOAD, fields(table=Ref(RefClass.IMMEDIATE)), "reads rows of IMMEDIATE"),
    "an index that is an immediate": Broken(LOAD, fields(index=Ref(RefClass.IMMEDIATE)), "reads rows of IMMEDIATE"),
    "a maximum of a scalar": Broken(MAXIMA, lambda o: ReduceMax(1, 1, 1, Ref(RefClass.SCALAR)), "reads rows of SCALAR"),
    "an argmax of an immediate": Broken(
        GUESS, lambda o: ArgMax(4, 2, Ref(RefClass.IMMEDIATE)), "reads rows of IMMEDIATE"
    ),
    # types
    "a map of the other type": Broken(
        SHIFTED, access(0, ref=op(LABELS), dims=(Dim(4),)), "reads OPERATOR 2 as binary32, which"
    ),
    "a condition that is binary32": Broken(KEEP, access(0, ref=op(SHIFTED)), "reads OPERATOR 5 as int32, which"),
    "a choice of the other type": Broken(KEEP, access(1, ref=op(WORDS)), "reads OPERATOR 7 as binary32, which"),
    "a copy of the other type": Broken(TURNED, fields(integer=True), "reads OPERATOR 9 as int32, which"),
    "a product of integers": Broken(
        SUMS, lambda o: Contract(Variant.DOT, 1, 1, 1, 4, op(LABELS), op(MAXIMA)), "reads OPERATOR 2 as binary32"
    ),
    "a one-hot index that is binary32": Broken(SUMS, fields(a=op(MAXIMA)), "reads OPERATOR 4 as int32, which"),
    "one-hot sums of integers": Broken(SUMS, fields(n=1, b=op(LABELS)), "reads OPERATOR 2 as binary32, which"),
    "a sum of integers": Broken(LOSS, fields(a=op(WORDS)), "reads OPERATOR 7 as binary32, which"),
    "an index of a gather that is binary32": Broken(
        GUESS, lambda o: Gather(4, 3, 10, op(MAXIMA), Ref(RefClass.DATA, 0), 0, False), "reads OPERATOR 4 as int32"
    ),
    "a table of the other type": Broken(LOAD, fields(integer=True), "reads DATA 0 as int32, which"),
    "a maximum of the other type": Broken(MAXIMA, fields(integer=True), "reads OPERATOR 3 as int32, which"),
    "an argmax of integers": Broken(GUESS, lambda o: ArgMax(1, 4, op(LABELS)), "reads OPERATOR 2 as binary32, which"),
    "an output of the other type": Broken(
        SHIFTED, fields(integer=True), "the type of its output is not that of its function"
    ),
    "an integer output that says binary32": Broken(
        GUESS,
        lambda o: Map(Function.IEQ, (4,), (identity_access(op(LABELS), 4),) * 2, False),
        "the type of its output is not that of its function",
    ),
    # elements
    "a map over another size": Broken(KEEP, access(1, dims=(Dim(7),)), "reads OPERATOR 5 as 7 elements instead of 8"),
    "a copy of another size": Broken(
        TURNED, access(0, dims=(Dim(7, 5),)), "reads OPERATOR 9 as 7 elements instead of 6"
    ),
    "rows of another length": Broken(PRODUCT, fields(k=2), "reads OPERATOR 1 as 8 elements instead of 12"),
    "more columns than there are": Broken(PRODUCT, fields(n=3), "reads STATE 0 as 9 elements instead of 6"),
    "batches that are not there": Broken(
        PRODUCT, fields(batch=2, shared_a=True), "reads STATE 0 as 12 elements instead of 6"
    ),
    "an index of another length": Broken(SUMS, fields(k=3, n=4), "reads OPERATOR 2 as 3 elements instead of 4"),
    "a table of another height": Broken(LOAD, fields(rows=9), "reads DATA 0 as 27 elements instead of 30"),
    "a gather of another count": Broken(LOAD, fields(count=5), "reads OPERATOR 0 as 5 elements instead of 4"),
    "a maximum over other rows": Broken(MAXIMA, fields(rows=3), "reads OPERATOR 3 as 6 elements instead of 8"),
    "an argmax over other rows": Broken(GUESS, fields(length=3), "reads OPERATOR 5 as 12 elements instead of 8"),
    # the shape of maps and copies
    "an operand too many": Broken(
        SHIFTED, lambda o: replace(o, accesses=(*o.accesses, o.accesses[0])), "3 operands; SUB takes 2"
    ),
    "an operand too few": Broken(SHIFTED, lambda o: replace(o, accesses=o.accesses[:1]), "1 operands; SUB takes 2"),
    "no accesses": Broken(TURNED, fields(accesses=()), "with 0 accesses; 1 to 12 and 1 to 32 are allowed"),
    "33 accesses": Broken(
        TURNED, lambda o: replace(o, accesses=o.accesses[1:] * 33), "with 33 accesses; 1 to 12 and 1 to 32 are allowed"
    ),
    "no dimensions of the index space": Broken(
        COUNT, lambda o: Map(o.function, (), (immediate(1, 0),) * 2, True), "an index space of rank 0"
    ),
    "rank 13": Broken(
        COUNT, lambda o: Map(o.function, (1,) * 13, (immediate(1, 13),) * 2, True), "an index space of rank 13"
    ),
    "9 dimensions of an operand": Broken(
        COUNT, access(0, dims=(Dim(1),) * 9), "an access with 9 dimensions and 1 targets"
    ),
    "a target too many": Broken(
        COUNT, access(0, targets=((0, 1), (0, 1))), "an access with 1 dimensions and 2 targets"
    ),
    "a target that is no dimension": Broken(
        COUNT, access(0, targets=((1, 1),)), "an access has the target 1 with coefficient 1"
    ),
    "a broadcast that moves": Broken(
        COUNT, access(0, targets=((BROADCAST, 1),)), "an access has the target 255 with coefficient 1"
    ),
    "an immediate with dimensions": Broken(
        COUNT, access(1, dims=(Dim(1),), targets=((0, 1),)), "an immediate or a scalar has no dimensions"
    ),
    "a scalar with dimensions": Broken(UPDATE, access(1, dims=(Dim(1),)), "an immediate or a scalar has no dimensions"),
    "a tensor without dimensions": Broken(
        COUNT, access(0, dims=(), targets=((BROADCAST, 0),)), "a tensor is read without dimensions"
    ),
    "a divisor of 0": Broken(
        COUNT, access(0, dims=(Dim(1, 0, 0),)), "an operand dimension has a size or divisor out of range"
    ),
    "a divisor beyond 31 bits": Broken(
        COUNT, access(0, dims=(Dim(1, 0, 2**31),)), "an operand dimension has a size or divisor out of range"
    ),
    "a coordinate above 2^62": Broken(
        COUNT,
        access(0, dims=(Dim(1, 2**62 + 1),)),
        f"an access reaches the coordinate {2**62 + 1}; -2\\^62 to 2\\^62 are allowed",
    ),
    "a coordinate below -2^62": Broken(
        COUNT,
        access(0, dims=(Dim(1, -(2**62) - 1),)),
        f"an access reaches the coordinate {-(2**62) - 1}; -2\\^62 to 2\\^62 are allowed",
    ),
    "a fill that is another NaN": Broken(TURNED, access(1, fill=0x7FC00001), "a fill is a NaN other than 0x7fc00000"),
    "a fill of a map that is another NaN": Broken(
        UPDATE, access(0, fill=0xFFC00000), "a fill is a NaN other than 0x7fc00000"
    ),
    "a fill of a gather that is another NaN": Broken(
        LOAD, fields(fill=0x7F800001), "a fill is a NaN other than 0x7fc00000"
    ),
    # sizes
    "a sum with two columns": Broken(
        GUESS, lambda o: Contract(Variant.SUM, 1, 4, 2, 2, op(SHIFTED)), "a sum has n = 1 and no second operand"
    ),
    "a sum with a second operand": Broken(LOSS, fields(b=WEIGHTS), "a sum has n = 1 and no second operand"),
    "blocks of nothing": Broken(MAXIMA, fields(block=0), "0 elements; 1 to 2147483647 are allowed"),
    "blocks beyond 31 bits": Broken(MAXIMA, fields(block=2**31), "a size of .* is out of range"),
    "a population of size 0": Broken(0, fields(population=0), "a size of .* is out of range"),
    "a population beyond 31 bits": Broken(0, fields(population=2**31), "a size of .* is out of range"),
    "no random words": Broken(WORDS, fields(elements=0), "0 elements; 1 to 2147483647 are allowed"),
    "too many random words": Broken(WORDS, fields(elements=2**31), "2147483648 elements; 1 to 2147483647 are allowed"),
    "an output of no elements": Broken(
        TURNED, lambda o: replace(o, sizes=(0,)), "0 elements; 1 to 2147483647 are allowed"
    ),
    "an output beyond 31 bits": Broken(
        TURNED, lambda o: replace(o, sizes=(2**31,)), "2147483648 elements; 1 to 2147483647"
    ),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_names_the_operator(broken: Broken) -> None:
    operators = list(OPERATORS)
    operators[broken.index] = broken.change(operators[broken.index])
    program = replace(PROGRAM, operators=tuple(operators))
    with pytest.raises(ProgramError, match=broken.message) as caught:
        validate(program, DATA, STEPS)
    assert str(caught.value).startswith(f"operator {program.operator_name(broken.index)}: ")
    assert f"layer{broken.index}" in str(caught.value)


def test_a_fill_of_integers_may_be_any_word() -> None:
    operators = list(OPERATORS)
    operators[LABELS] = replace(operators[LABELS], fill=0x7FC00001)
    operators[COUNT] = access(0, fill=0xFFFFFFFF)(operators[COUNT])
    validate(replace(PROGRAM, operators=tuple(operators)), DATA, STEPS)


# ---- rules about the program ----

WHOLE = {
    "a loss of two words": ({"loss": MAXIMA}, "the loss .operator 4. is not one binary32 word"),
    "a loss that is int32": ({"loss": COUNT}, "the loss .operator 13. is not one binary32 word"),
    "a loss that does not exist": ({"loss": 14}, "the loss .operator 14. is not one binary32 word"),
    "a program that trains nothing": ({"sources": (Source(WEIGHTS, 6),)}, "there is nothing to train"),
    "a state tensor of another size": (
        {"sources": (Source(op(UPDATE), 6), Source(op(LOSS), 2))},
        "state tensor 1 does not come",
    ),
    "a state tensor of the other type": (
        {"sources": (Source(op(UPDATE), 6), Source(op(COUNT), 1))},
        "state tensor 1 does not come from an operator of its size and type",
    ),
    "a state tensor from a later operator": (
        {"sources": (Source(op(UPDATE), 6), Source(op(14), 1, True))},
        "state tensor 1 does not come from an operator",
    ),
    "a state tensor from another one": (
        {"sources": (Source(op(UPDATE), 6), Source(op(COUNT), 1, True), Source(Ref(RefClass.STATE, 0), 6))},
        "state tensor 2 does not come from an operator of its size and type, nor from itself",
    ),
    "a state tensor from a constant": (
        {"sources": (Source(op(UPDATE), 6), Source(Ref(RefClass.CONSTANT, 0), 12))},
        "state tensor 1 does not come from an operator",
    ),
    "a data set of another size": ({"data": 3}, "the program reads 3 data tensors, the data set has 2"),
}


@pytest.mark.parametrize(("changed", "message"), WHOLE.values(), ids=WHOLE)
def test_a_broken_rule_about_the_program(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        validate(replace(PROGRAM, **changed), DATA, STEPS)


def test_the_table_of_scalars_has_a_limit() -> None:
    validate(PROGRAM, DATA, 2**31 - 1)
    with pytest.raises(ProgramError, match="2147483648 steps of 1 scalars are more than 2147483647 words"):
        validate(PROGRAM, DATA, 2**31)


# ---- rules about the witness ----


def long_row(operator: Operator) -> Program:
    """A program with one operator over a data tensor."""
    update = Map(Function.NEG, (1,), (identity_access(WEIGHTS, 1),), False)
    return Program((operator, update), (Source(op(1), 1),), (), 1, 0, 1, Labels(("long", "update")))


def argmax(length: int) -> Operator:
    return ArgMax(1, length, Ref(RefClass.DATA, 0))


LONG: dict[str, Callable[[int], Operator]] = {
    "argmax": argmax,
    "maximum": lambda n: ReduceMax(1, n, n, Ref(RefClass.DATA, 0)),
    "sum": lambda n: Contract(Variant.SUM, 1, 1, 1, n, Ref(RefClass.DATA, 0)),
    "dot": lambda n: Contract(Variant.DOT, 1, 1, 1, n, Ref(RefClass.DATA, 0), Ref(RefClass.DATA, 0)),
}


@pytest.mark.parametrize(
    ("kind", "most"), [("argmax", 29_000), ("maximum", 29_000), ("sum", 1_850_000), ("dot", 920_000)]
)
def test_proofs_too_large_for_a_transaction_are_refused(kind: str, most: int) -> None:
    validate(long_row(LONG[kind](most)), [(most, False)], 1)
    beyond = most + most // 20
    with pytest.raises(
        ProgramError, match=rf"operator 0 .* long: one element needs a witness of .* at most {MAX_WITNESS:,} fit"
    ):
        validate(long_row(LONG[kind](beyond)), [(beyond, False)], 1)


def test_a_scalar_is_opened_in_the_table_of_all_steps() -> None:
    """For any number of steps: it is not in the program."""
    tensors = tensors_of(long_row(argmax(1)), [(1, False)])
    scalar, datum = (
        Map(Function.NEG, (1,), (identity_access(Ref(c, 0), 1),), False) for c in (RefClass.SCALAR, RefClass.DATA)
    )
    more = witness_bytes(scalar, tensors, 1) - witness_bytes(datum, tensors, 1)
    assert more >= 32 * tensor_height(10**8)


@pytest.mark.parametrize("variant", [Variant.SUM, Variant.DOT])
def test_mode_logged_has_shorter_sums(variant: Variant) -> None:
    """Three accumulators cost more gas than one; rows of products are cut short by their witness already."""
    longest = {Variant.SUM: 1_280_000, Variant.DOT: 920_000}[variant]
    kind = LONG[variant.name.lower()]
    validate(long_row(kind(longest)), [(longest, False)], 1, "logged")
    beyond = longest + longest // 20
    with pytest.raises(ProgramError, match=r"operator 0 .* long: .*; at most 1(,280,000|20,000) "):
        validate(long_row(kind(beyond)), [(beyond, False)], 1, "logged")


def test_a_maximum_in_blocks_may_be_of_any_length() -> None:
    operator = ReduceMax(1, 10**8, 1024, Ref(RefClass.DATA, 0))
    validate(long_row(operator), [(10**8, False)], 1)


class Whole(list):
    """A list that is never sliced."""

    def __getitem__(self, index: Any) -> Any:
        assert isinstance(index, int), "a part of all operators for each of them: the square of their number in time"
        return super().__getitem__(index)


def test_the_check_of_an_operator_does_not_scan_all_others() -> None:
    tensors = tensors_of(PROGRAM, DATA)
    assert list(undecidable(PROGRAM, replace(tensors, operators=Whole(tensors.operators)))) == []
