"""Decide elements of a run by the referee: its checked-in code on the fast chain, with the proofs of the game's agents.

In: a history and a step. Out: the words that the contract computes, and the gas of each call as a transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from deployed import Contract, Reverted
from eth_abi import decode, encode

from vgame.chain.abi import artifact
from vgame.commit.merkle import Kind, Tree
from vgame.commit.tensor import from_words, tensor_root, to_words
from vgame.program.operators import Contract as Contraction
from vgame.runs.history import PROOF_TYPE, History

DEPLOYED = ("Pointwise", "Referee", "Logged")


def deploy_referee() -> Contract:
    """Referee and Pointwise from the checked-in artifacts."""
    artifacts = {name: artifact(name) for name in DEPLOYED}
    pointwise = Contract(artifacts, "Pointwise")
    return Contract(artifacts, "Referee", pointwise.address, near=pointwise)


def deploy_logged() -> Contract:
    """The machine of mode `logged`, on a referee."""
    referee = deploy_referee()
    return Contract(referee.artifacts, "Logged", referee.address, near=referee)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The contract's word of an element and the gas of each call: one, or one per block and the combination."""

    word: int
    gas: tuple[int, ...]


@dataclass(frozen=True)
class StepOnChain:
    """One step of a history under its trace root, or under one with a bit flipped."""

    referee: Contract
    history: History
    step: int

    @property
    def log(self) -> tuple[int, int, int, bytes]:
        """bits, position of the step in its interval, steps of the interval, root of its log."""
        h = self.history
        if h.logs is None:
            return 0, 0, 0, bytes(32)
        position, start = (self.step - 1) % h.interval, (self.step - 1) // h.interval * h.interval
        return h.bundle.log.bits, position, min(h.interval, h.steps - start), h.logs[start // h.interval]

    @cached_property
    def trace(self) -> Tree:
        return Tree(Kind.TRACE, self.history.trace(self.step))

    @cached_property
    def state_root(self) -> bytes:
        return Tree(Kind.STATE, self.history.state(self.step - 1)).root

    @cached_property
    def _words(self) -> dict[int, np.ndarray]:
        return {}

    def words(self, operator: int) -> np.ndarray:
        """The words of the fast executor."""
        if operator not in self._words:
            self._words[operator] = to_words(self.history.outputs(self.step, [operator])[operator])
        return self._words[operator]

    def claimed(self, operator: int, element: int) -> int:
        return int(self.words(operator)[element])

    def context(self, operator: int, element: int, trace: Tree | None = None) -> tuple:
        """struct Context."""
        b = self.history.bundle
        roots = (b.program.root, b.data_root, b.scalar_root, (trace or self.trace).root, self.state_root)
        return (*roots, b.seed, self.step, b.steps, operator, element, *self.log)

    @cached_property
    def _proofs(self) -> dict[tuple[int, int, int | None, bytes], bytes]:
        return {}

    def proof(self, operator: int, element: int, block: int | None = None, trace: Tree | None = None) -> bytes:
        """Made once."""
        key = operator, element, block, (trace or self.trace).root
        if key not in self._proofs:
            self._proofs[key] = self._prove(operator, element, block, trace or self.trace)
        return self._proofs[key]

    def _prove(self, operator: int, element: int, block: int | None, tree: Tree) -> bytes:
        return self.history.prove(self.step, operator, element, block, lambda o: tree.path(0, o)).proof

    def blocks(self, operator: int) -> int:
        op = self.history.program.operators[operator]
        return op.blocks if isinstance(op, Contraction) else 1

    def partial(self, operator: int, element: int, block: int, trace: Tree | None = None) -> bytes:
        proof = self.proof(operator, element, block, trace)
        return bytes(self.referee.call("evaluateBlock", self.context(operator, element, trace), block, proof))

    def decide(self, operator: int, element: int, trace: Tree | None = None) -> Ruling:
        """The contract's decision about the element under the trace; long sums block by block."""
        if (blocks := self.blocks(operator)) == 1:
            proof = self.proof(operator, element, None, trace)
            word = self.referee.call("evaluate", self.context(operator, element, trace), proof)
            return Ruling(word, (self.referee.gas,))
        partials, gas = [], []
        for j in range(blocks):
            partials.append(self.partial(operator, element, j, trace))
            gas.append(self.referee.gas)
        partials += self.history.witness(self.step, operator, element)
        word = self.referee.call("combine", self.context(operator, element, trace), partials)
        return Ruling(word, (*gas, self.referee.gas))

    def forged(self, operator: int, element: int, bit: int) -> Tree:
        """The trace of a trainer that claims the element with one bit flipped."""
        words = self.words(operator).copy()
        words[element] ^= 1 << bit
        leaves = list(self.trace.levels[0])
        leaves[operator] = tensor_root(from_words(words, integer=True))
        return Tree(Kind.TRACE, leaves)

    def faults(self, operator: int, element: int, random: Random) -> tuple[list[str], Ruling]:
        """The problems (expected: none): the contract's word is the executor's and the reference's, also under the
        trace of a trainer that claims it with one bit flipped; a proof with one bit flipped reverts with the expected
        error."""
        honest, ruling = self.claimed(operator, element), self.decide(operator, element)
        words = {
            "contract": ruling.word,
            "reference": self.history.evaluate(self.step, operator, element),
            "contract, under a forged trace": self._under_a_forged_trace(operator, element, random),
        }
        found = [f"{who}: {word:08x}, not {honest:08x}" for who, word in words.items() if word != honest]
        block = random.randrange(blocks) if (blocks := self.blocks(operator)) > 1 else None
        broken, expected = damage(self.proof(operator, element, block), random)
        arguments = ("evaluate",) if block is None else ("evaluateBlock",)
        arguments += (self.context(operator, element), *(() if block is None else (block,)), broken)
        try:
            self.referee.call(*arguments)
            found.append(f"a proof with a flipped bit is accepted, {expected} is expected")
        except Reverted as error:
            if error.name != expected:
                found.append(f"a proof with a flipped bit reverts with {error.name}, not {expected}")
        return found, ruling

    def _under_a_forged_trace(self, operator: int, element: int, random: Random) -> int:
        """The contract's word against a claim of another one (of a long sum one block is decided again)."""
        forged = self.forged(operator, element, random.randrange(32))
        assert forged.root != self.trace.root
        if (blocks := self.blocks(operator)) == 1:
            return self.decide(operator, element, forged).word
        partials, block = self.history.partials(self.step, operator, element), random.randrange(blocks)
        partials[block] = self.partial(operator, element, block, forged)
        partials += self.history.witness(self.step, operator, element)
        return int(self.referee.call("combine", self.context(operator, element, forged), partials))


def damage(proof: bytes, random: Random) -> tuple[bytes, str]:
    """The proof with one bit flipped in the record, the opened words or a sibling, and the expected error."""
    ((header, record, path, openings),) = decode([PROOF_TYPE], proof)
    openings = [[words, list(siblings), list(outer)] for words, siblings, outer in openings]
    where = random.randrange(2 if openings else 1)
    if where == 0:
        record = _flip(record, random)
        return encode([PROOF_TYPE], [(header, record, path, openings)]), "RecordMismatch"
    opening = random.choice(openings)
    part = random.choice([i for i in range(3) if opening[i]])
    if part == 0:
        opening[0] = _flip(opening[0], random)
    else:
        sibling = random.randrange(len(opening[part]))
        opening[part][sibling] = _flip(opening[part][sibling], random)
    return encode([PROOF_TYPE], [(header, record, path, openings)]), "WrongRoot"


def _flip(data: bytes, random: Random) -> bytes:
    bit = random.randrange(8 * len(data))
    return (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little")
