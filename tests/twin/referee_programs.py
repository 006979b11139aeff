"""Small valid programs that contain every kind of operator, every function and every way to address an operand, over
special words.

In: a folder. Out: a history of each, for the tests of test_referee.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from draws import EDGES, draw, draw_pair

from vgame.arithmetic.functions import BINARY_F, COMPARE_F, UNARY_F, Function, arity
from vgame.commit.tensor import from_words
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
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
from vgame.program.validate import validate
from vgame.runs.history import History
from vgame.runs.store import Store

STEP, STEPS = 3, 5
SEED = 0x0123456789ABCDEF
NAN, INFINITY, ONE, SIGN = 0x7FC00000, 0x7F800000, 0x3F800000, 0x80000000
#: Zero, ones, shift counts around 32, the end of exact integers in binary32, the ends of int32.
INTEGERS = [0, 1, 2, 3, 31, 32, 33, 0xFFFF, 0x10000, 0xFFFFFF, 0x1000000, 0x1000001, 0x7FFFFFFE, 0x7FFFFFFF]
INTEGERS += [SIGN, SIGN + 1, 0xFF000000, 0xFEFFFFFF, 0xFFFFFFE0, 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF]


def tensor(words: Sequence[int], *, integer: bool = False) -> torch.Tensor:
    return from_words(np.array(words, np.uint32), integer=integer)


def state(index: int) -> Ref:
    return Ref(RefClass.STATE, index)


def constant(index: int) -> Ref:
    return Ref(RefClass.CONSTANT, index)


def output(index: int) -> Ref:
    return Ref(RefClass.OPERATOR, index)


@dataclass(frozen=True)
class Small:
    """Operators and all their operands. A loss and its state tensor are appended."""

    operators: Sequence[Operator]
    state: Sequence[torch.Tensor] = ()
    constants: Sequence[torch.Tensor] = ()
    data: Sequence[torch.Tensor] = ()
    scalars: torch.Tensor = field(default_factory=lambda: torch.zeros(STEPS, 0))

    def history(self, folder: Path) -> History:
        every = (*self.operators, Map(Function.ABS, (1,), (immediate(ONE),), False))
        state = (*self.state, torch.zeros(1))
        sources = [Source(Ref(RefClass.STATE, t), s.numel(), not s.is_floating_point()) for t, s in enumerate(state)]
        sources[-1] = replace(sources[-1], ref=output(len(self.operators)))
        constants, data, scalars = tuple(self.constants), tuple(self.data), self.scalars
        program = Program(every, tuple(sources), constants, len(data), scalars.shape[1], len(self.operators))
        validate(program, [(t.numel(), not t.is_floating_point()) for t in data], STEPS)
        bundle = Bundle(program, state, data, scalars, SEED, STEPS, STEPS, 3, "correct", Terms())
        return History(Store(folder, bundle), Executor(program, data, scalars, SEED))


# ---- functions ----


def functions() -> Small:
    """Every function on every combination of special and drawn words, and those of two binary32 words on related
    pairs."""
    random = Random(1)
    floats = EDGES + [draw(random) for _ in range(30)]
    integers = INTEGERS + [random.getrandbits(32) for _ in range(10)]
    first, second = zip(*(draw_pair(random) for _ in range(500)), strict=True)
    operators = [grid(f, integer, len(floats), len(integers)) for f in Function for integer in types(f)]
    operators = [replace(o, bfloat16=o.function is Function.CAST) for o in operators]
    pairs = (identity_access(state(2), 500), identity_access(state(3), 500))
    operators += [Map(f, (500,), pairs, yields_integer(f)) for f in sorted(BINARY_F | COMPARE_F)]
    return Small(operators, [tensor(floats), tensor(integers, integer=True), tensor(first), tensor(second)])


def types(function: Function) -> tuple[bool, ...]:
    """Types of output that the function may have."""
    return (False, True) if function is Function.SELECT else (yields_integer(function),)


def grid(function: Function, integer: bool, floats: int, integers: int) -> Map:
    """The function on every combination of the words of state 0 (binary32) and 1 (int32)."""
    count = arity(function)
    kinds = operand_types(Map(function, (1,), (immediate(0),) * count, integer))
    sizes = tuple(integers if kind else floats for kind in kinds)
    accesses = tuple(
        Access(state(int(kind)), (Dim(sizes[i]),), tuple((0, 1) if j == i else (BROADCAST, 0) for j in range(count)))
        for i, kind in enumerate(kinds)
    )
    return Map(function, sizes, accesses, integer)


# ---- accesses ----


def layouts() -> Small:
    """Permuted, strided, flipped, padded, dilated, overlapping, broadcast, joined; operands of every class; leaf
    borders."""
    matrix, row = (Dim(5), Dim(7)), torch.arange(35.0) - 17
    rank12 = tuple((i % 8 if i < 8 else BROADCAST, 1 if i < 8 else 0) for i in range(12))
    pieces = tuple(Access(constant(1), (Dim(3, -3 * i),), ((0, 1),), 5) for i in range(32))
    scalar = Access(Ref(RefClass.SCALAR, 1), (), ((BROADCAST, 0),))

    def copy(sizes: tuple[int, ...], *accesses: Access) -> Copy:
        return Copy(sizes, accesses, False)

    def view(dims: tuple[Dim, ...], targets: tuple[tuple[int, int], ...], fill: int = 0) -> Access:
        return Access(state(0), dims, targets, fill)

    padded = view((Dim(5, -1), Dim(7, -2)), ((0, 1), (1, 1)), NAN)
    operators: list[Operator] = [
        copy((7, 5), view(matrix, ((1, 1), (0, 1)))),  # permute
        copy((2, 3), view((Dim(5, 1), Dim(7, 2)), ((0, 2), (1, 2)))),  # strided slice
        copy((5, 7), view((Dim(5, 4), Dim(7, 6)), ((0, -1), (1, -1)))),  # flip
        copy((7, 11), padded),
        copy((11, 4), view((Dim(5, -1, 2), Dim(7, 1, 3)), ((0, 1), (1, 5)), SIGN)),  # dilated
        copy((3, 5, 3, 3), view(matrix, ((0, 1), (1, 1), (0, 1), (1, 1)))),  # im2col
        copy((4, 5, 7), view(matrix, ((BROADCAST, 0), (0, 1), (1, 1)))),  # expand
        copy((1000,), Access(constant(0), (Dim(1000),), ((0, 1),))),  # eight leaves
        copy((128,), Access(constant(0), (Dim(1000, 872),), ((0, 1),))),
        copy((100,), *pieces),  # 32 pieces, and four positions behind them
        copy((12,), *pieces[:2], immediate(INFINITY)),
        copy(
            (4, 3, 2, 1, 2, 1, 2, 2, 1, 2, 1, 2), Access(constant(2), tuple(map(Dim, (4, 3, 2, 1, 2, 1, 2, 2))), rank12)
        ),
        Copy((6,), (Access(Ref(RefClass.DATA, 0), (Dim(9, -1),), ((0, 2),), 0xFFFFFFFF),), True),
        copy((35,), identity_access(output(2), 35)),
        Map(Function.ADD, (7, 11), (padded, view((Dim(5, 7), Dim(7)), ((0, -1), (1, 1)), ONE)), False),
        Map(Function.MUL, (35,), (identity_access(state(0), 35), scalar), False),
        Map(Function.SUB, (3,), (scalar, identity_access(constant(1), 3)), False),
        Map(Function.IADD, (9,), (identity_access(Ref(RefClass.DATA, 0), 9), immediate(0xFFFFFFFF)), True),
        Map(Function.MIN, (2, 2), (immediate(INFINITY, 2), immediate(ONE, 2)), False),
        Map(Function.DIV, (35,), (identity_access(output(13), 35), identity_access(state(0), 35)), False),
    ]
    scalars = torch.arange(2.0 * STEPS).reshape(STEPS, 2) / 3
    constants = [torch.arange(1000.0), torch.tensor([-1.5, 2.5, float("nan")]), torch.arange(192.0)]
    data = [tensor([5, 0xFFFFFFFF, SIGN, 0x7FFFFFFF, 1, 2, 3, 4, 9], integer=True)]
    return Small(operators, [row], constants, data, scalars)


# ---- sums ----


def adversarial(random: Random, rows: int, length: int) -> list[int]:
    """Rows that cancel, tie, are subnormal, overflow, or hold an infinity, both, or NaN, in turn."""
    words: list[int] = []
    for r in range(rows):
        exponents = ((100, 150), (1, 30), (240, 255), (60, 200))[r % 4]
        row = [
            random.getrandbits(1) << 31 | random.randrange(*exponents) << 23 | random.getrandbits(23)
            for _ in range(length)
        ]
        for position in range(0, length - 1, 2):
            if r % 3 == 0:
                row[position + 1] = row[position] ^ SIGN
        for special in ((), (INFINITY,), (INFINITY | SIGN,), (INFINITY, INFINITY | SIGN), (NAN,), (0, 1))[r % 6]:
            row[random.randrange(length)] = special
        words += row
    return words


def near_midpoints(rows: int) -> list[int]:
    """Rows of three words: a power of two, half a unit in its last place, and 2^-60 of it."""
    return [exponent << 23 for r in range(rows) for exponent in (120 + r, 96 + r, 60 + r)]


def sums() -> Small:
    """Products, sums and one-hot sums of 1 to 70,000 terms, of one batch and several, operands shared or not; one of
    two leaves."""
    random = Random(2)
    states, operators = [], []

    def rows(count: int, length: int) -> Ref:
        states.append(tensor(adversarial(random, count, length)))
        return state(len(states) - 1)

    for k in (1, 2, 127, 128, 129, 300, 1024):
        operators.append(Contract(Variant.DOT, 1, 6, 5, k, rows(6, k), rows(5, k)))
        operators.append(Contract(Variant.SUM, 1, 12, 1, k, rows(12, k)))
    for shared_a, shared_b in ((False, False), (False, True), (True, False), (True, True)):
        a, b = rows(4 if shared_a else 12, 33), rows(2 if shared_b else 6, 33)
        operators.append(Contract(Variant.DOT, 3, 4, 2, 33, a, b, shared_a, shared_b))
        index = tensor(
            [random.choice((0, 1, 2, 4, 0xFFFFFFFF, SIGN)) for _ in range(33 if shared_a else 99)], integer=True
        )
        states.append(index)
        operators.append(Contract(Variant.ONE_HOT, 3, 4, 2, 33, state(len(states) - 1), b, shared_a, shared_b))
    operators.append(Contract(Variant.SUM, 3, 4, 1, 33, rows(12, 33)))
    long = [(Variant.DOT, 1025), (Variant.SUM, 2500), (Variant.ONE_HOT, 3000), (Variant.DOT, 70_000)]
    for variant, k in long:
        b = rows(4, k) if variant is not Variant.SUM else Ref(RefClass.IMMEDIATE)
        if variant is Variant.ONE_HOT:
            states.append(torch.randint(-1, 3, (k,), generator=torch.Generator().manual_seed(3), dtype=torch.int32))
            operators.append(Contract(variant, 1, 3, 4, k, state(len(states) - 1), b))
        else:
            operators.append(Contract(variant, 1, 6, 4 if variant is Variant.DOT else 1, k, rows(6, k), b))
    # More elements than a leaf has, and each so near to a midpoint that mode `logged` admits two words.
    states += [tensor(near_midpoints(12)), tensor([ONE] * 3 * 15)]
    operators.append(Contract(Variant.DOT, 1, 12, 15, 3, state(len(states) - 2), state(len(states) - 1)))
    return Small(operators, states)


# ---- indices, maxima, randomness ----


def selections() -> Small:
    """Gathers in and out of range, maxima and their positions among ties, zeros and NaN, dropout, shuffled batches."""
    random = Random(4)
    samples, width = 9, 130
    data = [torch.randn(samples * width), torch.arange(samples, dtype=torch.int32) * 7 - 20]
    index = tensor([0, 4, 3, 5, 0xFFFFFFFF, SIGN, 0x7FFFFFFF, 1], integer=True)
    table = tensor([draw(random) for _ in range(5 * 3)])
    ties = [0, SIGN, 0, 1, SIGN | 1, ONE, ONE, SIGN | ONE, INFINITY, SIGN | INFINITY]
    rows = [[random.choice(ties[i:]) for _ in range(20)] for i in range(0, 10)] + [[SIGN] * 20, [SIGN, 0] * 10]
    rows += [[random.choice([*ties, NAN]) for _ in range(20)] for _ in range(4)]
    maxima = tensor([w for row in rows for w in row])
    whole = tensor([random.choice([*INTEGERS, random.getrandbits(32)]) for _ in range(16 * 20)], integer=True)
    keep = (identity_access(output(8), 300), immediate(int(0.1 * 2**32)))
    operators: list[Operator] = [
        Gather(8, 3, 5, state(0), state(1), NAN, False),
        Gather(8, 1, 22, state(0), constant(0), 0xFFFFFFF9, True),
        ReduceMax(16, 20, 20, state(2)),
        ReduceMax(16, 20, 7, state(2)),
        ReduceMax(16, 20, 6, state(3), True),
        ArgMax(16, 20, state(2)),
        ReduceMax(1, 1000, 1000, state(4)),
        ArgMax(1, 1000, state(4)),
        Philox(300),
        Map(Function.ULT, (300,), keep, True),
        Map(Function.SELECT, (300,), (identity_access(output(9), 300), immediate(0), immediate(0x3F8E38E4)), False),
        Shuffle(4, samples),
        Gather(4, width, samples, output(11), Ref(RefClass.DATA, 0), 0, False),
        Gather(4, 1, samples, output(11), Ref(RefClass.DATA, 1), 0, True),
    ]
    states = [index, table, maxima, whole, torch.randn(1000)]
    return Small(operators, states, [tensor(INTEGERS, integer=True)], data)


# ---- bfloat16 ----


def near_bfloat16() -> tuple[list[int], list[int]]:
    """Pairs whose sum, product or quotient is a midpoint of bfloat16 numbers, exactly or nearly."""
    random = Random(6)
    firsts = [random.randrange(1, 0x7F00) << 16 | random.choice((0x8000, 0x8000, 0, 0x7FFF)) for _ in range(400)]
    crumbs = [
        random.getrandbits(1) << 31 | random.randrange(1 + (a >> 23)) << 23 | random.getrandbits(23) for a in firsts
    ]
    halves = [max((a >> 23) - 8, 0) << 23 for a in firsts]
    return firsts * 3, [*crumbs, *halves, *[ONE] * 400]


def narrow_functions() -> Small:
    """The functions of binary32 words again, rounded to 8 bits."""
    first, second = near_bfloat16()
    small = functions()
    maps = [replace(o, bfloat16=True) for o in small.operators if not o.integer]
    pairs = (identity_access(state(4), len(first)), identity_access(state(5), len(first)))
    maps += [Map(f, (len(first),), pairs, False, True) for f in sorted(BINARY_F)]
    maps += [Map(f, (len(first),), pairs[:1], False, True) for f in sorted(UNARY_F)]
    return replace(small, operators=maps, state=[*small.state, tensor(first), tensor(second)])


def narrow_sums() -> Small:
    """The sums again, rounded to 8 bits; and sums of two words that nearly tie."""
    first, second = near_bfloat16()
    small, at = sums(), len(sums().state)
    rows = tensor([w for pair in zip(first, second, strict=True) for w in pair])
    ties = Contract(Variant.SUM, 1, len(first), 1, 2, state(at), bfloat16=True)
    operators = [*(replace(o, bfloat16=True) for o in small.operators), ties]
    one_hot = Contract(Variant.ONE_HOT, 1, 2, len(first), 2, state(at + 1), state(at), bfloat16=True)
    return replace(small, operators=[*operators, one_hot], state=[*small.state, rows, tensor([1, 1], integer=True)])


PROGRAMS = {
    "functions": functions, "layouts": layouts, "sums": sums, "selections": selections,
    "narrow functions": narrow_functions, "narrow sums": narrow_sums,
}  # fmt: skip
