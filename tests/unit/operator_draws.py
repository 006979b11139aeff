"""Hypothesis strategies for operators: anything that has a record, valid or not. Used by test_encoding.py and
test_program_file.py."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from vgame.arithmetic.functions import Function, arity
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

words = st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 2**31, 2**32 - 1])
signed = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1])
refs = st.builds(Ref, st.sampled_from(RefClass), st.integers(0, 2**24 - 1))
sizes = st.integers(1, 2**16 - 1)


def accesses(rank: int) -> st.SearchStrategy[Access]:
    dims = st.lists(st.builds(Dim, words, signed, words), max_size=4).map(tuple)
    targets = st.tuples(*[st.tuples(st.integers(0, 255), signed)] * rank)
    return st.builds(Access, refs, dims, targets, words)


@st.composite
def maps(draw: st.DrawFn) -> Map:
    function = draw(st.sampled_from(Function))
    space = draw(spaces())
    operands = draw(st.tuples(*[accesses(len(space))] * arity(function)))
    return Map(function, space, operands, draw(st.booleans()))


@st.composite
def copies(draw: st.DrawFn) -> Copy:
    space = draw(spaces())
    return Copy(space, tuple(draw(st.lists(accesses(len(space)), max_size=4))), draw(st.booleans()))


def spaces() -> st.SearchStrategy[tuple[int, ...]]:
    """Sizes whose product is a u32."""
    return st.lists(sizes, max_size=5).filter(lambda s: math.prod(s) < 2**32).map(tuple)


small = st.integers(1, 1000)
contracts = st.builds(
    Contract,
    st.sampled_from(Variant),
    small,
    small,
    small,
    words.filter(bool),
    refs,
    refs,
    st.booleans(),
    st.booleans(),
)
gathers = st.builds(Gather, sizes, sizes, words, refs, refs, words, st.booleans())
maxima = st.builds(ReduceMax, small, sizes, words.filter(bool), refs, st.booleans())
simple = st.one_of(
    st.builds(ArgMax, words, words, refs), st.builds(Philox, words), st.builds(Shuffle, words, words)
)  # fmt: skip
operators: st.SearchStrategy[Operator] = st.one_of(maps(), copies(), contracts, gathers, maxima, simple)
