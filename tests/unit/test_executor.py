"""Every kind of operator and every function: the executor's words are the reference's words, bit for bit (mode
`correct`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import World, check, executed

from vgame.arithmetic.functions import Function, arity
from vgame.arithmetic.reference.philox import random_word, shuffle_index
from vgame.commit.tensor import from_words, to_words
from vgame.execute.chains import FAR, units_of
from vgame.execute.executor import MOST_PENDING, Executor
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
    operand_types,
    yields_integer,
)
from vgame.program.program import Program, Source
from vgame.system.threads import Later

pytestmark = pytest.mark.usefixtures("one_thread")
NAN, ONE, INFINITY = 0x7FC00000, 0x3F800000, 0x7F800000
#: Zeros, subnormals and their border, one and its neighbours, where integers end, the largest, infinities, NaN.
FLOATS = [0x0, 0x1, 0x2, 0x7FFFFF, 0x800000, 0x800001, 0x33800000, 0x3EFFFFFF, 0x3F000000, 0x3F7FFFFF, ONE, 0x3F800001]
FLOATS += [0x3FC00000, 0x40200000, 0x42B17218, 0x4AFFFFFF, 0x4B000001, 0x4B800000, 0x4EFFFFFF, 0x4F000000]
FLOATS += [0x5F000001, 0x7F000000, 0x7F7FFFFF, INFINITY]
FLOATS += [word | 0x80000000 for word in FLOATS] + [NAN]
#: Zero, ones, shift counts around 32, where binary32 stops to hold integers, the ends of int32.
INTEGERS = [0, 1, 2, 3, 5, 31, 32, 33, 255, 0xFFFF, 0x10000, 0x10001, 0xFFFFFF, 0x1000000, 0x1000001, 0x7FFFFFFE]
INTEGERS += [0x7FFFFFFF, 0x80000000, 0x80000001, 0xFF000000, 0xFEFFFFFF, 0xFFFF0000, 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF]


def tensor(words: Sequence[int], *, integer: bool) -> torch.Tensor:
    return from_words(np.array(words, np.uint32), integer=integer)


def state(index: int = 0) -> Ref:
    return Ref(RefClass.STATE, index)


# ---- functions ----


def table(function: Function, *, integer: bool) -> tuple[Map, World]:
    """A map over every combination of the adversarial words of its operands' types."""
    count = arity(function)
    draft = Map(function, (1,), (immediate(0),) * count, integer)
    words = [INTEGERS if t else FLOATS for t in operand_types(draft)]
    if function is Function.SELECT:
        words[0] = [0, 1, 0x80000000, 0xFFFFFFFF]
    sizes = tuple(map(len, words))
    accesses = tuple(
        Access(state(i), (Dim(n),), tuple((0, 1) if j == i else (BROADCAST, 0) for j in range(count)))
        for i, n in enumerate(sizes)
    )
    operands = [tensor(w, integer=t) for w, t in zip(words, operand_types(draft), strict=True)]
    return Map(function, sizes, accesses, integer), World(state=operands)


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


# ---- where operands come from ----


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


def test_a_scalar_is_this_steps_row() -> None:
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


# ---- contractions ----

float_words = st.sampled_from(FLOATS)
ordinary = st.integers(0, 0x7FFFFF).map(lambda f: 0x3F000000 | f) | st.integers(0, 0x7FFFFF).map(
    lambda f: 0xBF000000 | f
)


@st.composite
def rows(draw: st.DrawFn, count: int) -> torch.Tensor:
    """Ordinary numbers, some of them replaced by adversarial ones in half of the cases."""
    words = draw(st.lists(ordinary, min_size=count, max_size=count))
    if draw(st.booleans()):
        changed = draw(st.dictionaries(st.integers(0, count - 1), float_words, max_size=4))
        words = [changed.get(i, w) for i, w in enumerate(words)]
    return tensor(words, integer=False)


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
def test_batches_that_serve_all(variant: Variant, shared_a: bool, shared_b: bool) -> None:
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


# ---- randomness ----


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 2**34) | st.just(2**32), st.integers(1, 9), st.integers(0, 3))
def test_random_words_are_the_pure_python_ones(seed: int, step: int, elements: int, before: int) -> None:
    operators = [Philox(1)] * before + [Philox(elements)]
    scalars = torch.zeros(1, 0).expand(step, 0)
    words = executed(operators, World(seed=seed, step=step, scalars=scalars))
    assert words[before] == [random_word(seed, step, before, e) for e in range(elements)]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**64 - 1), st.integers(1, 2**34), st.integers(1, 6), st.integers(1, 2**31 - 1) | st.integers(1, 9)
)
def test_shuffled_indices_are_the_pure_python_ones(seed: int, step: int, elements: int, population: int) -> None:
    scalars = torch.zeros(1, 0).expand(step, 0)
    words = executed([Shuffle(elements, population)], World(seed=seed, step=step, scalars=scalars))
    assert words[0] == [shuffle_index(seed, step, e, elements, population) for e in range(elements)]


def test_an_epoch_visits_every_sample_once() -> None:
    operator, seen = Shuffle(6, 20), []
    for step in range(1, 11):
        seen += executed([operator], World(step=step, scalars=torch.zeros(10, 0)))[0]
    epochs = [seen[0:20], seen[20:40], seen[40:60]]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


# ---- whole programs of all kinds, one operator feeding the next ----


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Operator], World]:
    """Up to 8 operators; each reads what stands before it, over its whole length or strided."""
    scalars = torch.tensor([[0.5, -3.0], [1e-40, 1e30]])
    floats = [(Ref(RefClass.STATE, 0), 12), (Ref(RefClass.CONSTANT, 0), 6), (Ref(RefClass.DATA, 0), 4)]
    integers = [(Ref(RefClass.STATE, 1), 6), (Ref(RefClass.DATA, 1), 12)]
    picks = {n: draw(st.lists(st.sampled_from(FLOATS), min_size=n, max_size=n)) for n in (12, 6, 4)}
    whole = {n: draw(st.lists(st.sampled_from(INTEGERS), min_size=n, max_size=n)) for n in (6, 12)}
    world = World(
        state=[tensor(picks[12], integer=False), tensor(whole[6], integer=True)],
        constants=[tensor(picks[6], integer=False)],
        data=[tensor(picks[4], integer=False), tensor(whole[12], integer=True)],
        scalars=scalars,
        step=draw(st.sampled_from([1, 2])),
    )
    operators: list[Operator] = []
    for i in range(draw(st.integers(1, 8))):
        operators.append(draw(operator_over(floats, integers)))
        (integers if operators[-1].integer else floats).append((Ref(RefClass.OPERATOR, i), operators[-1].elements))
    return operators, world


def operator_over(floats: list, integers: list) -> st.SearchStrategy[Operator]:
    kinds = [mapped(floats, integers), mapped(floats, integers), copied(floats, integers), reduced(floats, integers)]
    kinds += [contracted(floats, integers), looked_up(floats, integers)]
    random = st.one_of(st.builds(Philox, st.integers(1, 9)), st.builds(Shuffle, st.integers(1, 9), st.integers(1, 9)))
    return st.one_of(*kinds, random)


@st.composite
def strided(draw: st.DrawFn, pool: list, scalar: bool) -> Access:
    """Any access of one of the tensors over an index space of one dimension."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return immediate(draw(st.sampled_from([0, ONE, NAN, 0x80000000])))
    if kind == 1 and scalar:
        return Access(Ref(RefClass.SCALAR, draw(st.integers(0, 1))), (), ((BROADCAST, 0),))
    ref, elements = draw(st.sampled_from(pool))
    dim = Dim(elements, draw(st.integers(-2, elements - 1)), draw(st.sampled_from([1, 1, 2])))
    return Access(ref, (dim,), ((0, draw(st.integers(-2, 2))),), draw(st.sampled_from([0, NAN, 5])))


@st.composite
def mapped(draw: st.DrawFn, floats: list, integers: list) -> Map:
    function, size = draw(st.sampled_from(Function)), draw(st.integers(1, 6))
    integer = draw(st.booleans()) if function is Function.SELECT else yields_integer(function)
    draft = Map(function, (size,), (immediate(0),) * arity(function), integer)
    parts = [draw(strided(integers if t else floats, not t)) for t in operand_types(draft)]
    return Map(function, (size,), tuple(parts), integer)


@st.composite
def copied(draw: st.DrawFn, floats: list, integers: list) -> Copy:
    integer, size = draw(st.booleans()), draw(st.integers(1, 9))
    part = strided(integers if integer else floats, not integer)
    return Copy((size,), tuple(draw(st.lists(part, min_size=1, max_size=3))), integer)


@st.composite
def reduced(draw: st.DrawFn, floats: list, integers: list) -> Operator:
    integer = draw(st.booleans())
    ref, elements = draw(st.sampled_from(integers if integer else floats))
    length = draw(st.sampled_from([d for d in range(1, elements + 1) if elements % d == 0]))
    if not integer and draw(st.booleans()):
        return ArgMax(elements // length, length, ref)
    return ReduceMax(elements // length, length, draw(st.integers(1, length)), ref, integer)


@st.composite
def contracted(draw: st.DrawFn, floats: list, integers: list) -> Contract:
    (a, size_a), (b, size_b) = draw(st.sampled_from(floats)), draw(st.sampled_from(floats))
    common = [d for d in range(1, size_a + 1) if size_a % d == 0 and size_b % d == 0]
    k = draw(st.sampled_from(common))
    if draw(st.booleans()):
        return Contract(Variant.SUM, 1, size_a // k, 1, k, a)
    fitting = [(ref, n) for ref, n in integers if size_b % n == 0]
    if fitting and draw(st.booleans()):
        index, n = draw(st.sampled_from(fitting))
        return Contract(Variant.ONE_HOT, 1, draw(st.integers(1, 4)), size_b // n, n, index, b)
    return Contract(Variant.DOT, 1, size_a // k, size_b // k, k, a, b)


@st.composite
def looked_up(draw: st.DrawFn, floats: list, integers: list) -> Gather:
    integer = draw(st.booleans())
    index, count = draw(st.sampled_from(integers))
    table, size = draw(st.sampled_from(integers if integer else floats))
    width = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    return Gather(count, width, size // width, index, table, draw(st.sampled_from([0, NAN])), integer)


@settings(max_examples=300, deadline=None)
@given(programs())
def test_programs_of_all_kinds(case: tuple[list[Operator], World]) -> None:
    check(*case)


# ---- a step ----


def test_a_replaced_output_is_what_later_operators_read() -> None:
    double = Map(Function.ADD, (2,), (identity_access(state(), 2),) * 2, False)
    negate = Map(Function.NEG, (2,), (identity_access(Ref(RefClass.OPERATOR, 0), 2),), False)
    world, seen = World(state=[torch.tensor([1.0, 2.0])]), {}

    def tap(index: int, output: torch.Tensor) -> torch.Tensor:
        seen[index] = output.tolist()
        return torch.tensor([5.0, 6.0]) if index == 0 else output

    executor = Executor(world.program([double, negate]), [], world.scalars, 0)
    executor.step(1, world.state, tap)
    assert seen[0] == [2.0, 4.0] and seen[1] == [-5.0, -6.0]


LATE = 9  # products that wait


def products_read_late() -> tuple[list[Operator], World]:
    """Some products, some maps, and readers of the products in an order of their own: whole, turned, added up,
    multiplied."""
    operators: list[Operator] = [Contract(Variant.DOT, 1, 8 + i, 12, 30, state(i), state(LATE)) for i in range(LATE)]
    double = Map(Function.ADD, (240,), (identity_access(state(), 240),) * 2, False)
    operators += [double] * (FAR + LATE)
    for i in (5, 0, 8, 3, 7):
        product, rows = Ref(RefClass.OPERATOR, i), 8 + i
        operators.append(Map(Function.NEG, (12 * rows,), (identity_access(product, 12 * rows),), False))
        operators.append(Copy((12, rows), (Access(product, (Dim(12 * rows),), ((0, 1), (0, 12))),), False))
        operators.append(Contract(Variant.SUM, 1, rows, 1, 12, product))
        operators.append(Contract(Variant.DOT, 1, rows, rows, 12, product, product))
    generator = torch.Generator().manual_seed(4)
    return operators, World(state=[torch.randn(rows * 30, generator=generator) for rows in (*range(8, 8 + LATE), 12)])


def keeping_everything(operators: list[Operator], world: World) -> Executor:
    """An executor whose state afterwards is every operator's output."""
    program = world.program(operators)
    sources = tuple(Source(Ref(RefClass.OPERATOR, i), op.elements) for i, op in enumerate(operators))
    return Executor(Program(program.operators, sources, (), 0, 0, program.loss), (), world.scalars, 0)


def test_products_that_nobody_reads_for_long(monkeypatch: pytest.MonkeyPatch, threads_come_back: None) -> None:
    """More than may wait at a time; some are nobody's but the state's, in the end."""
    torch.set_num_threads(3)
    monkeypatch.setattr("vgame.arithmetic.torch.products.WORTH", 1)
    monkeypatch.setattr("vgame.execute.chains.WORTH", 1)
    operators, world = products_read_late()
    expected = executed(operators, world)
    executor = keeping_everything(operators, world)
    assert sum(unit.patient for unit in executor._units(fuse=True)[0]) > LATE > MOST_PENDING
    for _ in range(5):
        assert [to_words(t).tolist() for t in executor.step(1, world.state).state] == expected


def test_a_product_that_nobody_reads_is_computed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every step, so that all take equally long."""
    monkeypatch.setattr("vgame.execute.chains.WORTH", 1)
    product = Contract(Variant.DOT, 1, 8, 8, 8, Ref(RefClass.STATE, 0), Ref(RefClass.STATE, 0))
    unread, kept = (units_of([product], kept, (), True)[0] for kept in ((), {0}))
    assert not unread.patient and kept.patient


def test_an_error_leaves_no_product_behind(monkeypatch: pytest.MonkeyPatch, threads_come_back: None) -> None:
    """Nothing goes on when a step has failed, and the next one is right."""
    torch.set_num_threads(3)
    monkeypatch.setattr("vgame.execute.chains.WORTH", 1)
    operators, world = products_read_late()
    expected = executed(operators, world)
    executor = keeping_everything(operators, world)
    begun = []
    with monkeypatch.context() as broken:
        broken.setattr(Later, "__init__", lambda self, real=Later.__init__: (real(self), begun.append(self))[0])
        broken.setattr("vgame.execute.executor.chains.run", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            executor.step(1, world.state)
    assert len(begun) == LATE and not any(work._offers for work in begun)
    assert [to_words(t).tolist() for t in executor.step(1, world.state).state] == expected


def test_operands_are_never_changed() -> None:
    world = World(state=[torch.tensor([-0.0, 1.0, torch.nan])])
    before = world.state[0].clone().view(torch.int32)
    access = identity_access(state(), 3)
    executed([Map(f, (3,), (access,) * arity(f), False) for f in Function if arity(f) < 3 and not yields_integer(f)
              and not operand_types(Map(f, (1,), (access,) * arity(f), False))[0]], world)  # fmt: skip
    assert torch.equal(world.state[0].view(torch.int32), before)
