"""Agents are restartable: killed at any move and started again from the chain and their own data, they resume and win.

A move just made by another instance of the agent, or by another account, counts as made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from frauds import SETUP, SUM, Bluffer, Forcer, Mistaken, state_lie, word_lie
from scene import Call, Scene, due
from toy import INFINITY, Lies, Special

from vgame.chain.records import Level, Phase, Status
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ContractError

SUM_LIE = word_lie(6, SUM, 4, 1)[0]
LEFT_ALONE = state_lie(6, 5, 0)[0]
DIVERGING = replace(SETUP, program=replace(SETUP.program, specials=(Special(5, 1, 130, INFINITY),)))

Make = Callable[[], Player]


class Story:
    """A job from its order to the last withdrawal; both players can be made anew at any time."""

    def __init__(self, scene: Scene, trainers: Lies | None, auditors: Lies | None, setup: Any = SETUP) -> None:
        self.play = scene.post(setup)
        self.lies = {"trainer": trainers, "auditor": auditors}
        self.players = {name: self.fresh(name, scene.game()) for name in self.lies}

    def fresh(self, name: str, game: Any) -> Player:
        """A new object with the wallet, the job's identity and the computed run."""
        honest, cheat = {"trainer": (Trainer, Bluffer), "auditor": (None, Mistaken)}[name]
        if name == "auditor" and self.lies[name] is None:
            return type(self.play.auditor())(game, self.play.id, self.play.machine(None))
        cls = honest if self.lies[name] is None else cheat
        return cls(game, self.play.id, self.play.machine(self.lies[name]))

    def kill(self, name: str) -> None:
        """Start it again."""
        self.players[name] = self.fresh(name, self.players[name].game)

    def start(self) -> None:
        self.play.trainer = self.players["trainer"]
        self.players["trainer"].accept()

    def moves(self, each: Callable[[str, Call], bool | None]) -> list[str]:
        """Play to the end; `each` is called before every call of the current player, which then sends it unless `each`
        returns that it sent it."""
        made: list[str] = []
        for _ in range(200):
            sent = len(made)
            for name in ("trainer", "auditor"):
                call = due(self.players[name])
                if call:
                    made.append(call.name)
                    if not each(name, call):
                        self.players[name].step()
            if len(made) == sent:
                if self.play.phase is Phase.CLAIMED:
                    self.play.wait_for_clocks()
                else:
                    return made
        raise AssertionError("it never ends")


STORIES = {
    "a wrong sum": (SUM_LIE, None, SETUP, [("Convicted", 0, "element")]),
    "a tensor that is left alone": (LEFT_ALONE, None, SETUP, [("Convicted", 0, "opening")]),
    "a mistaken auditor": (None, SUM_LIE, SETUP, [("Dismissed", 0, "element")]),
    "a run that diverged": (None, Lies(words={(5, 1, 130): 1}), DIVERGING, [("Dismissed", 0, "element")]),
    "a hidden divergence": (Lies(endless=True), None, DIVERGING, [("Convicted", 0, "opening")]),
}
MOVES = {
    "a wrong sum": {
        "postClaim", "challenge", "reveal", "select", "postSegment", "postTrace", "selectOperator", "openLeaf",
        "selectElement", "postPartials", "selectPartial", "prove", "withdraw",
    },
    "a tensor that is left alone": {"selectState", "tieUnchanged"},
    "a mistaken auditor": {"finalize", "withdraw"},
    "a run that diverged": {"postDiverged", "finalize"},
    "a hidden divergence": {"selectElement"},
}  # fmt: skip


@pytest.fixture(params=STORIES)
def story(request: pytest.FixtureRequest, scene: Scene) -> tuple[Story, str]:
    trainers, auditors, setup, _ = STORIES[request.param]
    played = Story(scene, trainers, auditors, setup)
    played.start()
    return played, request.param


def test_killed_before_every_move(story: tuple[Story, str]) -> None:
    """O2: no player keeps state between two moves; a restarted one would send the very same call."""
    played, name = story

    def kill(who: str, call: Call) -> bool:
        played.kill(who)
        assert due(played.players[who]) == call
        call.send(played.players[who].game)
        return True

    made = played.moves(kill)
    assert played.play.verdicts == STORIES[name][3]
    assert MOVES[name] <= set(made)


def test_killed_between_a_move_and_its_receipt(story: tuple[Story, str]) -> None:
    """The transaction was sent, but its sender has no receipt: after a restart it finds its move made, or has nothing
    to do."""
    played, name = story

    def send_and_die(who: str, call: Call) -> None:
        call.send(played.players[who].game)
        played.kill(who)

    played.moves(send_and_die)
    assert played.play.verdicts == STORIES[name][3]
    assert played.play.job.disputes == 1


def test_every_move_is_front_run_by_its_own_copy(story: tuple[Story, str]) -> None:
    """O1, O5, F1: the same call of the same account is included first. A move that is already made counts as
    success."""
    played, name = story
    for player in played.players.values():
        race(player)
    played.moves(lambda who, call: None)
    assert played.play.verdicts[:1] == STORIES[name][3][:1]
    assert played.play.phase in (Phase.FINAL, Phase.CONVICTED)


def race(player: Player) -> None:
    """Another instance with the same account is always faster, except for challenges, which are not idempotent."""
    game, original = player.game, type(player.game).send

    def send(name: str, *args: Any, value: int = 0) -> Any:
        if name != "challenge":
            original(game, name, *args, value=value)
        return original(game, name, *args, value=value)

    game.send = send


@pytest.mark.parametrize("name", STORIES)
def test_the_public_moves_are_front_run(scene: Scene, name: str) -> None:
    """F1: reveals, openings, ties and proofs of another account: no player loses by it."""
    trainers, auditors, setup, verdicts = STORIES[name]
    played = Story(scene, trainers, auditors, setup)
    played.start()
    stranger = scene.game()

    def run(who: str, call: Call) -> None:
        if call.name in ("reveal", "openLeaf", "tie", "tieUnchanged", "prove", "timeout", "finalize"):
            call.send(stranger)

    played.moves(run)
    assert played.play.verdicts == verdicts


def test_a_challenge_after_the_conviction_is_harmless(scene: Scene) -> None:
    """Another auditor was faster: no crash, and the bond is not lost."""
    play = scene.claimed(SETUP, SUM_LIE)
    fast, slow = play.auditor(), play.auditor()
    original = slow.game.send

    def late(name: str, *args: Any, value: int = 0) -> Any:
        with scene.chain.at("latest"):  # each player has a connection of its own
            play.run(play.trainer, fast)
        return original(name, *args, value=value)

    slow.game.send = late
    assert slow.step() is False
    assert play.phase is Phase.CONVICTED and scene.chain.balance(slow.address) == 100 * 10**18


def test_a_trainer_reports_a_taken_job_before_it_trains(scene: Scene) -> None:
    play = scene.post(SETUP)
    slow, fast = play.new_trainer(), play.new_trainer()
    original = slow.game.send

    def late(name: str, *args: Any, value: int = 0) -> Any:
        fast.accept()
        return original(name, *args, value=value)

    slow.game.send = late
    for _ in range(2):
        with pytest.raises(Abstain, match=f"it is accepted, its trainer is {fast.address}"):
            slow.accept()


# ---- data that is lost or wrong ----


@pytest.mark.parametrize("kind", ["reveal", "postSegment", "postTrace", "openLeaf"])
def test_a_trainer_with_another_store_abstains(scene: Scene, kind: str) -> None:
    """O3: its data do not match its claim; it reports this and sends nothing."""
    play = scene.claimed(SETUP)
    accuser = play.auditor(SUM_LIE, Mistaken)
    play.run_until(kind, play.trainer, accuser)
    other = Trainer(play.trainer.game, play.id, play.machine(word_lie(3, 1, 4)[0]))
    before = scene.chain.now()
    with pytest.raises((Abstain, ContractError)):
        other.step()
    assert scene.chain.now() == before
    play.run_to_end(play.trainer, accuser)
    assert play.verdicts == [("Dismissed", 0, "element")]


def test_an_auditor_without_a_difference_abstains(scene: Scene) -> None:
    """O3, L16: during the dispute its store was replaced by the trainer's data: it selects nothing and reports this."""
    play = scene.claimed(SETUP, SUM_LIE)
    auditor = play.auditor()
    play.run_until("select", auditor, play.trainer)
    confused = type(auditor)(auditor.game, play.id, play.machine(SUM_LIE))
    with pytest.raises(Abstain, match="nothing below it can be contested"):
        confused.step()
    play.run_to_end(auditor, play.trainer)
    assert play.verdicts == [("Convicted", 0, "element")]


def test_one_dispute_that_cannot_be_served_does_not_stop_the_others(scene: Scene) -> None:
    """A duty that fails is reported when all others are done."""
    play = scene.claimed(SETUP, SUM_LIE)
    auditor, forcer = play.auditor(), play.auditor(None, Forcer, step=1)
    forcer.step()
    due(auditor).send(auditor.game)
    damaged = Trainer(play.trainer.game, play.id, play.machine(SUM_LIE))
    segment = damaged.machine.segment
    damaged.machine.segment = lambda c: segment(c) if c != 1 else [b"\0" * 32] * 4
    for player in (damaged, forcer, auditor):
        player.step()
    assert damaged.step()
    with pytest.raises(ContractError):
        damaged.step()
    assert play.client.segment_root(play.id, 1) is None and play.client.segment_root(play.id, 2) is not None
    assert [d.status for d in play.disputes()] == [Status.OPEN] * 2
    assert play.dispute(0).level is Level.RUN
