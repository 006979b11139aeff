"""Chains of maps against one operator at a time: every function, every layout, every graph; the words are the same."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from certified_data import FAMILIES, draw
from small_programs import World, executed

from vgame.arithmetic.functions import BINARY_I, COMPARE_I, Function, arity
from vgame.arithmetic.numba import chains, codes, narrow, pointwise
from vgame.commit.tensor import to_words
from vgame.execute.chains import ALONE, is_identity, units_of
from vgame.execute.executor import Executor
from vgame.execute.kernels import Correct
from vgame.program.operators import (
    BROADCAST,
    Access,
    Contract,
    Copy,
    Dim,
    Map,
    Ref,
    RefClass,
    Variant,
    identity_access,
    immediate,
    yields_integer,
)
from vgame.program.program import Program, Source

FUSED = [f for f in Function if f not in ALONE]
#: One word, blocks that end one word early, in time and one word late, several blocks.
SIZES = [1, pointwise.BLOCK - 1, pointwise.BLOCK, pointwise.BLOCK + 1, 3 * pointwise.BLOCK + 7]


def single(function: Function, *operands: torch.Tensor) -> torch.Tensor:
    """The function as a chain of one."""
    inputs = len(operands)
    slots = [*range(inputs), *[0] * (3 - inputs)]
    code = np.array([[function, inputs, *slots]], np.int64)
    integer = yields_integer(function) or (function is Function.SELECT and operands[1].dtype == torch.int32)
    chain = chains.Chain(code, np.zeros(inputs + 1, np.uint32), inputs, (integer,), np.array([inputs]))
    (result,), (finite,) = chains.run(chain, operands[0].numel(), operands)
    assert finite == torch.isfinite(result.view(torch.float32)).all()
    return result


def operands_of(function: Function, family: str, *shape: int) -> list[torch.Tensor]:
    """Adversarial words; every second integer is small, for the special cases of shifts and divisions."""
    found = []
    for k in range(arity(function)):
        x = draw(family, *shape, seed=k)
        integer = function in BINARY_I or function in COMPARE_I or function is Function.ITOF
        if integer or (function is Function.SELECT and k == 0):
            x = x.view(torch.int32).clone()
            x.view(-1)[::2] %= 5
        found.append(x)
    return found


def words(x: torch.Tensor) -> list[int]:
    return to_words(x.reshape(-1)).tolist()


def test_codes_are_the_functions():
    found = {name: value for name, value in inspect.getmembers(codes) if name.isupper()}
    assert found == {f.name: int(f) for f in FUSED}
    assert not {pointwise.LOAD, pointwise.LOAD_HALVES, pointwise.STORE_HALVES} & set(Function)


@pytest.mark.parametrize("function", FUSED)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_function_is_its_kernel(function, family):
    for size in SIZES:
        operands = operands_of(function, family, size)
        assert words(single(function, *operands)) == words(Correct().map(function, *operands))


LAYOUTS = {
    "permuted": lambda x: x.view(6, 10, 30).permute(1, 0, 2),
    "transposed": lambda x: x.view(60, 30).mT,
    "channels": lambda x: x[:10].view(1, 10, 1).expand(6, 10, 30),
    "rows": lambda x: x[:30].expand(60, 30),
    "one word": lambda x: x[:1].expand(1800),
    "every second": lambda x: torch.cat([x, x])[::2],
    "many dimensions": lambda x: (
        x[:1200].view(2, 3, 4, 5, 10).permute(3, 1, 0, 2, 4)[..., None].expand(5, 3, 2, 4, 10, 1)
    ),
    "nine dimensions": lambda x: x[:512].view((2,) * 9).permute(7, 5, 3, 1, 0, 2, 4, 6, 8),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_layout(layout, threads, monkeypatch, threads_come_back):
    torch.set_num_threads(threads)
    monkeypatch.setattr("vgame.system.threads.WORTH", 64)
    x, y = draw("any bits", 1800), draw("normal", 1800, seed=1)
    left = layout(x)
    right = y[: left.numel()].view(left.shape)
    assert words(single(Function.SUB, left, right)) == words(left - right)
    assert words(single(Function.SUB, right, left)) == words(right - left)
    assert words(single(Function.SUB, left, left)) == words(left - left)


def test_a_product_and_a_sum_are_not_contracted():
    """x * x - RN(x * x) is zero; one rounding for both would leave the error of the product."""
    x = 1.0 + 2.0**-12 * torch.rand(5000)
    code = np.array([[Function.MUL, 2, 0, 0, 0], [Function.SUB, 1, 2, 3, 0], [Function.MUL, 3, 0, 0, 0]], np.int64)
    code = code[[2, 0, 1]]  # the product twice, then their difference
    chain = chains.Chain(code, np.zeros(4, np.uint32), 1, (False,), np.zeros(0, np.int64))
    ((found,), _) = chains.run(chain, 5000, [x])
    assert not found.any() and (x.double() * x.double() != (x * x).double()).any()


@pytest.mark.parametrize("word", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("threads", [1, 2])
def test_one_word_that_is_not_finite_is_found(word, threads, monkeypatch, threads_come_back):
    torch.set_num_threads(threads)
    monkeypatch.setattr("vgame.system.threads.WORTH", 64)
    x = torch.full((1000,), torch.finfo(torch.float32).max)
    x[::2] = -x[::2]
    x[::3] = 2.0**-149
    assert pointwise.all_finite(x)
    for place in (0, 499, 500, 999):
        y = x.clone()
        y[place] = word
        assert not pointwise.all_finite(y)


# --- graphs ---

SPACE, WORDS = (6, 5, 40), 1200
WAYS = {
    "in place": lambda ref: (identity_access(ref, WORDS), (WORDS,)),
    "in place, three sizes": lambda ref: (Access(ref, (Dim(WORDS),), ((0, 200), (0, 40), (0, 1))), SPACE),
    "permuted": lambda ref: (Access(ref, (Dim(5), Dim(6), Dim(40)), ((1, 1), (0, 1), (2, 1))), SPACE),
    "shifted": lambda ref: (Access(ref, (Dim(WORDS, -3),), ((0, 1),), 0x40000000), (WORDS,)),
    "backwards": lambda ref: (Access(ref, (Dim(WORDS, WORDS - 1),), ((0, -1),)), (WORDS,)),
    "one row": lambda ref: (Access(ref, (Dim(WORDS, 80),), ((BROADCAST, 0), (BROADCAST, 0), (0, 1))), SPACE),
}
PURE = (Function.ADD, Function.SUB, Function.MUL, Function.MAX, Function.NEG, Function.ABS, Function.EXP)


def graph(draws: random.Random) -> list:
    """Maps that read the state, scalars, constants and each other in every way, and sums and copies between them."""
    operators = []
    for i in range(draws.randint(2, 30)):
        refs = [Ref(RefClass.OPERATOR, k) for k in range(max(0, i - 6), i) if operators[k].elements == WORDS]
        refs += [Ref(RefClass.STATE, 0), Ref(RefClass.STATE, 1)]
        kind = draws.random()
        if kind < 0.08:
            operators.append(Contract(Variant.SUM, 1, 30, 1, 40, draws.choice(refs)))
            continue
        access, sizes = WAYS[draws.choice([*WAYS][:2] * 4 + [*WAYS])](draws.choice(refs))
        if kind < 0.16:
            operators.append(Copy(sizes, (access,), False))
            continue
        function = draws.choice(PURE)
        accesses = [access]
        for _ in range(arity(function) - 1):
            rank = len(sizes)
            others = [
                immediate(0x3F800001, rank),
                Access(Ref(RefClass.SCALAR, 1), (Dim(1),), ((BROADCAST, 0),) * rank),
                *[
                    way(ref)
                    for ref in refs
                    for way in (lambda r: WAYS["in place"](r)[0], lambda r: WAYS["shifted"](r)[0])
                ],
            ]
            if rank == 3:
                others[2:] = [
                    WAYS[name](ref)[0] for ref in refs for name in ("in place, three sizes", "permuted", "one row")
                ]
            accesses.append(draws.choice(others))
        draws.shuffle(accesses)
        operators.append(Map(function, sizes, tuple(accesses), False))
    return operators


@pytest.mark.parametrize("seed", range(60))
def test_chains_are_their_operators(seed):
    """Every kept output, with any other readers."""
    draws = random.Random(seed)
    operators = graph(draws)
    world = World(
        state=[draw("normal", WORDS, seed=seed), draw("any bits", WORDS, seed=seed)], scalars=torch.randn(1, 3)
    )
    expected = executed(operators, world)
    program = world.program(operators)
    kept = sorted(draws.sample(range(len(operators)), draws.randint(1, len(operators))))
    sources = tuple(Source(Ref(RefClass.OPERATOR, i), operators[i].elements) for i in kept)
    program = Program(program.operators, sources, (), 0, 3, program.loss)
    result = Executor(program, (), world.scalars, world.seed).step(1, world.state)
    assert [words(t) for t in result.state] == [expected[i] for i in kept]
    infinite = [i for i in kept if not all(w & 0x7F800000 != 0x7F800000 for w in expected[i])]
    assert result.not_finite == (infinite[0] if infinite else None)


def test_the_fields_of_a_chain():
    """Three maps in place are one unit; a reader at other positions ends the chain, and only outputs with other readers
    are stored."""
    first, second = Ref(RefClass.OPERATOR, 0), Ref(RefClass.OPERATOR, 1)
    negative = Map(Function.NEG, (WORDS,), (identity_access(Ref(RefClass.STATE), WORDS),), False)
    twice = Map(Function.ADD, (WORDS,), (identity_access(first, WORDS), identity_access(first, WORDS)), False)
    third = Map(Function.ABS, (WORDS,), (identity_access(second, WORDS),), False)
    late = Map(Function.ABS, (WORDS,), (WAYS["shifted"](second)[0],), False)
    units = units_of([negative, twice, third], {2}, {2}, fuse=True)
    assert [unit.members for unit in units] == [(0, 1, 2)] and units[0].fused.results == units[0].fused.checked == (2,)
    units = units_of([negative, twice, late, third], {3}, {3}, fuse=True)
    assert [unit.members for unit in units] == [(0, 1), (2,), (3,)] and units[0].fused.results == (1,)
    assert [unit.free for unit in units] == [(0,), (2,), (1,)]
    assert [unit.members for unit in units_of([negative, twice, third], {2}, {2}, fuse=False)] == [(0,), (1,), (2,)]


def test_the_first_words_of_an_output_are_no_link_of_a_chain():
    """A map over four words of an output of six; and the first ones, those behind them, or all from last to first, are
    not the output."""
    ways = [(6, 0, 1), (5, 0, 1), (4, 2, 1), (6, 5, -1)]
    accesses = [Access(Ref(RefClass.OPERATOR, 0), (Dim(6, first),), ((0, way),)) for _, first, way in ways]
    found = [is_identity(access, (size,)) for access, (size, _, _) in zip(accesses, ways, strict=True)]
    assert found == [True, False, False, False]
    six = Map(Function.NEG, (6,), (identity_access(Ref(RefClass.STATE, 0), 6),), False)
    four = Map(Function.NEG, (4,), (identity_access(Ref(RefClass.OPERATOR, 0), 6),), False)
    assert [unit.members for unit in units_of([six, four], {0, 1}, (), True)] == [(0,), (1,)]


def test_a_chain_is_no_longer_than_its_blocks_fit(monkeypatch):
    """A map of two chains that are too long together begins a new one, and so does a map of a full one."""
    monkeypatch.setattr("vgame.execute.chains.LONGEST", 4)
    operators = []
    for i in range(11):
        read = Ref(RefClass.STATE) if i in (0, 3) else Ref(RefClass.OPERATOR, i - 1)
        other = identity_access(Ref(RefClass.OPERATOR, 2), WORDS) if i == 6 else immediate(0x3F800000 + i)
        operators.append(Map(Function.ADD, (WORDS,), (identity_access(read, WORDS), other), False))
    units = units_of(operators, {10}, {10}, fuse=True)
    assert [unit.members for unit in units] == [(0, 1, 2), (3, 4, 5), (6, 7, 8, 9), (10,)]
    world = World(state=[draw("normal", WORDS)])
    program = world.program(operators)
    program = Program(program.operators, (Source(Ref(RefClass.OPERATOR, 10), WORDS),), (), 0, 0, program.loss)
    assert (
        words(Executor(program, (), world.scalars, 0).step(1, world.state).state[0]) == executed(operators, world)[10]
    )


def test_the_rest_of_a_sum_is_exact():
    """Also with the largest words, where 2Sum overflows, and with subnormal ones."""
    drawn = random.Random(0)
    ends = [0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FFFFE, 0x00000001, 0x80000001, 0x00800000, 0x7E800000, 0x3F800000]
    pairs = [(x, drawn.getrandbits(32)) for x in ends for _ in range(200)]
    pairs += [(x, x + drawn.randrange(-(1 << 26), 1 << 26) & 0xFFFFFFFF) for x in ends for _ in range(200)]
    found = 0
    for x, y in [*pairs, *((y, x) for x, y in pairs)]:
        a, b = (np.uint32(word).view(np.float32) for word in (x, y))
        with np.errstate(all="ignore"):
            total = np.float32(a + b)
        if np.isfinite(total):
            exact = Fraction(float(a)) + Fraction(float(b)) - Fraction(float(total))
            assert Fraction(float(narrow.sum_rest(a, b, total))) == exact, (hex(x), hex(y))
            found += exact != 0
    assert found > 2000
