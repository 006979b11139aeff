"""Every order of every move of small games with two auditors: the right side wins in all of them.

A game's states form a graph: from each one every legal move of every player is tried on a branch of the chain (I1..I6
are checked by the ghost after each), and states that were met before are not entered again. Silence is a move too: a
side that need not be live may let its clock run out when all other players are idle.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import pytest
from frauds import Arbitrary
from refusals import NO_BASIS
from scene import Call, Play, Scene, Setup, due
from toy import Kind, Lies, Operator, Program, State

from vgame.chain.records import Dispute, Level, Phase, Status, Turn
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.errors import ContractError

#: One operator: all trees below the run have one leaf or two.
ONE = Setup(Program((Operator(1, Kind.CARRY, finite=True),), (State(1, 0),)), steps=2, interval=1, depth=1)
#: A long sum beside it, and a tensor of its own for each.
TWO = Setup(
    Program(
        (Operator(1, Kind.CARRY, finite=True), Operator(1, Kind.SUM, operand=0, blocks=2)), (State(1, 0), State(1, 1))
    ),
    steps=2,
    interval=1,
    depth=1,
)


@dataclass
class Explorer:
    """All states that a game can reach."""

    scene: Scene
    play: Play
    auditors: list[Auditor]
    trainer_is_live: bool
    states: set[Hashable] = field(default_factory=set)
    ends: int = 0
    deepest: int = 0

    def key(self) -> Hashable:
        """Everything but times and money."""
        disputes = [(d.node, d.position, d.status) for d in self.play.disputes()]
        opened = {
            (name, *(a[k] for k in ("kind", "height", "node", "checkpoint", "step", "tensor", "partials") if k in a))
            for name, a in self.play.events("Revealed", "LeafOpened", "SegmentPosted", "TracePosted", "PartialsPosted")
        }
        return self.play.phase, tuple(disputes), frozenset(map(repr, opened))

    def live(self, player: Player) -> bool:
        return self.trainer_is_live if player is self.play.trainer else not isinstance(player, Arbitrary)

    def options(self) -> Iterator[tuple[Player, Call]]:
        """All possible calls of a player."""
        seated = {d.auditor for d in self.play.disputes()}
        for auditor in self.auditors:
            if auditor.address not in seated:
                yield (
                    auditor,
                    Call(
                        "challenge",
                        (self.play.id, int(Level.RUN), 0, self.play.job.run_root, NO_BASIS),
                        self.play.setup.spec.auditor_bond,
                    ),
                )
            elif not isinstance(auditor, Arbitrary) and (call := due(auditor)):
                yield auditor, call
        for number, d in enumerate(self.play.disputes()):
            if d.status is not Status.OPEN:
                continue
            if self.play.client.turn(self.play.id, number)[0] is Turn.TRAINER:
                yield self.play.trainer, self.answer(number, d)
            auditor = next((a for a in self.auditors if a.address == d.auditor), None)
            if isinstance(auditor, Arbitrary) and self.play.client.turn(self.play.id, number)[0] is Turn.AUDITOR:
                for call in auditor.options(number, d):
                    yield auditor, call

    def answer(self, number: int, d: Dispute) -> Call:
        trainer = self.play.trainer
        trainer.defend = lambda job: trainer.answer(job, number, d)
        call = due(trainer)
        del trainer.defend
        assert call is not None
        return call

    def explore(self, depth: int = 0) -> None:
        key = self.key()
        if key in self.states:
            return
        self.states.add(key)
        self.deepest = max(self.deepest, depth)
        if self.play.phase is not Phase.CLAIMED:
            return self.end()
        moves = list(self.options())
        made = [player for player, call in moves if self.branch(player, call, depth)]
        if not any(self.live(player) for player in made):
            self.silence(depth)

    def branch(self, player: Player, call: Call, depth: int) -> bool:
        """Make a move, explore the states after it, undo it; False if the contract does not accept it."""
        node, ghost = self.scene.chain.node, self.scene.ghost
        point, memory = node.snapshot(), ghost.memory()
        try:
            call.send(player.game)
            self.explore(depth + 1)
        except ContractError as error:
            if error.name != "NothingToContest":
                raise
            return False
        finally:
            node.revert(point)
            ghost.remember(memory)
        return True

    def silence(self, depth: int) -> None:
        """Let each clock run out that may; without an open dispute the claim becomes final."""
        node, ghost = self.scene.chain.node, self.scene.ghost
        open_ = [n for n, d in enumerate(self.play.disputes()) if d.status is Status.OPEN]
        for number in open_:
            point, memory = node.snapshot(), ghost.memory()
            turn, deadline = self.play.client.turn(self.play.id, number)
            self.play.advance(max(1, deadline + 1 - self.scene.chain.now()))
            self.scene.game().send("timeout", self.play.id, number)
            assert turn in (Turn.AUDITOR, Turn.AUDITOR_EXPIRED) or not self.trainer_is_live
            self.explore(depth + 1)
            node.revert(point)
            ghost.remember(memory)
        if not open_:
            point, memory = node.snapshot(), ghost.memory()
            self.play.pass_window()
            self.scene.game().send("finalize", self.play.id)
            self.explore(depth + 1)
            node.revert(point)
            ghost.remember(memory)

    def end(self) -> None:
        """The claim is final if and only if it is true; an honest auditor has its bond."""
        lies = self.play.trainer.machine.lies != Lies()
        assert self.play.phase is (Phase.CONVICTED if lies else Phase.FINAL)
        for d in self.play.disputes():
            honest = any(a.address == d.auditor and not isinstance(a, Arbitrary) for a in self.auditors)
            assert not (honest and d.status is Status.DISMISSED)
        self.ends += 1


def word(setup: Setup, step: int, operator: int) -> Lies:
    right = int(setup.honest.output_words(step, operator)[0])
    return Lies(words={(step, operator, 0): right ^ 1})


def explored(scene: Scene, setup: Setup, lies: Lies | None, kinds: list[type[Auditor]]) -> Explorer:
    play = scene.claimed(setup, lies)
    explorer = Explorer(scene, play, [play.auditor(None, kind) for kind in kinds], trainer_is_live=lies is None)
    explorer.explore()
    return explorer


GAMES = {
    "honest claim, two accusers": (None, [Arbitrary, Arbitrary]),
    "fraud in the first step, two honest auditors": (1, [Auditor, Auditor]),
    "fraud in the last step, an honest auditor and a saboteur": (2, [Auditor, Arbitrary]),
    "fraud in the first step, a saboteur and an honest auditor": (1, [Arbitrary, Auditor]),
}


@pytest.mark.parametrize("name", GAMES)
def test_every_order_of_every_move(scene: Scene, name: str) -> None:
    step, kinds = GAMES[name]
    explorer = explored(scene, ONE, step and word(ONE, step, 0), kinds)
    print(f"{name}: {len(explorer.states)} states, {explorer.ends} ends, {explorer.deepest} moves at most")
    assert len(explorer.states) > 50 and explorer.deepest > 12


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("operator", [0, 1])
def test_every_order_of_every_move_with_a_long_sum(scene: Scene, name: str, operator: int) -> None:
    step, kinds = GAMES[name]
    explorer = explored(scene, TWO, step and word(TWO, step, operator), kinds)
    print(
        f"{name}, operator {operator}: {len(explorer.states)} states, {explorer.ends} ends, {explorer.deepest} moves "
        "at most"
    )
    assert len(explorer.states) > 60 and explorer.deepest > 12


def test_an_explorer_that_could_fail(scene: Scene) -> None:
    """Damaged twin: a trainer that need not be live loses an honest claim in some order, and the explorer finds it."""
    play = scene.claimed(ONE)
    explorer = Explorer(scene, play, [play.auditor(None, Arbitrary)], trainer_is_live=False)
    with pytest.raises(AssertionError):
        explorer.explore()
