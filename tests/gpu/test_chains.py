"""Chains of maps by the Triton kernel: every function, layout and graph gives the words of one operator at a time."""

from __future__ import annotations

import random

import numpy as np
import pytest
import test_pointwise as twin
import torch
from certified_data import FAMILIES, draw
from small_programs import World, executed

from vgame.arithmetic import gate
from vgame.arithmetic.functions import Function
from vgame.arithmetic.numba.chains import Chain
from vgame.execute.chains import ALONE_ON_GPU
from vgame.execute.executor import Executor
from vgame.execute.kernels import Correct
from vgame.program.operators import Ref, RefClass, yields_integer
from vgame.program.program import Program, Source

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def single(function: Function, *operands: torch.Tensor) -> torch.Tensor:
    """The function as a chain of one, whose result is checked for finite words; its mark lies between two others."""
    from vgame.arithmetic.triton import pointwise

    inputs, marks = len(operands), torch.zeros(3, dtype=torch.int32)
    code = np.array([[function, inputs, *range(inputs), *[0] * (3 - inputs)]], np.int64)
    integer = yields_integer(function) or (function is Function.SELECT and operands[1].dtype == torch.int32)
    chain = Chain(code, np.zeros(inputs + 1, np.uint32), inputs, (integer,), np.array([inputs]))
    (result,) = pointwise.run(chain, operands[0].numel(), operands, marks, 1)
    assert marks.tolist() == [0, int(not torch.isfinite(result.view(torch.float32)).all()), 0]
    return result


@pytest.mark.parametrize("function", [f for f in Function if f not in ALONE_ON_GPU], ids=lambda f: f.name)
def test_every_function_is_its_kernel(function: Function) -> None:
    for family in FAMILIES:
        operands = twin.operands_of(function, family, 1029)
        with gate.kernels(False):
            expected = Correct().map(function, *operands)
        assert twin.words(single(function, *operands)) == twin.words(expected)


@pytest.mark.parametrize("layout", twin.LAYOUTS.values(), ids=twin.LAYOUTS)
def test_every_layout(layout) -> None:
    x, y = draw("any bits", 1800), draw("normal", 1800, seed=1)
    left = layout(x)
    right = y[: left.numel()].view(left.shape)
    assert twin.words(single(Function.SUB, left, right)) == twin.words(left - right)
    assert twin.words(single(Function.SUB, left, left)) == twin.words(left - left)


@pytest.mark.parametrize("seed", range(15))
def test_chains_are_their_operators(seed: int) -> None:
    draws = random.Random(seed)
    operators = twin.graph(draws)
    world = World(
        state=[draw("normal", twin.WORDS, seed=seed), draw("any bits", twin.WORDS, seed=seed)],
        scalars=torch.randn(1, 3),
    )
    with gate.kernels(False):
        expected = executed(operators, world)
    program = world.program(operators)
    kept = sorted(draws.sample(range(len(operators)), draws.randint(1, len(operators))))
    sources = tuple(Source(Ref(RefClass.OPERATOR, i), operators[i].elements) for i in kept)
    program = Program(program.operators, sources, (), 0, 3, program.loss)
    result = Executor(program, (), world.scalars, world.seed).step(1, world.state)
    assert [twin.words(t) for t in result.state] == [expected[i] for i in kept]
    infinite = [i for i in kept if not all(w & 0x7F800000 != 0x7F800000 for w in expected[i])]
    assert result.not_finite == (infinite[0] if infinite else None)
