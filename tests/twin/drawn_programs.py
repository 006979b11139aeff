"""Valid programs drawn from a seed: operators of every kind that read each other through any access, over adversarial
words.

In: a seed. Out: the program's history, whose steps test_drawn_programs.py computes in several ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import torch
from draws import EDGES, draw
from referee_programs import INTEGERS, STEPS, Small, output, tensor

from vgame.arithmetic.functions import Function, arity
from vgame.execute.executor import Executor
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
    immediate,
    operand_types,
    yields_integer,
)
from vgame.program.validate import validate
from vgame.runs.history import History
from vgame.runs.store import Store

SIZES = (1, 2, 12, 24, 36, 60, 64, 128, 129, 144, 240)
FILLS = (0, 0x80000000, 0x7FC00000, 0x3F800000, 0x7F800000, 1, 0x7F7FFFFF)  # canonical: any output may have them
MOST = 4000  # elements of an output
ORDINARY = 512  # of the last data tensor
FAR = 2**31 - 1


def words_of(random: Random, count: int) -> list[int]:
    """Binary32: anything; numbers that cancel; small integers; subnormals; the largest; ordinary ones with a few
    edges."""
    match random.randrange(6):
        case 0:
            return [draw(random) for _ in range(count)]
        case 1:
            half = [draw(random) for _ in range(-(-count // 2))]
            return random.sample(half + [w ^ 0x80000000 for w in half], count)
        case 2:
            return [
                random.choice((0, 0x3F800000, 0x40000000, 0x40400000)) | random.getrandbits(1) << 31
                for _ in range(count)
            ]
    low, high = random.choice(((0, 3), (240, 255), (110, 140), (110, 140)))
    found = [
        random.getrandbits(1) << 31 | random.randrange(low, high) << 23 | random.getrandbits(23) for _ in range(count)
    ]
    for _ in range(random.randrange(4)):
        found[random.randrange(count)] = random.choice(EDGES)
    return found


def draw_ordinary(random: Random) -> int:
    """A number far from every midpoint."""
    return random.getrandbits(1) << 31 | random.randrange(124, 130) << 23 | random.getrandbits(23)


def integers_of(random: Random, count: int) -> list[int]:
    """int32: special ones, indices in and out of range, or any."""
    kinds: tuple[Callable[[], int], ...] = (
        lambda: random.choice(INTEGERS),
        lambda: random.randrange(-2, 9) & 0xFFFFFFFF,
        lambda: random.getrandbits(32),
    )
    kind = random.choice(kinds)
    return [kind() for _ in range(count)]


def factors(random: Random, number: int, count: int) -> tuple[int, ...]:
    """`count` numbers whose product is `number`."""
    found, rest, divisor = [1] * count, number, 2
    while rest > 1:
        while rest % divisor == 0:
            found[random.randrange(count)] *= divisor
            rest //= divisor
        divisor += 1
    return tuple(found)


@dataclass
class Drawing:
    """A partial program: its operators, and (reference, elements) of all readable tensors, by type."""

    random: Random
    operators: list[Operator] = field(default_factory=list)
    readable: dict[bool, list[tuple[Ref, int]]] = field(default_factory=lambda: {False: [], True: []})
    tensors: dict[RefClass, list[torch.Tensor]] = field(default_factory=dict)

    def fill(self) -> None:
        """Tensors of every class and type."""
        for kind in (RefClass.STATE, RefClass.CONSTANT, RefClass.DATA):
            for integer in (False, True, self.random.random() < 0.3):
                count, place = self.random.choice(SIZES), self.tensors.setdefault(kind, [])
                self.readable[integer].append((Ref(kind, len(place)), count))
                place.append(tensor((integers_of if integer else words_of)(self.random, count), integer=integer))
        self.tensors[RefClass.DATA].append(tensor([draw_ordinary(self.random) for _ in range(ORDINARY)]))

    def add(self, operator: Operator) -> Ref:
        ref = output(len(self.operators))
        self.operators.append(operator)
        self.readable[operator.integer].append((ref, operator.elements))
        return ref

    def pick(self, integer: bool) -> tuple[Ref, int]:
        """Any readable tensor, mostly a new one."""
        return self.random.choice(self.readable[integer][-6 if self.random.random() < 0.6 else 0 :])

    # ---- accesses ----

    def space(self, elements: int) -> tuple[int, ...]:
        return factors(self.random, elements, self.random.choice((1, 1, 2, 3, 3, 4, 5, 7, 12)))

    def access(self, sizes: tuple[int, ...], integer: bool) -> Access:
        """An immediate, a scalar, something in place, or any view."""
        fill, kind = self.random.choice(FILLS), self.random.random()
        if kind < 0.06:
            return immediate(fill, len(sizes))
        if kind < 0.12 and not integer:
            return Access(Ref(RefClass.SCALAR, self.random.randrange(2)), (), ((BROADCAST, 0),) * len(sizes), fill)
        same = [ref for ref, n in self.readable[integer] if n == math.prod(sizes)]
        if kind < 0.5 and same:
            return self.in_place(self.random.choice(same[-4:]), sizes, fill)
        return self.view(*self.pick(integer), sizes, fill)

    def in_place(self, ref: Ref, sizes: tuple[int, ...], fill: int) -> Access:
        """Word e at word e; or some dimensions backwards, or exchanged."""
        kind, rank = self.random.choice(("in place", "in place", "in place", "backwards", "exchanged")), len(sizes)
        if kind == "in place" or rank > 8:
            return Access(
                ref, (Dim(math.prod(sizes)),), tuple((0, math.prod(sizes[i + 1 :])) for i in range(rank)), fill
            )
        order = self.random.sample(range(rank), rank) if kind == "exchanged" else list(range(rank))
        back = [kind == "backwards" and self.random.random() < 0.5 for _ in sizes]
        dims = tuple(Dim(sizes[i], sizes[i] - 1 if back[i] else 0) for i in order)
        return Access(ref, dims, tuple((order.index(i), -1 if back[i] else 1) for i in range(rank)), fill)

    def view(self, ref: Ref, elements: int, sizes: tuple[int, ...], fill: int) -> Access:
        """Any coefficients, offsets and divisors; mostly inside, often at the border, seldom far away."""
        random = self.random
        shape = factors(random, elements, random.choice((1, 1, 2, 2, 3, 4, 8)))
        targets = [
            (BROADCAST, 0) if random.random() < 0.2 else (random.randrange(len(shape)), self.step(n)) for n in sizes
        ]
        dims = []
        for j, size in enumerate(shape):
            low = sum(min(0, c * (n - 1)) for (t, c), n in zip(targets, sizes, strict=True) if t == j)
            offset = -low if -low <= FAR else 0
            offset = random.choice(
                (offset, offset, min(offset + 1, FAR), offset - 1, 0, -size, random.choice((FAR, -FAR - 1)))
            )
            dims.append(Dim(size, offset, random.choice((1, 1, 1, 1, 2, 3, FAR))))
        return Access(ref, tuple(dims), tuple(targets), fill)

    def step(self, size: int) -> int:
        """A coefficient of an index; where that is always 0 or seldom, a huge one."""
        huge = self.random.random() < (0.3 if size == 1 else 0.03)
        return self.random.choice((FAR, -FAR - 1, 2**20) if huge else (1, 1, 1, 1, -1, 2, -2, 3, 0))

    # ---- operators ----

    def map(self) -> Map:
        often = (Function.ADD, Function.MUL, Function.SUB, Function.MAX, Function.SELECT, Function.NEG)
        function = self.random.choice(often if self.random.random() < 0.4 else tuple(Function))
        integer = self.random.random() < 0.4 if function is Function.SELECT else yields_integer(function)
        types = operand_types(Map(function, (1,), (immediate(0),) * arity(function), integer))
        maps = [
            p
            for p in self.readable[types[-1]]
            if p[0].cls is RefClass.OPERATOR and isinstance(self.operators[p[0].index], Map)
        ]
        ref, elements = maps[-1] if maps and self.random.random() < 0.8 else self.pick(types[-1])
        sizes = self.space(elements if self.random.random() < 0.9 else self.random.choice(SIZES))
        accesses = [self.access(sizes, kind) for kind in types]
        if math.prod(sizes) == elements and self.random.random() < 0.9:
            accesses[-1] = self.in_place(ref, sizes, 0)
        return Map(function, sizes, tuple(accesses), integer)

    def copy(self, elements: int | None = None, integer: bool | None = None) -> Copy:
        integer = self.random.random() < 0.3 if integer is None else integer
        sizes = self.space(elements or self.random.choice(SIZES))
        count = self.random.choice((1, 1, 1, 2, 3, 32))
        return Copy(sizes, tuple(self.access(sizes, integer) for _ in range(count)), integer)

    def rows(self, elements: int, integer: bool = False) -> Ref:
        """A tensor with this number of elements: an existing one, or a copy of others."""
        same = [ref for ref, n in self.readable[integer] if n == elements]
        return (
            self.random.choice(same) if same and self.random.random() < 0.4 else self.add(self.copy(elements, integer))
        )

    def numbers(self, elements: int) -> Ref:
        """Some of the ordinary ones, or any rows."""
        if self.random.random() < 0.4:
            return self.rows(elements)
        place = Dim(ORDINARY, self.random.randrange(ORDINARY - elements))
        return self.add(Copy((elements,), (Access(Ref(RefClass.DATA, 3), (place,), ((0, 1),)),), False))

    def contract(self) -> Contract:
        random, nothing = self.random, Ref(RefClass.IMMEDIATE)
        variant, shared = (
            random.choice((Variant.DOT, Variant.DOT, Variant.SUM, Variant.ONE_HOT)),
            [random.random() < 0.3 for _ in "ab"],
        )
        batch, m, n = random.choice((1, 1, 2, 3)), random.randrange(1, 8), random.randrange(1, 8)
        k = random.choice((1, 2, 3, 8, 9, 17, 33, 64, 100, 1025))
        draft = Contract(variant, batch, m, 1 if variant is Variant.SUM else n, k, nothing, nothing, *shared)
        if draft.a_elements > MOST or draft.b_elements > MOST:
            draft = replace(draft, k=3)
        draft = replace(draft, a=self.rows(draft.a_elements, variant is Variant.ONE_HOT))
        return draft if variant is Variant.SUM else replace(draft, b=self.rows(draft.b_elements))

    def convolution(self) -> Contract:
        """Pictures with a frame, as patches from first to last or from last to first, multiplied, added up or with each
        other."""
        random, size = self.random, self.random.choice((3, 3, 3, 2))
        pictures, channels, lines, width = (random.choice(s) for s in ((1, 2), (1, 2, 3), (2, 4), (2, 4, 6)))
        shape = (pictures, channels, lines + size - 1, width + size - 1)
        sign = random.choice((1, 1, -1))
        framed = tuple(Dim(n, size - 1 if sign < 0 and d > 1 else 0) for d, n in enumerate(shape))
        targets = ((0, 1), (2, 1), (3, 1), (1, 1), (2, sign), (3, sign))
        view = Access(self.numbers(math.prod(shape)), framed, targets)
        patches = self.add(Copy((pictures, lines, width, channels, size, size), (view,), False))
        k, pixels, m = channels * size * size, pictures * lines * width, random.choice((1, 3, 8))
        filters = self.numbers(m * k)
        return random.choice(
            (
                Contract(Variant.DOT, 1, m, pixels, k, filters, patches),
                Contract(Variant.DOT, 1, pixels, m, k, patches, filters),
                Contract(Variant.DOT, 1, pixels, pixels, k, patches, patches),
                Contract(Variant.SUM, pictures, lines * width, 1, k, patches),
            )
        )

    def gather(self) -> Gather:
        integer = self.random.random() < 0.3
        (index, count), (table, elements) = self.pick(True), self.pick(integer)
        width = self.random.choice(
            [d for d in range(1, elements + 1) if elements % d == 0 and d * count <= MOST] or [1]
        )
        return Gather(count, width, elements // width, index, table, self.random.choice(FILLS), integer)

    def maximum(self) -> Operator:
        integer = self.random.random() < 0.3
        ref, elements = self.pick(integer)
        length = self.random.choice([d for d in range(1, elements + 1) if elements % d == 0])
        if not integer and self.random.random() < 0.5:
            return ArgMax(elements // length, length, ref)
        return ReduceMax(
            elements // length, length, self.random.choice((1, 2, 3, length, length + 1, FAR)), ref, integer
        )

    def chance(self) -> Operator:
        return self.random.choice(
            (
                Philox(self.random.randrange(1, 99)),
                Shuffle(self.random.randrange(1, 9), self.random.choice((1, 9, FAR))),
            )
        )


def operators_of(drawing: Drawing) -> list[Operator]:
    """8 or about 20 of every kind, the largest left out."""
    ways = [drawing.map] * 8 + [drawing.copy] * 3 + [drawing.contract] * 3 + [drawing.gather] * 2
    ways += [drawing.maximum, drawing.convolution] * 2 + [drawing.chance]
    for _ in range(drawing.random.choice((8, 20))):
        operator = drawing.random.choice(ways)()
        if operator.elements <= MOST:
            drawing.add(operator)
    return drawing.operators


def rounds(operator: Operator, random: Random, share: float) -> bool:
    """Whether an operator rounds to bfloat16: CAST, and a share of those that may."""
    if not isinstance(operator, Map | Contract) or operator.integer:
        return False
    return random.random() < share or (isinstance(operator, Map) and operator.function is Function.CAST)


def drawn(seed: int, folder: Path, narrow: float = 0.0) -> History:
    """A program whose state tensors come from operators; every contraction and a third of the others has one of its
    own. narrow: share of the operators that round to bfloat16, if any; then contractions are as the others."""
    drawing = Drawing(random := Random(seed))
    drawing.fill()
    operators, (state, *others) = operators_of(drawing), drawing.tensors.values()
    if narrow:
        operators = [replace(o, bfloat16=True) if rounds(o, random, narrow) else o for o in operators]
    always = isinstance if not narrow else lambda *_: False
    kept = [o for o, operator in enumerate(operators) if always(operator, Contract) or random.random() < 0.33]
    sizes = [(op.elements, op.integer) for op in operators]
    state += [torch.zeros(sizes[o][0], dtype=torch.int32 if sizes[o][1] else torch.float32) for o in kept]
    scalars = tensor([draw(random) for _ in range(2 * STEPS)]).view(STEPS, 2)
    bundle = Small(operators, state, *others, scalars).history(folder / "still").bundle
    sources = list(bundle.program.sources)
    for t, source in enumerate(sources[: -1 - len(kept)]):
        fitting = [o for o, size in enumerate(sizes) if size == (source.elements, source.integer)]
        sources[t] = replace(source, ref=output(random.choice(fitting))) if fitting else source
    for t, o in enumerate(kept, len(sources) - 1 - len(kept)):
        sources[t] = replace(sources[t], ref=output(o))
    program = replace(bundle.program, sources=tuple(sources))
    validate(program, [(t.numel(), not t.is_floating_point()) for t in bundle.data], STEPS)
    bundle = replace(bundle, program=program)
    return History(Store(folder / "moving", bundle), Executor(program, bundle.data, scalars, bundle.seed))
