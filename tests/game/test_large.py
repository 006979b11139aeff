"""A dispute over 2^20 steps, 2^12 operators and 2^25 elements: its moves and gas. The trees are never built, only the
nodes along the path.

The program negates a state tensor of zeros 4,094 times, so every honest root is known. The trainer has one wrong word
in one operator's output, and it propagates to all later operators. The contracts are the real ones, on the embedded
chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from functools import cache

import pytest
from refusals import NO_BASIS
from scene import ETHER, Setup, embedded_chain

from vgame.arithmetic.functions import Function
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Level, Status
from vgame.chain.wallet import Wallet, deploy_game
from vgame.commit.merkle import Kind, Tree, leaf_hash, node_hash, padding, tree_height
from vgame.commit.trees import reveal_depth, run_leaf
from vgame.commit.words import LEAF_WORDS
from vgame.program.operators import Map, Ref, RefClass, identity_access, immediate
from vgame.program.program import Program, Source

STEPS, INTERVAL, OPERATORS, ELEMENTS, STATES, DEPTH = 2**20, 2**10, 2**12, 2**25, 64, 6
STEP, OPERATOR, ELEMENT = 700_001, 3_001, 20_000_001  # of the fraud
ZERO, MINUS = bytes(4), (1 << 31).to_bytes(4, "little")


@dataclass(frozen=True)
class Sparse:
    """A tree over `count` leaves that are equal in long runs: leaf(i) is leaf i, `breaks` are the places of changes."""

    kind: Kind
    count: int
    leaf: Callable[[int], bytes]
    breaks: tuple[int, ...] = ()

    @property
    def height(self) -> int:
        return tree_height(self.count)

    @property
    def root(self) -> bytes:
        return self.node(self.height, 0)

    def node(self, height: int, index: int) -> bytes:
        first, last = index << height, (index + 1) << height
        if first >= self.count:
            return padding(self.kind, height)
        if height == 0:
            return self.leaf(first)
        if last <= self.count and not any(first < b < last for b in self.breaks):
            return uniform(self.kind, height, self.leaf(first))
        return node_hash(self.kind, self.node(height - 1, 2 * index), self.node(height - 1, 2 * index + 1))

    def path(self, height: int, index: int, top: int) -> list[bytes]:
        return [self.node(h, (index >> (h - height)) ^ 1) for h in range(height, top)]


@cache
def uniform(kind: Kind, height: int, leaf: bytes) -> bytes:
    return leaf if height == 0 else node_hash(kind, *[uniform(kind, height - 1, leaf)] * 2)


def tensor(word: bytes, other: bytes | None = None) -> Sparse:
    """2^25 equal words, or one of them another."""
    usual = leaf_hash(Kind.TENSOR, word * LEAF_WORDS)
    if other is None:
        return Sparse(Kind.TENSOR, ELEMENTS // LEAF_WORDS, lambda i: usual)
    at = ELEMENT // LEAF_WORDS
    special = leaf_hash(Kind.TENSOR, fraud_leaf(word, other))
    return Sparse(Kind.TENSOR, ELEMENTS // LEAF_WORDS, lambda i: special if i == at else usual, (at, at + 1))


def fraud_leaf(word: bytes, other: bytes) -> bytes:
    words = [word] * LEAF_WORDS
    words[ELEMENT % LEAF_WORDS] = other
    return b"".join(words)


CHAIN = OPERATORS - 2  # an even number of negations, then two operators of one word
ONE, MINUS_ONE = (0x3F800000).to_bytes(4, "little"), (0xBF800000).to_bytes(4, "little")


def program() -> Program:
    refs = [Ref(RefClass.STATE, 0), *(Ref(RefClass.OPERATOR, i) for i in range(CHAIN - 1))]
    negations = [Map(Function.NEG, (ELEMENTS,), (identity_access(ref, ELEMENTS),), False) for ref in refs]
    small = Map(Function.ABS, (1,), (immediate(0),), False)
    sources = [Source(Ref(RefClass.OPERATOR, CHAIN - 1), ELEMENTS)]
    sources += [Source(Ref(RefClass.STATE, i), 1) for i in range(1, STATES)]
    return Program((*negations, small, small), tuple(sources), (), 0, 0, OPERATORS - 1)


class Cheat:
    """The trainer's trees along the path to its fraud."""

    def __init__(self) -> None:
        word = leaf_hash(Kind.TENSOR, bytes(4 * LEAF_WORDS))
        first = [tensor(ZERO).root, tensor(ZERO, ONE).root]
        self.honest, self.false = (Tree(Kind.STATE, [root, *[word] * (STATES - 1)]).root for root in first)
        self.state = Tree(Kind.STATE, [first[1], *[word] * (STATES - 1)])
        count = STEPS // INTERVAL
        self.checkpoint = (STEP - 1) // INTERVAL + 1
        self.run = Sparse(Kind.RUN, count, lambda i: run_leaf(self.after((i + 1) * INTERVAL)), (self.checkpoint - 1,))
        start = (self.checkpoint - 1) * INTERVAL
        self.segment = Sparse(Kind.SEGMENT, INTERVAL + 1, lambda j: self.after(start + j), (STEP - start,))
        roots = [tensor(MINUS).root, tensor(ZERO).root, tensor(MINUS, MINUS_ONE).root, tensor(ZERO, ONE).root]
        self.trace = Tree(Kind.TRACE, [*(roots[i % 2 + 2 * (i >= OPERATOR)] for i in range(CHAIN)), word, word])
        self.tensor = tensor(ZERO, ONE)

    def after(self, step: int) -> bytes:
        """State root after a step."""
        return self.false if step >= STEP else self.honest


@pytest.fixture
def chain() -> Iterator[Chain]:
    with embedded_chain() as chain:
        yield chain


def test_a_dispute_of_the_largest_kind(chain: Chain) -> None:
    wallets = [Wallet(chain) for _ in range(3)]
    for wallet in wallets:
        chain.fund(wallet.address, 100 * ETHER)
    address = deploy_game(wallets[0])
    client, trainer, auditor = (Game(chain, address, w) for w in wallets)
    ordered, cheat = program(), Cheat()
    usual = Setup().spec
    spec = replace(
        usual, program_root=ordered.root, initial_root=cheat.honest, steps=STEPS, interval=INTERVAL, depth=DEPTH
    )
    client.send("createJob", astuple(spec), 1, bytes(32), ordered.header, value=spec.reward)
    job = client.job_id(spec, client.wallet.address, 1)
    trainer.send("acceptJob", job, value=spec.trainer_bond)
    run = cheat.run
    trainer.send("postClaim", job, run.root, cheat.false, run.path(0, run.count - 1, run.height), bytes(32), bytes(32))

    gas = []

    def send(game: Game, name: str, *args, value: int = 0) -> None:
        if name not in ("challenge", "reveal", "openLeaf"):
            args = (args[0], client.dispute(job, 0).position, *args[1:])
        gas.append(int(game.send(name, job, *args, value=value)["gasUsed"]))

    def descend(level: Level, tree, index: int, shown: bool, last: str = "select", *extra) -> None:
        """Reveal and select down to leaf `index`; `shown`: the first reveal came with a post."""
        height, position = tree.height, 0
        while height:
            depth = reveal_depth(height, DEPTH)
            if not shown:
                children = [tree.node(height - depth, (position << depth) + i) for i in range(1 << depth)]
                send(trainer, "reveal", int(level), height, children)
            shown = False
            child = index >> (height - depth)
            path = tree.path(height - depth, child, height)
            final = height == depth
            name, more = (last, extra) if final else ("select", ())
            send(auditor, name, 0, tree.node(height - depth, child), child & ((1 << depth) - 1), path, *more)
            height, position = height - depth, child

    send(auditor, "challenge", int(Level.RUN), 0, run.root, NO_BASIS, value=spec.auditor_bond)
    descend(Level.RUN, run, cheat.checkpoint - 1, False)
    segment = cheat.segment
    depth = reveal_depth(segment.height, DEPTH)
    base, index = segment.height - depth, cheat.checkpoint - 1
    children = [segment.node(base, i) for i in range((INTERVAL >> base) + 1)]
    state, prior = cheat.after(cheat.checkpoint * INTERVAL), cheat.after(index * INTERVAL)
    send(
        trainer,
        "postSegment",
        0,
        (
            state,
            prior,
            run.path(0, index - 1, run.height),
            children,
            segment.path(0, 0, base),
            segment.path(0, INTERVAL, base),
            bytes(32),
        ),
    )
    descend(Level.SEGMENT, segment, STEP - index * INTERVAL, True)
    trace = cheat.trace
    send(trainer, "postTrace", 0, trace.descendants(trace.height, 0, reveal_depth(trace.height, DEPTH)))
    record = (ordered.header, ordered.records[OPERATOR], ordered.operator_tree.path(0, OPERATOR))
    descend(Level.TRACE, trace, OPERATOR, True, "selectOperator", record)
    descend(Level.TENSOR, cheat.tensor, ELEMENT // LEAF_WORDS, False)
    leaf = fraud_leaf(ZERO, ONE)
    send(trainer, "openLeaf", leaf)
    send(auditor, "selectElement", 0, ELEMENT, leaf)

    d = client.dispute(job, 0)
    assert (d.status, d.level, d.step, d.operator, d.index) == (Status.OPEN, Level.ELEMENT, STEP, OPERATOR, ELEMENT)
    assert d.word == 0x3F800000
    print(f"{len(gas)} transactions, {sum(gas):,} gas before the leaf")
    assert len(gas) + 1 <= 30 and max(gas) < 2_000_000
    # docs/benchmarks.md: 1.855M; the target is 1.86M, at most 1.75M is wanted, the aim is 1.5M
    assert sum(gas) <= 1_860_000
