"""One operator or a few over drawn words, by executor and reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from small_programs import World

from vgame.arithmetic.functions import Function, arity
from vgame.commit.tensor import from_words
from vgame.program.operators import (
    BROADCAST,
    Access,
    Dim,
    Map,
    Ref,
    RefClass,
    immediate,
    operand_types,
)

NAN, ONE, INFINITY = 0x7FC00000, 0x3F800000, 0x7F800000


#: Zeros, subnormals and their border, one and its neighbours, where integers end, the largest, infinities, NaN.
FLOATS = [0x0, 0x1, 0x2, 0x7FFFFF, 0x800000, 0x800001, 0x33800000, 0x3EFFFFFF, 0x3F000000, 0x3F7FFFFF, ONE, 0x3F800001]


#: Zero, ones, shift counts around 32, the end of exact integers in binary32, the ends of int32.
INTEGERS = [0, 1, 2, 3, 5, 31, 32, 33, 255, 0xFFFF, 0x10000, 0x10001, 0xFFFFFF, 0x1000000, 0x1000001, 0x7FFFFFFE]


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
