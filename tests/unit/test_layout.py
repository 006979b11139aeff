"""Accesses as the executor reads them, against Access.position, element by element (docs/formats.md section 3)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import World, executed

from vgame.commit.tensor import from_words, to_words
from vgame.execute import layout
from vgame.execute.layout import inside, read
from vgame.program.operators import BROADCAST, Access, Copy, Dim, Ref, RefClass

pytestmark = pytest.mark.usefixtures("one_thread")
OPERAND = Ref(RefClass.STATE)
NAN, MINUS_ZERO, MINUS_INFINITY = 0x7FC00000, 0x80000000, 0xFF800000
CPU = torch.device("cpu")


# ---- expected values, and their comparison ----


def indices(sizes: tuple[int, ...]) -> itertools.product:
    """Every output index, row-major."""
    return itertools.product(*map(range, sizes))


def expected(access: Access, sizes: tuple[int, ...], words: list[int]) -> list[int]:
    """The word of each output index by the definition."""
    positions = [access.position(index) for index in indices(sizes)]
    return [access.fill if p is None else words[p] for p in positions]


def flat_words(tensor: torch.Tensor, sizes: tuple[int, ...]) -> list[int]:
    return to_words(tensor.expand(sizes)).tolist()


def operand(elements: int, *, integer: bool) -> torch.Tensor:
    """Distinct words; as binary32 none is a NaN or a zero."""
    words = torch.arange(1, elements + 1, dtype=torch.int32) + 0x3F000000
    return words if integer else words.view(torch.float32)


def check(access: Access, sizes: tuple[int, ...], *, integer: bool = True) -> None:
    """`read` and `inside` against the definition."""
    base = operand(access.elements, integer=integer)
    assert flat_words(read(base, access, sizes), sizes) == expected(access, sizes, to_words(base).tolist())
    truth = [access.position(index) is not None for index in indices(sizes)]
    assert inside(access, sizes, CPU).expand(sizes).reshape(-1).tolist() == truth
    assert not access.always_inside(sizes) or all(truth)


def run_copy(copy: Copy, operands: list[torch.Tensor]) -> list[int]:
    """The words that the executor gives for a copy of state tensors."""
    return executed([copy], World(state=operands))[0]


# ---- drawn accesses ----


@st.composite
def spaces(draw: st.DrawFn) -> tuple[int, ...]:
    """An index space of up to 60 elements."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    while math.prod(sizes) > 60:
        sizes.pop()
    return tuple(sizes)


def dimensions() -> st.SearchStrategy[Dim]:
    offsets = st.one_of(st.just(0), st.integers(-7, 7))
    return st.builds(Dim, st.integers(1, 5), offsets, st.sampled_from([1, 1, 1, 2, 3, 7]))


def target(count: int) -> st.SearchStrategy[tuple[int, int]]:
    """A dimension of the operand with a coefficient that is often 1, or none."""
    coefficients = st.one_of(st.just(1), st.integers(-4, 4))
    moving = st.tuples(st.integers(0, count - 1), coefficients)
    return st.one_of(moving, moving, st.just((BROADCAST, 0))) if count else st.just((BROADCAST, 0))


def accesses(rank: int) -> st.SearchStrategy[Access]:
    fills = st.sampled_from([0, NAN, MINUS_ZERO, MINUS_INFINITY, 0x3F800000, 0xFFFFFFFF])

    def build(dims: list[Dim]) -> st.SearchStrategy[Access]:
        targets = st.tuples(*[target(len(dims))] * rank)
        return st.builds(Access, st.just(OPERAND), st.just(tuple(dims)), targets, fills)

    return st.lists(dimensions(), min_size=1, max_size=3).flatmap(build)


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], Access]:
    sizes = draw(spaces())
    return sizes, draw(accesses(len(sizes)))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_read_and_inside_follow_the_definition(case: tuple[tuple[int, ...], Access]) -> None:
    sizes, access = case
    check(access, sizes)


@settings(max_examples=100, deadline=None)
@given(cases(), st.booleans())
def test_a_sparse_access_reads_the_same_without_spreading(case: tuple[tuple[int, ...], Access], integer: bool) -> None:
    sizes, access = case
    base = operand(access.elements, integer=integer)
    words = flat_words(layout.gathered(base, access, sizes), sizes)
    fill = NAN if not integer and access.fill == 0xFFFFFFFF else access.fill  # a NaN's payload is never read
    assert words == expected(access_with(access, fill), sizes, to_words(base).tolist())


def access_with(access: Access, fill: int) -> Access:
    return Access(access.ref, access.dims, access.targets, fill)


@st.composite
def copies(draw: st.DrawFn) -> Copy:
    """Up to four accesses over one index space, each of a tensor of its own or an immediate."""
    sizes = draw(spaces())
    parts = draw(st.lists(accesses(len(sizes)), min_size=1, max_size=4))
    named = [Access(Ref(RefClass.STATE, i), a.dims, a.targets, a.fill) for i, a in enumerate(parts)]
    if draw(st.booleans()):
        word = draw(st.sampled_from([0, NAN, 7]))
        place = draw(st.integers(0, len(named)))
        named.insert(place, Access(Ref(RefClass.IMMEDIATE), (), ((BROADCAST, 0),) * len(sizes), word))
    return Copy(sizes, tuple(named), True)


def first_in_bounds(copy: Copy, operands: list[torch.Tensor]) -> list[int]:
    """The definition of COPY, by Access.position alone."""
    words = [to_words(t).tolist() for t in operands]

    def word(index: tuple[int, ...]) -> int:
        for access in copy.accesses:
            if access.ref.cls is RefClass.IMMEDIATE:
                return access.fill
            position = access.position(index)
            if position is not None:
                return words[access.ref.index][position]
        return copy.accesses[-1].fill

    return [word(index) for index in indices(copy.sizes)]


@settings(max_examples=250, deadline=None)
@given(copies())
def test_of_several_accesses_the_first_in_bounds_wins(copy: Copy) -> None:
    count = 1 + max((a.ref.index for a in copy.accesses if a.ref.cls is RefClass.STATE), default=0)
    sizes = dict.fromkeys(range(count), 1)
    sizes |= {a.ref.index: a.elements for a in copy.accesses if a.ref.cls is RefClass.STATE}
    operands = [operand(sizes[i], integer=True) + 1000 * i for i in range(count)]
    assert run_copy(copy, operands) == first_in_bounds(copy, operands)


# ---- named layouts, against torch ----


def test_permutation_expansion_and_flip_read_without_a_copy() -> None:
    base = operand(24, integer=True)
    grid = base.view(2, 3, 4)
    permuted = Access(OPERAND, (Dim(2), Dim(3), Dim(4)), ((2, 1), (0, 1), (1, 1)))
    assert read(base, permuted, (4, 2, 3)).data_ptr() == base.data_ptr()
    assert torch.equal(read(base, permuted, (4, 2, 3)), grid.permute(2, 0, 1))
    expanded = Access(OPERAND, (Dim(24),), ((BROADCAST, 0), (0, 1)))
    assert torch.equal(read(base, expanded, (5, 24)), base.expand(5, 24))
    flipped = Access(OPERAND, (Dim(2), Dim(3, 2), Dim(4)), ((0, 1), (1, -1), (2, 1)))
    assert torch.equal(read(base, flipped, (2, 3, 4)), grid.flip(1))


def test_interior_padding_spreads_by_the_divisor() -> None:
    base = operand(4, integer=False)
    access = Access(OPERAND, (Dim(4, -2, 3),), ((0, 1),), NAN)
    wanted = torch.full((14,), torch.nan)
    wanted[2:12:3] = base
    assert flat_words(read(base, access, (14,)), (14,)) == to_words(wanted).tolist()


@pytest.mark.parametrize("fill", [0, NAN, MINUS_INFINITY])
def test_padding_fills_with_any_word(fill: int) -> None:
    base = operand(6, integer=False)
    access = Access(OPERAND, (Dim(2, -1), Dim(3, -2)), ((0, 1), (1, 1)), fill)
    wanted = torch.nn.functional.pad(base.view(2, 3), (2, 1, 1, 2), value=from_words_float(fill))
    assert flat_words(read(base, access, (5, 6)), (5, 6)) == to_words(wanted).tolist()


def from_words_float(word: int) -> float:
    import numpy as np

    return float(from_words(np.array([word], np.uint32), integer=False)[0])


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
def test_im2col_is_torch_unfold(stride: int, padding: int, dilation: int) -> None:
    x = operand(2 * 3 * 6 * 7, integer=False)
    wanted = torch.nn.functional.unfold(x.view(2, 3, 6, 7), 2, dilation, padding, stride)
    rows, columns = ((n + 2 * padding - dilation - 1) // stride + 1 for n in (6, 7))
    dims = (Dim(2), Dim(3), Dim(6, -padding), Dim(7, -padding))
    targets = ((0, 1), (1, 1), (2, dilation), (3, dilation), (2, stride), (3, stride))
    sizes = (2, 3, 2, 2, rows, columns)
    assert flat_words(read(x, Access(OPERAND, dims, targets), sizes), sizes) == to_words(wanted).tolist()


def test_concatenation_and_writing_into_a_slice() -> None:
    a, b = operand(6, integer=True), operand(4, integer=True) + 100
    first = Access(OPERAND, (Dim(2), Dim(3)), ((0, 1), (1, 1)))
    second = Access(Ref(RefClass.STATE, 1), (Dim(2), Dim(2, -3)), ((0, 1), (1, 1)))
    joined = torch.cat([a.view(2, 3), b.view(2, 2)], 1)
    assert run_copy(Copy((2, 5), (first, second), True), [a, b]) == joined.reshape(-1).tolist()
    every_other = Access(OPERAND, (Dim(2, -1, 2),), ((0, 1),))
    behind = Access(Ref(RefClass.STATE, 1), (Dim(6),), ((0, 1),))
    window, base = operand(2, integer=True), operand(6, integer=True) + 100
    wanted = base.clone()
    wanted[1:4:2] = window
    assert run_copy(Copy((6,), (every_other, behind), True), [window, base]) == wanted.tolist()


def test_a_coordinate_one_outside_is_outside() -> None:
    for offset, count in [(-1, 1), (0, 4), (1, 3), (-2, 2)]:
        check(Access(OPERAND, (Dim(4, offset),), ((0, 1),), 7), (count + 1,))


def test_wide_gaps_do_not_need_memory_for_the_gaps() -> None:
    access = Access(OPERAND, (Dim(3, -5), Dim(2, 0, 2**20)), ((0, 2**30), (1, 2**20)), 9)
    check(access, (3, 3))
