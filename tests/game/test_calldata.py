"""All parties read the content that the contract accepts, for every encoding of the call: content is in events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from eth_abi import decode, encode
from eth_abi.grammar import ABIType, TupleType, parse
from frauds import LIE, SETUP
from revm_calls import ENTRIES, OUTPUTS, SELECTORS, checksummed, decode_log, decode_output
from revm_node import Reverted
from scene import ETHER, Call, Play, Scene, due, payee_game
from web3 import Web3
from wild import Frame, Layout, frame, number, wild

from vgame.chain.game import Game
from vgame.chain.records import Level, Phase
from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.commit.trees import reveal_depth
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView, Openings
from vgame.dispute.trainer import Trainer

PUBLISHING = {"reveal", "openLeaf", "postSegment", "postTrace", "postPartials"}


def encoded_otherwise(game: Game, encode: Any) -> list[str]:
    """From now on `game` encodes its publishing calls by `encode`; the list of the names of these calls, which
    grows."""
    usual, odd = game._transaction, []

    def transaction(name: str, args: Any, value: int = 0) -> dict[str, Any]:
        request = usual(name, args, value)
        if name in PUBLISHING:
            request["data"] = "0x" + (SELECTORS[name] + encode(name, args)).hex()
            odd.append(name)
        return request

    game._transaction = transaction
    return odd


def backwards(name: str, args: tuple[Any, ...]) -> bytes:
    """Every part precedes the frame that refers to it (negative offsets); the head alone comes first."""

    class Backwards(Layout):
        def _children(self, one: Frame) -> list[Frame]:
            return super()._children(one)[::-1]

    dice = random.Random(0)
    dice.random = lambda: 1.0  # nothing is shuffled or shared
    return bytes(Backwards(frame(ENTRIES[name]["inputs"], args), dice).data)


def test_content_before_its_frame_is_read(scene: Scene) -> None:
    """An array before its struct has an offset modulo 2^256: the contract accepts it, so the auditor must read it."""
    play = scene.claimed(SETUP, LIE)
    odd = encoded_otherwise(play.trainer.game, backwards)
    assert play.run_to_end(play.trainer, play.auditor()) is Phase.CONVICTED
    assert play.verdicts == [("Convicted", 0, "element")] and set(odd) == PUBLISHING


@pytest.mark.parametrize("seed", range(3))
def test_unusual_encodings_of_a_trainer_are_read(scene: Scene, seed: int) -> None:
    """It tries layouts until the contract accepts one; the auditor reads all of them."""
    play, dice = scene.claimed(SETUP, LIE), random.Random(seed)
    game = play.trainer.game

    def taken(name: str, args: tuple[Any, ...]) -> bytes:
        while True:
            data = wild(ENTRIES[name]["inputs"], args, dice)
            try:
                request = {
                    "from": game.wallet.address,
                    "to": game.address,
                    "data": "0x" + (SELECTORS[name] + data).hex(),
                }
                scene.chain.node.call(request)
                return data
            except Reverted:
                pass

    encoded_otherwise(game, taken)
    assert play.run_to_end(play.trainer, play.auditor()) is Phase.CONVICTED
    assert play.verdicts == [("Convicted", 0, "element")]


def test_openings_through_a_contract(scene: Scene) -> None:
    """A trainer that is a contract: its inputs are not those of a transaction, and are read at the same place."""
    play = scene.post(SETUP)
    payee = payee_game(scene, "TAKE")
    scene.chain.fund(payee.wallet.address, 100 * ETHER)
    trainer = Trainer(payee, play.id, SETUP.machine(LIE))
    trainer.accept()
    trainer.claim()
    assert play.run_to_end(trainer, play.auditor()) is Phase.CONVICTED
    assert play.verdicts == [("Convicted", 0, "element")]


# ---- the differential fuzzer ----


def stations(play: Play) -> Iterator[tuple[Trainer, Auditor, Call]]:
    """Every publishing call that a dispute makes, before it is made."""
    players = (play.trainer, play.auditor())
    while play.phase is Phase.CLAIMED:
        for player in players:
            call = due(player)
            if call and call.name in PUBLISHING:
                yield *players, call
            if call and call.name == "prove":
                return
            if call:
                call.send(player.game)


def other_content(call: Call, dice: random.Random) -> Call:
    """Arbitrary content if it is accepted: most of its words could be a length."""
    if call.name == "reveal":
        kind, height = dice.randrange(1, 6), dice.randrange(1, 7)
        width = 1 << reveal_depth(height, SETUP.depth)
        children = [dice.choice((number(width), bytes(32), dice.randbytes(32))) for _ in range(width)]
        return Call("reveal", (call.args[0], kind, height, children))
    words = b"".join(dice.choice((number(512), dice.randbytes(32))) for _ in range(16))
    return call.but(1, words) if call.name == "openLeaf" else call


class Trial:
    """One publishing call at its station; every case begins at the same state."""

    def __init__(self, play: Play, trainer: Trainer, auditor: Auditor, call: Call) -> None:
        self.play, self.trainer, self.auditor, self.call = play, trainer, auditor, call
        self.node = play.scene.chain.node
        self.disputes = play.disputes()

    def make(self, data: bytes) -> bool:
        """Send it, compare, undo it; False if the contract refuses."""
        request = {"from": self.trainer.address, "to": self.trainer.game.address, "data": "0x" + data.hex()}
        self.node._next().enter(self.node.evm)
        point = self.node.evm.snapshot()
        try:
            self.node._run(self.node.evm, request)
            self.node._receipt("case", request, 1, None, list(self.node.evm.result.logs))
            self.compare()
        except Reverted:
            return False
        finally:
            vars(self.auditor.game.contents).pop("find", None)
            self.node.receipts.pop("case", None)
            self.node.forget()
            self.node.evm.revert(point)
        return True

    def compare(self) -> None:
        """An agent reads the content that the contract has stored."""
        view, game = ClaimView(self.auditor, self.play.job), self.auditor.game
        openings, events = Openings(game, self.play.id), [decode_log(e) for e in self.node.receipts["case"]["logs"]]
        assert events
        found = lambda key, topics, time, check: next(c for e in events if (c := check(e)) is not None)  # noqa: E731
        game.contents.find = found  # this block is never made
        posts = self.call.name in ("postSegment", "postTrace")
        openings.times |= {e.args["node"]: 1 for e in events if posts and e.name == "Revealed"}
        for name, args in ((e.name, e.args) for e in events):
            match name:
                case "Revealed":  # reading checks that the children fold to the node
                    assert openings.get((args["kind"], args["height"], args["node"]))
                    posted = self.call.name in ("postSegment", "postTrace")
                    assert posted or game.opened(self.play.id, args["kind"], args["height"], args["node"])
                case "LeafOpened":
                    assert len(openings.leaf(args["node"])) == 512
                    assert game.opened(self.play.id, Level.TENSOR, 0, args["node"])
                case "SegmentPosted":
                    self.compare_root(
                        openings, Level.SEGMENT, game.segment_root(self.play.id, args["checkpoint"]), args
                    )
                case "TracePosted":
                    self.compare_root(openings, Level.TRACE, game.trace_root(self.play.id, args["step"]), args)
                case "PartialsPosted":  # the stored root is not shown; the content read must open it
                    self.open_partials(args["dispute"], view.partials(self.disputes[args["dispute"]]))

    def compare_root(self, openings: Openings, level: Level, stored: bytes | None, args: dict[str, Any]) -> None:
        heights = {Level.SEGMENT: 2, Level.TRACE: 3}  # of SETUP's trees
        assert stored == args["root"] and openings.get((level, heights[level], stored))

    def open_partials(self, number: int, partials: list[bytes]) -> None:
        tree, game = Tree(Kind.PARTIAL, [leaf_hash(Kind.PARTIAL, p) for p in partials]), self.auditor.game
        game._run(
            game._request(
                "selectPartial",
                (self.play.id, number, self.play.dispute(number).position, tree.node(0, 0), 0, tree.path(0, 0)),
            )
        )


def fuzz(scene: Scene, cases: int) -> None:
    play, dice, taken = scene.claimed(SETUP, LIE), random.Random(cases), Counter[str]()
    for trainer, auditor, call in stations(play):
        trial = Trial(play, trainer, auditor, call)
        for _ in range(cases):
            other = other_content(call, dice) if dice.random() < 0.7 else call
            data = SELECTORS[call.name] + wild(ENTRIES[call.name]["inputs"], other.args, dice)
            taken[call.name] += trial.make(data)
            taken[call.name + " tried"] += 1
    print(dict(taken))
    for name in PUBLISHING:  # a fuzzer whose calls are all refused compares nothing
        assert 0.1 < taken[name] / taken[f"{name} tried"] < 0.95, name


def test_the_contract_and_the_agents_read_the_same_content(scene: Scene) -> None:
    fuzz(scene, cases=60)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_encodings(scene: Scene) -> None:
    fuzz(scene, cases=17_000)


def test_views_are_read_as_eth_abi_reads_them() -> None:
    """The tests' own, faster reader of results, on drawn values."""
    dice = random.Random(1)

    def drawn(kind: ABIType) -> Any:
        if kind.is_array:
            return [drawn(kind.item_type) for _ in range(dice.randrange(6))]
        if isinstance(kind, TupleType):
            return tuple(drawn(part) for part in kind.components)
        match kind.base:
            case "bool":
                return dice.random() < 0.5
            case "uint":
                return dice.getrandbits(kind.sub)
        data = dice.randbytes(kind.sub or 20)
        return data if kind.base == "bytes" else Web3.to_checksum_address(data)

    for name, kinds in OUTPUTS.items():
        for _ in range(20 if kinds else 0):
            values = [drawn(parse(kind)) for kind in kinds]
            raw = encode(kinds, values)
            assert decode_output(name, "0x" + raw.hex()) == checksummed(decode(kinds, raw))
