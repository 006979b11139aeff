"""Programs of a few hand-built operators, run by the executor and, element by element, by the reference.

In: operators and the tensors that they may name. Out: words. A loss of one word is appended, because every program has
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from vgame.arithmetic.functions import Function
from vgame.commit.tensor import to_words
from vgame.execute.executor import Executor
from vgame.execute.reference import Position, evaluate
from vgame.program.operators import Map, Operator, Ref, RefClass, immediate
from vgame.program.program import Program, Source

ZERO_LOSS = Map(Function.ABS, (1,), (immediate(0),), False)


@dataclass(frozen=True)
class World:
    """Everything outside the step: state before it, constants, data, the table of scalars [steps, n]."""

    state: Sequence[torch.Tensor] = ()
    constants: Sequence[torch.Tensor] = ()
    data: Sequence[torch.Tensor] = ()
    scalars: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 0))
    seed: int = 0x0123456789ABCDEF
    step: int = 1

    def program(self, operators: Sequence[Operator]) -> Program:
        """The operators and a loss; no state tensor is written."""
        every = (*operators, ZERO_LOSS)
        return Program(every, (), tuple(self.constants), len(self.data), self.scalars.shape[1], len(operators))


def executed(operators: Sequence[Operator], world: World, mode: str = "correct") -> list[list[int]]:
    """The words of every operator's output, by the executor."""
    found: list[list[int]] = []

    def tap(index: int, output: torch.Tensor) -> torch.Tensor:
        found.append(to_words(output).tolist())
        return output

    executor = Executor(world.program(operators), world.data, world.scalars, world.seed, mode)
    executor.step(world.step, world.state, tap)
    return found[: len(operators)]


def referenced(operators: Sequence[Operator], world: World) -> list[list[int]]:
    """The same by the reference, which reads nothing but the words of its operands."""
    outputs: list[list[int]] = []
    tables = {
        RefClass.STATE: [to_words(t).tolist() for t in world.state],
        RefClass.CONSTANT: [to_words(t).tolist() for t in world.constants],
        RefClass.DATA: [to_words(t).tolist() for t in world.data],
        RefClass.OPERATOR: outputs,
    }

    def read(ref: Ref, first: int, count: int) -> list[int]:
        if ref.cls is RefClass.SCALAR:
            assert (first, count) == (0, 1), "a scalar is one word"
            return to_words(world.scalars[world.step - 1, ref.index]).tolist()
        words = tables[ref.cls][ref.index]
        assert first >= 0 and first + count <= len(words), f"words {first}.. + {count} of {len(words)} are read"
        return words[first : first + count]

    for i, operator in enumerate(operators):
        at = (Position(world.seed, world.step, i, element) for element in range(operator.elements))
        outputs.append([evaluate(operator, position, read) for position in at])
    return outputs


def kept(operators: Sequence[Operator], world: World, *, plans: bool) -> list[list[int]]:
    """The words of every operator's output, by two steps without a tap: planned, or in the ordinary way."""
    every, state = world.program(operators), tuple(world.state)
    sources = [Source(Ref(RefClass.OPERATOR, i), op.elements, op.integer) for i, op in enumerate(operators)]
    program = replace(every, sources=tuple(sources))
    executor = Executor(program, world.data, world.scalars, world.seed)
    executor.plans = plans
    first, second = (executor.step(world.step, state).state for _ in range(2))
    assert bool(executor._plan) is plans
    assert [to_words(t).tolist() for t in first] == [to_words(t).tolist() for t in second]
    return [to_words(t).tolist() for t in second]


def check(operators: Sequence[Operator], world: World) -> list[list[int]]:
    """Executor and reference agree on every bit of every output, for each way of executing a step; returns the
    words."""
    words, wanted = executed(operators, world), referenced(operators, world)
    for found in (words, kept(operators, world, plans=True), kept(operators, world, plans=False)):
        for i, operator in enumerate(operators):
            wrong = [(e, hex(a), hex(b)) for e, (a, b) in enumerate(zip(found[i], wanted[i], strict=True)) if a != b]
            assert not wrong, f"operator {i} {operator}: (element, executor, reference) {wrong[:4]}"
    return words
