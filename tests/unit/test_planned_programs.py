"""Drawn programs in which outputs are read in several ways at once, planned and in the ordinary way: a unit's operands
must stay in place until the unit has ended.

Outputs have one size, so memory is reused as soon as possible; they are longer than a block of a chain. If memory were
freed before the end of a unit, some of the first 300 seeds would differ.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from certified_data import FAMILIES, draw, words
from small_programs import World
from test_pointwise import SPACE, WAYS, WORDS
from wide import of_many

from vgame.arithmetic.functions import Function, arity
from vgame.execute.executor import Executor
from vgame.execute.planned import Planned
from vgame.program.operators import (
    BROADCAST,
    Access,
    Contract,
    Copy,
    Dim,
    Map,
    Operator,
    ReduceMax,
    Ref,
    RefClass,
    Variant,
    immediate,
)
from vgame.program.program import Program, Source

FUNCTIONS = (Function.ADD, Function.SUB, Function.MUL, Function.MAX, Function.DIV, Function.NEG, Function.EXP)
OPERATOR, STATE = RefClass.OPERATOR, RefClass.STATE


def drawn(draws: random.Random) -> list[Operator]:
    """Half of them copies in other orders; maps mostly read one output twice."""
    operators: list[Operator] = []
    for i in range(draws.randint(3, 20)):
        near = [Ref(OPERATOR, k) for k in range(max(0, i - 3), i) if operators[k].elements == WORDS]
        ref, kind = draws.choice(near or [Ref(STATE, 0), Ref(STATE, 1)]), draws.random()
        access, sizes = WAYS[draws.choice([*WAYS])](ref)
        if kind < 0.45:
            operators.append(Copy(sizes, (access,), False))
        elif kind < 0.5:
            operators.append(Contract(Variant.SUM, 1, 30, 1, 40, ref))
        elif kind < 0.55:
            operators.append(Contract(Variant.DOT, 1, 30, 40, 40, ref, Ref(STATE, 2)))
        elif kind < 0.6:
            operators.append(ReduceMax(WORDS, 1, 1, ref))
        elif kind < 0.65:
            front, rest = draws.sample(near or [Ref(STATE, 0), Ref(STATE, 1)], 1) * 2
            parts = Access(front, (Dim(600),), ((0, 1),)), Access(rest, (Dim(WORDS, -600),), ((0, 1),))
            operators.append(Copy((WORDS,), (*parts, immediate(0x40000000)), False))
        else:
            operators.append(a_map(draws, ref, near, access, sizes))
    return operators


def a_map(draws: random.Random, ref: Ref, near: list[Ref], access: Access, sizes: tuple[int, ...]) -> Map:
    function, accesses, rank = draws.choice(FUNCTIONS), [access], len(sizes)
    other = ref if draws.random() < 0.6 else draws.choice([*near, Ref(STATE, 1)])
    ways = [way(other) for way in WAYS.values()]
    others = [found for found, space in ways if space == sizes]
    others += [immediate(0x3F800001, rank), Access(Ref(RefClass.SCALAR, 1), (Dim(1),), ((BROADCAST, 0),) * rank)]
    accesses += [draws.choice(others) for _ in range(arity(function) - 1)]
    draws.shuffle(accesses)
    return Map(function, sizes, tuple(accesses), False, bfloat16=draws.random() < 0.1)


def compare(seed: int) -> None:
    draws = random.Random(seed)
    operators, family = drawn(draws), draws.choice([*FAMILIES])
    state = [draw("normal", WORDS, seed=seed % 50), draw(family, WORDS, seed=seed % 50), draw("normal", 1600, seed=3)]
    world = World(state=state, scalars=torch.tensor([[0.5, -3.0, 1e30]]))
    kept = sorted(draws.sample(range(len(operators)), draws.randint(1, min(6, len(operators)))))
    sources = tuple(Source(Ref(OPERATOR, i), operators[i].elements, operators[i].integer) for i in kept)
    program: Program = replace(world.program(operators), sources=sources)
    planned, ordinary = (Executor(program, (), world.scalars, 1) for _ in range(2))
    ordinary.plans = False
    wanted = ordinary.step(1, state)
    for _ in range(2):
        found = planned.step(1, state)
        assert [words(t) for t in found.state] == [words(t) for t in wanted.state], (seed, kept)
        assert found.not_finite == wanted.not_finite, seed
    assert isinstance(planned._plan, Planned)


def test_the_shapes_are_those_of_the_ways():
    assert SPACE == (6, 5, 40) and WORDS == 1200


@pytest.mark.parametrize("first", of_many(range(0, 1500, 300), 0, 300))
def test_programs_that_read_an_output_in_several_ways(first, one_thread):
    for seed in range(first, first + 300):
        compare(seed)


@pytest.mark.nightly
def test_many_more_programs(threads_come_back, monkeypatch):
    """By two threads, which share even small loops."""
    torch.set_num_threads(2)
    monkeypatch.setattr("vgame.system.threads.WORTH", 64)
    monkeypatch.setattr("vgame.arithmetic.torch.tiling.WORTH", 1)
    for seed in range(1500, 20_000):
        compare(seed)
