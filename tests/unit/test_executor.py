"""Every kind of operator and every function: the executor's words are the reference's words, bit for bit (mode
`correct`)."""

from __future__ import annotations

import math

import pytest
import torch
from executor_programs import FLOATS, INFINITY, INTEGERS, NAN, rows, state, table, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import World, check

from vgame.arithmetic.functions import Function, arity
from vgame.commit.tensor import to_words
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
    ReduceMax,
    Ref,
    RefClass,
    Variant,
    identity_access,
    immediate,
    operand_types,
    yields_integer,
)

pytestmark = pytest.mark.usefixtures("one_thread")


FLOATS += [0x3FC00000, 0x40200000, 0x42B17218, 0x4AFFFFFF, 0x4B000001, 0x4B800000, 0x4EFFFFFF, 0x4F000000]


FLOATS += [0x5F000001, 0x7F000000, 0x7F7FFFFF, INFINITY]


FLOATS += [word | 0x80000000 for word in FLOATS] + [NAN]


INTEGERS += [0x7FFFFFFF, 0x80000000, 0x80000001, 0xFF000000, 0xFEFFFFFF, 0xFFFF0000, 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF]


@pytest.mark.parametrize("function", Function, ids=lambda f: f.name)
def test_functions_on_adversarial_words(function: Function) -> None:
    for integer in (False, True) if function is Function.SELECT else (yields_integer(function),):
        operator, world = table(function, integer=integer)
        check([operator], world)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=40, max_size=40), st.lists(st.integers(0, 2**32 - 1), min_size=40))
@pytest.mark.parametrize("function", [f for f in Function if arity(f) < 3], ids=lambda f: f.name)
def test_functions_on_drawn_words(function: Function, first: list[int], second: list[int]) -> None:
    integer = yields_integer(function)
    types = operand_types(Map(function, (40,), (immediate(0),) * arity(function), integer))
    operands = [tensor(w[:40], integer=t) for w, t in zip((first, second), types, strict=False)]
    accesses = tuple(identity_access(state(i), 40) for i in range(arity(function)))
    check([Map(function, (40,), accesses, integer)], World(state=operands))


def test_the_ends_of_int32() -> None:
    pairs = {Function.IDIV: 0x80000000, Function.IMOD: 0, Function.ISUB: 0x80000001, Function.IMUL: 0x80000000}
    for function, wanted in pairs.items():
        operator = Map(function, (1,), (immediate(0x80000000), immediate(0xFFFFFFFF)), True)
        assert check([operator], World()) == [[wanted]], function.name
    by_zero = [Map(f, (1,), (immediate(7), immediate(0)), True) for f in (Function.IDIV, Function.IMOD)]
    assert check(by_zero, World()) == [[0], [0]]


# ---- sources of operands ----


def test_operands_of_every_class() -> None:
    world = World(
        state=[torch.tensor([1.5, -2.0])],
        constants=[torch.tensor([0.25, 4.0])],
        data=[torch.tensor([3.0, -0.0])],
        scalars=torch.tensor([[9.0, 9.0], [0.1, 7.0]]),
        step=2,
    )
    scalar = Access(Ref(RefClass.SCALAR, 1), (), ((BROADCAST, 0),))
    refs = [state(), Ref(RefClass.CONSTANT), Ref(RefClass.DATA), Ref(RefClass.OPERATOR, 0)]
    operators = [Map(Function.ADD, (2,), (identity_access(state(), 2), scalar), False)]
    operators += [Map(Function.MUL, (2,), (identity_access(ref, 2), immediate(0x40000000)), False) for ref in refs]
    words = check(operators, world)
    assert [tensor(w, integer=False).tolist() for w in words] == [
        [8.5, 5.0], [3.0, -4.0], [0.5, 8.0], [6.0, -0.0], [17.0, 10.0],
    ]  # fmt: skip


def test_a_scalar_is_read_from_the_row_of_the_step() -> None:
    scalars = torch.tensor([[1.0], [2.0], [3.0]])
    operator = Map(Function.NEG, (1,), (Access(Ref(RefClass.SCALAR), (), ((BROADCAST, 0),)),), False)
    for step in (1, 2, 3):
        assert check([operator], World(scalars=scalars, step=step)) == [[0x80000000 | to_words(scalars)[step - 1]]]


def test_a_strided_output_is_read_row_major() -> None:
    flip = Copy((2, 3), (Access(state(), (Dim(2), Dim(3)), ((0, 1), (1, 1))),), False)
    turn = Copy((3, 2), (Access(Ref(RefClass.OPERATOR, 0), (Dim(2), Dim(3)), ((1, 1), (0, 1))),), False)
    rows = Ref(RefClass.OPERATOR, 1)
    users = [
        Contract(Variant.SUM, 1, 3, 1, 2, rows),
        Contract(Variant.DOT, 1, 3, 2, 2, rows, Ref(RefClass.STATE, 1)),
        ReduceMax(3, 2, 2, rows),
        ArgMax(2, 3, rows),
        Map(Function.NEG, (6,), (identity_access(rows, 6),), False),
        Map(Function.NEG, (3, 2), (Access(rows, (Dim(6),), ((0, 2), (0, 1))),), False),
    ]
    world = World(state=[torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), torch.tensor([1.0, 10.0, 100.0, 1000.0])])
    words = check([flip, turn, *users], world)
    assert tensor(words[2], integer=False).tolist() == [5.0, 7.0, 9.0]


@st.composite
def contractions(draw: st.DrawFn) -> tuple[Contract, World]:
    variant = draw(st.sampled_from(Variant))
    batch, m, n, k = (draw(st.integers(1, top)) for top in (3, 4, 4, 9))
    if variant is Variant.SUM:
        operator = Contract(variant, 1, m, 1, k, state())
        return operator, World(state=[draw(rows(m * k))])
    operator = Contract(variant, batch, m, n, k, state(), state(1), draw(st.booleans()), draw(st.booleans()))
    right = draw(rows(operator.b_elements))
    if variant is Variant.DOT:
        return operator, World(state=[draw(rows(operator.a_elements)), right])
    picks = st.integers(-2, m + 1) | st.sampled_from([-(2**31), 2**31 - 1])
    index = draw(st.lists(picks, min_size=operator.a_elements, max_size=operator.a_elements))
    return operator, World(state=[torch.tensor(index, dtype=torch.int32), right])


@settings(max_examples=150, deadline=None)
@given(contractions())
def test_contractions(case: tuple[Contract, World]) -> None:
    check([case[0]], case[1])


@pytest.mark.parametrize("shared_b", [False, True])
@pytest.mark.parametrize("shared_a", [False, True])
@pytest.mark.parametrize("variant", [Variant.DOT, Variant.ONE_HOT], ids=lambda v: v.name)
def test_batches_that_are_broadcast(variant: Variant, shared_a: bool, shared_b: bool) -> None:
    operator = Contract(variant, 3, 2, 2, 4, state(), state(1), shared_a, shared_b)
    values = torch.arange(1.0, operator.b_elements + 1)
    left = torch.arange(operator.a_elements) % 3
    left = left.int() if variant is Variant.ONE_HOT else left.float()
    check([operator], World(state=[left, values]))


@pytest.mark.parametrize("k", [1024, 1025, 2049])
@pytest.mark.parametrize("variant", Variant, ids=lambda v: v.name)
def test_sums_decided_in_blocks(variant: Variant, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    left, right = (
        torch.randn(2 * k, generator=generator) * 2.0 ** torch.randint(-30, 30, (2 * k,), generator=generator)
        for _ in range(2)
    )
    left[0], right[0], left[k - 1], right[k - 1] = 2.0**60, 2.0**60, -(2.0**60), 2.0**60  # the large terms cancel
    if variant is Variant.ONE_HOT:
        left = torch.randint(-1, 3, (k,), generator=generator, dtype=torch.int32)
    operator = Contract(variant, 1, 2, 1 if variant is Variant.SUM else 2, k, state(), state(1))
    if variant is Variant.SUM:
        operator = Contract(variant, 1, 2, 1, k, state())
    assert operator.blocks == math.ceil(k / 1024)
    check([operator], World(state=[left, right]))


# ---- gathers, maxima ----


@settings(max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_gathers(data: st.DataObject, integer: bool) -> None:
    count, width, height = (data.draw(st.integers(1, top)) for top in (6, 3, 4))
    picks = st.integers(-1, height) | st.sampled_from([-(2**31), 2**31 - 1])
    index = data.draw(st.lists(picks, min_size=count, max_size=count))
    words = data.draw(
        st.lists(st.sampled_from(INTEGERS if integer else FLOATS), min_size=height * width, max_size=height * width)
    )
    fill = data.draw(st.sampled_from([0, NAN, 0x80000000]))
    operator = Gather(count, width, height, state(), state(1), fill, integer)
    check([operator], World(state=[torch.tensor(index, dtype=torch.int32), tensor(words, integer=integer)]))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_maxima(data: st.DataObject, integer: bool) -> None:
    height, length, block = (data.draw(st.integers(1, top)) for top in (3, 9, 10))
    pool = st.sampled_from(INTEGERS if integer else [*FLOATS, 0x0, 0x80000000])
    words = data.draw(st.lists(pool, min_size=height * length, max_size=height * length))
    operators: list[Operator] = [ReduceMax(height, length, block, state(), integer)]
    if not integer:
        operators.append(ArgMax(height, length, state()))
    check(operators, World(state=[tensor(words, integer=integer)]))


def test_a_maximum_of_negative_integers_is_negative() -> None:
    operator = ReduceMax(1, 3, 2, state(), True)
    words = check([operator], World(state=[torch.tensor([-5, -(2**31), -7], dtype=torch.int32)]))
    assert tensor(words[0], integer=True).tolist() == [-5, -7]
