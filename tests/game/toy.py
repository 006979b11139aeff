"""A cheap machine that implements vgame.commit.machine.Machine. Twin: tests/contracts/ToyReferee.sol.

word(step, operator, element) = (hash of seed, step, operator, element + the word that the operator's kind reads) &
FINITE_MASK, unless the program lists it as special; for sums the hash is that of each block, and the word their
exclusive or. `Lies` makes the machine a cheat's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
from eth_abi import encode

from vgame.commit.machine import ElementProof, PathOf, RecordProof, Stop
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import Tree
from vgame.commit.words import LEAF_WORDS, leaf_bytes, words_root, words_tree

UNCHANGED = 0xFFFFFFFF
FINITE_MASK = 0xBFFFFFFF
INFINITY = 0x7F800000
NAN = 0x7FC00000
PROGRAM_TYPE = "((uint32,uint8,bool,uint32,uint32)[],(uint32,uint32)[],(uint64,uint32,uint32,uint32)[])"
PROOF_TYPE = "(bytes,bytes,bytes32[],bytes32[])"


class Kind(IntEnum):
    """The operand of an operator: none; the state before; an earlier operator; the same, decided in blocks."""

    HASH = 0
    CARRY = 1
    CHAIN = 2
    SUM = 3


@dataclass(frozen=True)
class Operator:
    """Its output; `operand` is a state tensor (CARRY) or an operator (CHAIN, SUM)."""

    elements: int
    kind: Kind = Kind.HASH
    finite: bool = False
    operand: int = 0
    blocks: int = 1


@dataclass(frozen=True)
class State:
    """A state tensor and the operator that becomes it."""

    elements: int
    operator: int = UNCHANGED


@dataclass(frozen=True)
class Special:
    """A word that is an exception to the rule."""

    step: int
    operator: int
    element: int
    word: int


@dataclass(frozen=True)
class Program:
    operators: tuple[Operator, ...]
    states: tuple[State, ...]
    specials: tuple[Special, ...] = ()

    @cached_property
    def header(self) -> bytes:
        parts = [[astuple(x) for x in part] for part in (self.operators, self.states, self.specials)]
        return encode([PROGRAM_TYPE], [tuple(parts)])

    @property
    def root(self) -> bytes:
        return hashlib.sha256(self.header).digest()


@dataclass(frozen=True)
class Lies:
    """The changes of a cheat, by position.

    words: an output, and so everything after it; shown: only its words in the trace; state: (step, tensor, element)
    against its own trace; initial: (tensor, element); partials: two blocks of an element are changed so that their sum
    stays; block: where a false sum is hidden; stop: a step at which it claims that the run diverged; endless: it
    continues after a word that is not finite.
    """

    words: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    shown: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    state: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    initial: Mapping[tuple[int, int], int] = field(default_factory=dict)
    partials: Mapping[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)
    block: int = 0
    stop: Stop | None = None
    endless: bool = False


def hashed(seed: int, step: int, operator: int, elements: int) -> np.ndarray:
    """Eight words of each digest of (seed u64, step u64, operator u32, element / 8 u32)."""
    prefix = hashlib.sha256(seed.to_bytes(8, "big") + step.to_bytes(8, "big") + operator.to_bytes(4, "big"))
    digests = []
    for block in range(-(-elements // 8)):
        digest = prefix.copy()
        digest.update(block.to_bytes(4, "big"))
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), ">u4")[:elements].astype(np.uint32)


def set_words(words: np.ndarray, changes: Mapping[int, int]) -> np.ndarray:
    """A copy with some words changed."""
    words = words.copy()
    for element, word in changes.items():
        words[element] = word
    return words


def finite(words: np.ndarray) -> np.ndarray:
    return (words & 0x7F800000) != 0x7F800000


class ToyMachine:
    """One side's computation of a toy job."""

    def __init__(self, program: Program, seed: int, steps: int, interval: int, lies: Lies | None = None) -> None:
        self.program, self.seed, self.steps, self.interval = program, seed, steps, interval
        self.lies = lies or Lies()
        self._outputs: dict[tuple[int, int], np.ndarray] = {}
        self._states: dict[int, list[np.ndarray]] = {}

    # ---- computing ----

    def state_words(self, step: int) -> list[np.ndarray]:
        """The state tensors after a step."""
        if step not in self._states:
            tensors = [self._tensor(step, t) for t in range(len(self.program.states))]
            self._states[step] = tensors
        return self._states[step]

    def _tensor(self, step: int, tensor: int) -> np.ndarray:
        state = self.program.states[tensor]
        if step == 0:
            words = hashed(self.seed, 0, tensor, state.elements) & FINITE_MASK
            return set_words(words, {e: w for (t, e), w in self.lies.initial.items() if t == tensor})
        unchanged = state.operator == UNCHANGED
        words = self.state_words(step - 1)[tensor] if unchanged else self.output_words(step, state.operator)
        return set_words(words, {e: w for (s, t, e), w in self.lies.state.items() if (s, t) == (step, tensor)})

    def output_words(self, step: int, index: int) -> np.ndarray:
        """An output of a step as it is computed."""
        if (step, index) not in self._outputs:
            specials = {s.element: s.word for s in self.program.specials if (s.step, s.operator) == (step, index)}
            lies = {e: w for (s, o, e), w in self.lies.words.items() if (s, o) == (step, index)}
            self._outputs[step, index] = set_words(self._output(step, index), specials | lies)
        return self._outputs[step, index]

    def _output(self, step: int, index: int) -> np.ndarray:
        op = self.program.operators[index]
        if op.kind is Kind.SUM:
            return np.array([self._combine(self._partials(step, index, e)) for e in range(op.elements)], np.uint32)
        words = hashed(self.seed, step, index, op.elements)
        if op.kind is not Kind.HASH:
            carry = op.kind is Kind.CARRY
            operand = self.state_words(step - 1)[op.operand] if carry else self.output_words(step, op.operand)
            words = words + operand[np.arange(op.elements) % len(operand)]
        return words & np.uint32(FINITE_MASK)

    def _partials(self, step: int, index: int, element: int) -> list[bytes]:
        op = self.program.operators[index]
        operand = self.output_words(step, op.operand)
        word = int(operand[element % len(operand)])
        prefix = encode_packed(self.seed, step, index, element)
        parts = [prefix + part.to_bytes(4, "big") + word.to_bytes(4, "big") for part in range(op.blocks)]
        return [hashlib.sha256(part).digest() for part in parts]

    def _combine(self, partials: list[bytes]) -> int:
        word = 0
        for partial in partials:
            word ^= int.from_bytes(partial[:4], "big")
        return word & FINITE_MASK

    def shown_words(self, step: int, operator: int) -> np.ndarray:
        """An output as it is shown in the trace."""
        stop = self.stop
        assert stop is None or step <= stop.step, f"step {step} was never computed"
        lies = {e: w for (s, o, e), w in self.lies.shown.items() if (s, o) == (step, operator)}
        return set_words(self.output_words(step, operator), lies)

    # ---- Machine ----

    @cached_property
    def stop(self) -> Stop | None:
        if self.lies.endless or self.lies.stop:
            return self.lies.stop
        for step in range(1, self.steps + 1):
            for index, op in enumerate(self.program.operators):
                bad = np.flatnonzero(~finite(self.output_words(step, index))) if op.finite else []
                if len(bad):
                    return Stop(step, index, int(bad[0]))
        return None

    logs = None

    def witness(self, step: int, operator: int, element: int) -> list[bytes]:
        return []

    @property
    def operators(self) -> int:
        return len(self.program.operators)

    @cached_property
    def checkpoints(self) -> list[bytes]:
        ends = range(self.interval, self.steps + self.interval, self.interval)
        last = self.stop.step - 1 if self.stop else self.steps
        return [self.state_root(min(end, self.steps)) for end in ends if min(end, self.steps) <= last]

    def state_root(self, step: int) -> bytes:
        return Tree(Tree_.STATE, self.state(step)).root

    def segment(self, checkpoint: int) -> list[bytes]:
        start = (checkpoint - 1) * self.interval
        end = min(start + self.interval, self.stop.step - 1 if self.stop else self.steps)
        return [self.state_root(s) for s in range(start, end + 1)]

    def state(self, step: int) -> list[bytes]:
        assert self.stop is None or step <= self.stop.step, f"the state after step {step} was never computed"
        return [words_root(data(t)) for t in self.state_words(step)]

    def trace(self, step: int) -> list[bytes]:
        return [words_root(self.words(step, o)) for o in range(self.operators)]

    def words(self, step: int, operator: int) -> bytes:
        return data(self.shown_words(step, operator))

    def source(self, tensor: int) -> int | None:
        operator = self.program.states[tensor].operator
        return None if operator == UNCHANGED else operator

    def finite(self, operator: int) -> bool:
        return self.program.operators[operator].finite

    def source_record(self, tensor: int) -> RecordProof:
        elements = self.program.states[tensor].elements
        return RecordProof(self.program.header, bytes(1) + elements.to_bytes(4) + tensor.to_bytes(4), [])

    def operator_record(self, operator: int) -> RecordProof:
        return RecordProof(self.program.header, encode(["uint256"], [operator]), [])

    def blocks(self, operator: int) -> int:
        return self.program.operators[operator].blocks

    def operator_name(self, operator: int) -> str:
        return f"{self.program.operators[operator].kind.name} {operator}"

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        """A cheat's partial sums add up to the word that it shows."""
        partials = self._partials(step, operator, element)
        difference = self._combine(partials) ^ int(self.shown_words(step, operator)[element])
        for block, change in [
            (self.lies.block, difference),
            *((b, 1) for b in self.lies.partials.get((step, operator, element), ())),
        ]:
            first = int.from_bytes(partials[block][:4], "big") ^ change
            partials[block] = first.to_bytes(4, "big") + partials[block][4:]
        return partials

    def prove(self, step: int, operator: int, element: int, block: int | None, path_of: PathOf) -> ElementProof:
        op = self.program.operators[operator]
        words, siblings, path = b"", [], []
        if op.kind is Kind.CARRY:
            words, siblings = opening(data(self.state_words(step - 1)[op.operand]), element)
            path = Tree(Tree_.STATE, self.state(step - 1)).path(0, op.operand)
        elif op.kind is not Kind.HASH:
            words, siblings = opening(self.words(step, op.operand), element)
            path = path_of(op.operand)
        proof = encode([PROOF_TYPE], [(self.program.header, words, siblings, path)])
        return ElementProof(proof, op.kind is Kind.CARRY)


def encode_packed(seed: int, step: int, operator: int, element: int) -> bytes:
    return seed.to_bytes(8, "big") + step.to_bytes(8, "big") + operator.to_bytes(4, "big") + element.to_bytes(4, "big")


def data(words: np.ndarray) -> bytes:
    """Little-endian bytes."""
    return words.astype("<u4").tobytes()


def opening(words: bytes, element: int) -> tuple[bytes, list[bytes]]:
    """The leaf with the word that an element reads, and its path."""
    leaf = element % (len(words) // 4) // LEAF_WORDS
    return leaf_bytes(words, leaf), words_tree(words).path(0, leaf)


__all__ = [
    "FINITE_MASK",
    "INFINITY",
    "NAN",
    "Kind",
    "Lies",
    "Operator",
    "Program",
    "Special",
    "State",
    "Stop",
    "ToyMachine",
]
