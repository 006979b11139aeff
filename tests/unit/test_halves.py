"""bfloat16 outputs in 2 bytes a word: which outputs are stored so, and that kernels read and write the same words."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from small_programs import World

from vgame.arithmetic import certified
from vgame.arithmetic.functions import Function
from vgame.arithmetic.indexed_matrix import IndexedMatrix, in_place
from vgame.arithmetic.numba.compiled import compiled
from vgame.arithmetic.torch import digits, products
from vgame.commit.tensor import to_words
from vgame.execute.executor import Executor
from vgame.execute.memory import words_at_once
from vgame.program.operators import (
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
    immediate,
)
from vgame.program.program import Source

EDGES = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0**-133, -(2.0**-126), 2.0**127 * 1.9921875, 1.0, -1.5]


def numbers(*shape: int, edges: bool = False) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    x = torch.randn(shape).bfloat16()
    if edges:
        x.view(-1)[: len(EDGES)] = torch.tensor(EDGES).bfloat16()
    return x


def test_a_view_that_reads_words_more_than_once_stays_a_view() -> None:
    """A sliding window, and a batch of stride 0, beside an operand of words."""
    numbers = torch.randn(1_400).bfloat16()
    for x in (numbers.as_strided((1, 900, 501), (0, 1, 1)), numbers[:1_200].view(30, 40).expand(7, 30, 40)):
        other = torch.randn(x.shape[0], 3, x.shape[2])
        read, _ = products.readable(x, other)
        assert read.dtype == torch.float32 and torch.equal(read, x.float())
        assert read.untyped_storage().nbytes() <= 4 * numbers.numel()
        assert same(certified.dot(x, other), certified.dot(x.float(), other))


def words_of(x: torch.Tensor) -> torch.Tensor:
    """The binary32 words of bfloat16 numbers, with the same strides."""
    memory = x.as_strided((x.untyped_storage().nbytes() // 2,), (1,), 0)
    return memory.float().as_strided(x.shape, x.stride(), x.storage_offset())


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(found.float().view(torch.int32), wanted.view(torch.int32))


# --- kernels ---

SHAPES: dict[str, Callable[[bool], tuple[torch.Tensor, torch.Tensor]]] = {
    "rows": lambda edges: (numbers(1, 70, 100, edges=edges), numbers(1, 50, 100)),
    "across": lambda edges: (numbers(1, 300, 40, edges=edges).mT, numbers(1, 300, 70).mT),
    "batched, shared": lambda edges: (numbers(3, 20, 33, edges=edges), numbers(1, 17, 33)),
    "few terms": lambda edges: (numbers(2, 30, 3, edges=edges), numbers(2, 40, 3)),
    "apart": lambda edges: (numbers(1, 80, 90, edges=edges)[:, ::2, ::3], numbers(1, 30, 60)[:, :, ::2]),
    "large": lambda edges: (numbers(1, 256, 768, edges=edges), numbers(1, 512, 768)),
    "large, across": lambda edges: (numbers(1, 512, 256, edges=edges).mT, numbers(1, 512, 256).mT),
}


@pytest.mark.parametrize("narrow", [False, True], ids=["to 24 bits", "to 8 bits"])
@pytest.mark.parametrize("edges", [False, True], ids=["numbers", "edges"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_read_halves(shape: str, edges: bool, narrow: bool) -> None:
    a, b = SHAPES[shape](edges)
    wanted = certified.dot(words_of(a), words_of(b), bfloat16=narrow)
    for x, y in ((a, b), (words_of(a), b), (a, words_of(b))):
        assert same(certified.dot(x, y, bfloat16=narrow), wanted)
    with certified.own_kernels(False):
        assert same(certified.dot(a, b, bfloat16=narrow), wanted)
    if narrow:
        stored = certified.dot(a, b, bfloat16=True, halves=True)
        assert stored.dtype == torch.bfloat16 and same(stored, wanted)


def test_products_of_low_bits_read_halves() -> None:
    """Most sums are ties, or open after the first rounding test: the rows' bits and the exact tier decide."""
    torch.manual_seed(1)
    a, b = (torch.randint(-3, 4, (1, n, 600)).bfloat16() for n in (64, 96))
    b[:, ::2, :300] *= 2.0**-20
    for narrow in (False, True):
        assert same(certified.dot(a, b, bfloat16=narrow), certified.dot(words_of(a), words_of(b), bfloat16=narrow))


def test_digits_are_cut_from_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor with tiles of bytes; on others by multiply-adds."""
    monkeypatch.setattr(digits, "WORTH", 1)
    for a, b in (SHAPES["large"](False), SHAPES["large, across"](False)):
        assert same(certified.dot(a, b, bfloat16=True), certified.dot(words_of(a), words_of(b), bfloat16=True))


@pytest.mark.parametrize("channels", [3, 32])
def test_convolutions_read_halves(channels: int) -> None:
    """Patches in place; with 32 channels by minimal filtering, or by digits."""
    pictures = numbers(4, channels, 18, 18)
    patches = pictures.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5)
    shape = 1, 4 * 16 * 16, 9 * channels
    b, wide = in_place(patches, shape, 0), in_place(words_of(patches), shape, 0)
    assert isinstance(b, IndexedMatrix) and b.dtype == torch.bfloat16
    a = numbers(1, 32, 9 * channels)
    for narrow in (False, True):
        wanted = certified.dot(words_of(a), wide, bfloat16=narrow)
        assert same(certified.dot(a, b, bfloat16=narrow), wanted)
        assert same(certified.dot(words_of(a), b, bfloat16=narrow), wanted)
        for other in (certified.own_kernels(False), certified.reversed_order(), compiled(False)):
            with other:
                assert same(certified.dot(a, b, bfloat16=narrow), wanted)
                assert same(certified.dot(b, a, bfloat16=narrow), wanted.mT)
    assert same(certified.dot(a, b, bfloat16=True, halves=True), wanted)


@pytest.mark.parametrize("edges", [False, True], ids=["numbers", "edges"])
def test_sums_read_halves(edges: bool) -> None:
    rows = numbers(9, 300, edges=edges), numbers(300, 9, edges=edges).mT, numbers(40, 60, edges=edges)[:, ::3]
    pairs: list[tuple] = [(x, words_of(x)) for x in rows]
    pictures = numbers(3, 40, 32, edges=edges)
    for channels in (pictures.permute(1, 0, 2), pictures.permute(2, 0, 1)):  # long runs; single words
        shape = 1, channels.shape[0], channels[0].numel()
        pairs.append((in_place(channels, shape, 0), in_place(words_of(channels), shape, 0)))
    for x, wide in pairs:
        wanted, narrow = certified.sum_rows(wide), certified.narrow_rows(wide)
        for device in (nullcontext(), certified.own_kernels(False), certified.reversed_order(), compiled(False)):
            with device:
                assert same(certified.sum_rows(x), wanted) and same(certified.narrow_rows(x), narrow)


# --- a step ---


def cast(number: int, size: int) -> Map:
    return Map(Function.CAST, (size,), (at(RefClass.STATE, number, size),), False, True)


def at(cls: RefClass, number: int, size: int, offset: int = 0, step: int = 1, fill: int = 0) -> Access:
    """The words offset, offset + step, .. of a flat tensor."""
    return Access(Ref(cls, number), (Dim(size, offset),), ((0, step),), fill)


def output(number: int, size: int, offset: int = 0, step: int = 1, fill: int = 0) -> Access:
    return at(RefClass.OPERATOR, number, size, offset, step, fill)


def ref(number: int) -> Ref:
    return Ref(RefClass.OPERATOR, number)


ONE, ODD = 0x3F800000, 0x3F800001
OPERATORS: list[Operator] = [
    cast(0, 24),
    cast(1, 24),
    Copy((24,), (output(0, 24, 23, -1),), False),  # 2: backwards
    Copy((30,), (output(0, 24, -3, 1, ONE),), False),  # 3: padded by halves
    Copy((30,), (output(0, 24, -3, 1, ODD),), False),  # 4: by a word that is none
    Copy((40,), (output(0, 24), output(1, 24, -20), immediate(ONE)), False),  # 5: joined
    Copy((40,), (output(0, 24), output(1, 24, -20), immediate(ODD)), False),  # 6: joined with a word that is no half
    Contract(Variant.DOT, 1, 4, 4, 6, ref(0), ref(2), bfloat16=True),  # 7: a product of halves
    Contract(Variant.DOT, 1, 3, 3, 10, ref(3), ref(4), bfloat16=True),
    Contract(Variant.DOT, 1, 4, 8, 5, Ref(RefClass.STATE, 2), ref(5)),  # 9: words and halves
    Contract(Variant.SUM, 1, 4, 1, 6, ref(2)),
    Contract(Variant.SUM, 1, 4, 1, 4, ref(7), bfloat16=True),
    Map(Function.EXP, (24,), (output(1, 24),), False),
    Map(Function.ADD, (24,), (output(2, 24), output(1, 24, 23, -1)), False),
    Map(Function.MUL, (16,), (output(7, 16), output(5, 40, 4, 2)), False),
    Map(Function.SUB, (30,), (output(3, 30), output(0, 24, -4, 1, ODD)), False),
    Gather(3, 4, 6, Ref(RefClass.STATE, 3), ref(0), ODD, False),
    ReduceMax(4, 6, 6, ref(1), False),
    ArgMax(4, 6, ref(2)),
    Copy((12,), (output(6, 40, 1, 3),), False),
    Map(Function.ADD, (9,), (output(8, 9), immediate(ONE)), False),
]
STORED = {0, 1, 2, 3, 5, 7, 8}


@pytest.fixture
def world() -> World:
    torch.manual_seed(3)
    x = torch.randn(24)
    x[:10] = torch.tensor(EDGES)
    return World(state=(x, torch.randn(24), torch.randn(20), torch.tensor([1, -2, 5], dtype=torch.int32)))


def executor_of(world: World) -> Executor:
    """Of a program whose results are the outputs that are no halves."""
    program = world.program(OPERATORS)
    shown = [i for i in range(len(OPERATORS)) if i not in STORED]
    sources = [Source(ref(i), OPERATORS[i].elements, OPERATORS[i].integer) for i in shown]
    executor = Executor(replace(program, sources=tuple(sources)), world.data, world.scalars, world.seed)
    executor.plans = False
    return executor


def test_outputs_that_are_halves_are_stored_so(world: World) -> None:
    executor = executor_of(world)
    wanted = executor.step(1, world.state, lambda _, value: value).state
    found = executor.step(1, world.state).state
    assert [to_words(x).tolist() for x in found] == [to_words(x).tolist() for x in wanted]
    units, _, halves = executor._units(True)
    assert halves == STORED
    for device in (certified.own_kernels(False), certified.reversed_order(), compiled(False)):
        with device:
            found = executor.step(1, world.state).state
        assert [to_words(x).tolist() for x in found] == [to_words(x).tolist() for x in wanted]
    operators = executor.program.operators
    assert words_at_once(units, operators, False, halves) < words_at_once(units, operators, False)
