"""Whole programs of all kinds of operators in the executor: random words, drawn programs, operands that are kept."""

from __future__ import annotations

import pytest
import torch
from executor_programs import FLOATS, INTEGERS, NAN, ONE, state, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import World, check, executed

from vgame.arithmetic.functions import ELEMENTARY, Function, arity
from vgame.arithmetic.reference.philox import random_word, shuffle_index
from vgame.commit.tensor import to_words
from vgame.execute.chains import FAR, units_of
from vgame.execute.executor import Executor
from vgame.execute.ordinary import MOST_PENDING
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
    """Up to 8 operators; each reads earlier ones, over their whole length or strided."""
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


@pytest.mark.parametrize("function", [*sorted(ELEMENTARY), Function.NEG])
@pytest.mark.parametrize("stride", [1, 0])
@pytest.mark.parametrize("size", [1, 6, 17])
def test_a_map_over_the_first_words_of_an_output_writes_only_its_own_words(
    function: Function, stride: int, size: int
) -> None:
    front = Map(function, (size,), (Access(Ref(RefClass.OPERATOR, 0), (Dim(18),), ((0, stride),)),), False)
    check([ReduceMax(18, 1, 1, state()), front], World(state=[tensor([ONE] * 18, integer=False)]))


# ---- a step ----


def test_later_operators_read_a_replaced_output() -> None:
    double = Map(Function.ADD, (2,), (identity_access(state(), 2),) * 2, False)
    negate = Map(Function.NEG, (2,), (identity_access(Ref(RefClass.OPERATOR, 0), 2),), False)
    world, seen = World(state=[torch.tensor([1.0, 2.0])]), {}

    def tap(index: int, output: torch.Tensor) -> torch.Tensor:
        seen[index] = output.tolist()
        return torch.tensor([5.0, 6.0]) if index == 0 else output

    executor = Executor(world.program([double, negate]), [], world.scalars, 0)
    executor.step(1, world.state, tap)
    assert seen[0] == [2.0, 4.0] and seen[1] == [-5.0, -6.0]


LATE = 9  # pending products


def products_read_late() -> tuple[list[Operator], World]:
    """Some products, some maps, and readers of the products in another order: whole, transposed, summed, multiplied."""
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
    """An executor whose state afterwards is every operator's output, in the ordinary way."""
    program = world.program(operators)
    sources = tuple(Source(Ref(RefClass.OPERATOR, i), op.elements) for i, op in enumerate(operators))
    executor = Executor(Program(program.operators, sources, (), 0, 0, program.loss), (), world.scalars, 0)
    executor.plans = False
    return executor


def test_products_that_are_read_much_later(monkeypatch: pytest.MonkeyPatch, threads_come_back: None) -> None:
    """More products than may be pending; some are read only by the state, at the end."""
    torch.set_num_threads(3)
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.WORTH", 1)
    monkeypatch.setattr("vgame.execute.chains.WORTH", 1)
    operators, world = products_read_late()
    expected = executed(operators, world)
    executor = keeping_everything(operators, world)
    assert sum(unit.patient for unit in executor._units(fuse=True)[0]) > LATE > MOST_PENDING
    for _ in range(5):
        assert [to_words(t).tolist() for t in executor.step(1, world.state).state] == expected


def test_a_product_without_readers_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps take equally long."""
    monkeypatch.setattr("vgame.execute.chains.WORTH", 1)
    product = Contract(Variant.DOT, 1, 8, 8, 8, Ref(RefClass.STATE, 0), Ref(RefClass.STATE, 0))
    unread, kept = (units_of([product], kept, (), True)[0] for kept in ((), {0}))
    assert not unread.patient and kept.patient


def test_an_error_leaves_no_product_behind(monkeypatch: pytest.MonkeyPatch, threads_come_back: None) -> None:
    """No work continues after a failed step, and the next step is right."""
    torch.set_num_threads(3)
    monkeypatch.setattr("vgame.execute.chains.WORTH", 1)
    operators, world = products_read_late()
    expected = executed(operators, world)
    executor = keeping_everything(operators, world)
    begun = []
    with monkeypatch.context() as broken:
        broken.setattr(Later, "__init__", lambda self, real=Later.__init__: (real(self), begun.append(self))[0])
        broken.setattr("vgame.execute.ordinary.chains.run", lambda *_: 1 // 0)
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
