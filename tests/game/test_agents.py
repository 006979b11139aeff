"""An unattended agent survives floods of openings, lagging endpoints, outages, its own mistakes, a queue of idle
disputes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frauds import LIE, SETUP, Forcer, state_lie
from scene import Scene, Setup, due

from vgame.agents.retry import Retry
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Event, Level, Phase, Status, Turn
from vgame.errors import Abstain, ChainError, NotYet, TooDear
from vgame.system.progress import Reporter


def test_openings_by_others_are_not_read(scene: Scene) -> None:
    """Any account may open any node, so an auditor that read all openings could be flooded."""
    play = scene.claimed(SETUP, LIE)
    stranger, auditor = scene.game(), play.auditor()
    width = 1 << SETUP.depth
    for i in range(30):
        stranger.send("reveal", play.id, int(Level.TENSOR), SETUP.depth, [i.to_bytes(32)] * width)
        stranger.send("openLeaf", play.id, i.to_bytes(512))
    strange = {e.args["node"] for e in stranger.events(job=play.id) if "node" in e.args}
    read, content = [], auditor.game.contents.find

    def watched(key: Any, topics: Any, *args: Any) -> Any:
        read.extend(bytes.fromhex(topic[2:]) for topic in topics[2:])
        return content(key, topics, *args)

    auditor.game.contents.find = watched
    assert play.run_to_end(play.trainer, auditor) is Phase.CONVICTED
    assert len(strange) == 60 and 0 < len({*read}) < 20 and not {*read} & strange


@pytest.mark.parametrize("shown", ["nothing", "something else"])
def test_hidden_or_altered_content_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch, shown: str) -> None:
    """Also if state and logs come from different nodes."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    auditor.step()
    play.trainer.step()
    usual = type(auditor.game.contents)._decoded
    altered = lambda e: replace(e, args=e.args | {"children": [bytes(32), *e.args["children"][1:]]})  # noqa: E731

    def decoded(self: Any, logs: Any, topics: Any) -> list[Event]:
        return [altered(e) for e in usual(self, logs, topics)] if shown == "something else" else []

    with monkeypatch.context() as lying:
        lying.setattr(type(auditor.game.contents), "_decoded", decoded)
        for _ in range(2):
            with pytest.raises(NotYet, match="in process does not show the content"):
                auditor.step()
        assert play.phase is Phase.CLAIMED
    assert play.run_to_end(play.trainer, auditor) is Phase.CONVICTED


def test_an_auditor_with_a_refuted_run_abstains(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    auditor = play.auditor(state_lie(6, 5, 0)[0])
    with pytest.raises(Abstain, match="own run is wrong"):
        play.run(auditor, play.trainer)
    assert [d.status for d in play.disputes()] == [Status.DISMISSED]


def test_idle_disputes_of_others_are_ended(scene: Scene) -> None:
    """The claim cannot become final while they are open."""
    play = scene.claimed(SETUP, LIE)
    idle = [play.auditor(None, Forcer, step=step) for step in (1, 5)]
    for player in (*idle, play.trainer):
        player.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    assert {play.client.turn(play.id, n)[0] for n in range(2)} == {Turn.AUDITOR_EXPIRED}
    auditor = play.auditor()
    auditor.step()
    assert play.dispute(2).others == 0
    play.run(auditor)  # its own move first
    assert [d.status for d in play.disputes()] == [Status.LAPSED, Status.LAPSED, Status.OPEN]


def test_a_trainer_announces_the_needed_segments(scene: Scene) -> None:
    """All but the first one due: `vgame trainer --workers` executes them meanwhile."""
    play, announced = scene.claimed(SETUP), []
    accusers = [play.auditor(None, Forcer, step=step) for step in (1, 5, 7)]
    play.trainer.prefetch_segments = announced.append
    for _ in range(8):
        for accuser in accusers:
            accuser.step()
        play.trainer.step()
    assert [2, 3] in announced or ([2] in announced and [3] in announced)
    assert not any(1 in wanted for wanted in announced)


@pytest.mark.parametrize("crowd", [12])
def test_a_crowd_at_the_segments_cannot_run_the_trainer_out_of_time_at_the_run_level(scene: Scene, crowd: int) -> None:
    """Idle disputes with segments due, and one dispute whose reveal of the run tree waits behind all of them."""
    slot = 60
    setup = Setup(steps=40, interval=1, terms={"slot": slot, "trainer_budget": 3 * slot, "challenge_window": 10**6})
    play = scene.claimed(setup)
    sybils = [play.auditor(None, Forcer, step=1 + n) for n in range(crowd)]
    while any(d.height for d in play.disputes()) or not play.job.disputes:  # down to a checkpoint each
        for sybil in sybils:
            sybil.step()
        while (call := due(play.trainer)) and call.name == "reveal":
            call.send(play.trainer.game)
    last = play.auditor(None, Forcer, step=40)
    last.step()
    last.step()
    d = play.dispute(crowd)
    assert (d.level, d.height) == (Level.RUN, 4) and play.client.turn(play.id, crowd)[0] is Turn.TRAINER
    while any(play.client.turn(play.id, n)[0] is Turn.TRAINER for n in range(play.job.disputes)):
        play.advance(slot // 3)  # the time of one duty
        call = due(play.trainer)
        assert call is not None
        call.send(play.trainer.game)
    turns = {play.client.turn(play.id, n)[0] for n in range(play.job.disputes)}
    assert turns <= {Turn.AUDITOR, Turn.AUDITOR_EXPIRED} and play.phase is Phase.CLAIMED


def test_patience_reports_a_problem_once_and_raises_other_errors(capsys) -> None:
    retry = Retry(Reporter(json_lines=True), 0.001, 0.002)
    for _ in range(3):
        with retry:
            raise ChainError("no answer")
    with retry:
        pass
    with retry:
        raise ChainError("no answer")
    assert capsys.readouterr().out.count("no answer") == 2
    with pytest.raises(KeyboardInterrupt), retry:
        raise KeyboardInterrupt


def test_patience_repeats_a_lasting_problem_with_the_remaining_time(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base fee changes in every block; the problem stays the same."""
    retry = Retry(Reporter(json_lines=True), 0.0, 0.0, lambda: "7 s are left")
    for fee in range(5):
        with retry:
            raise TooDear(f"the base fee is {fee} gwei")
    out = capsys.readouterr().out
    assert out.count("base fee") == 1 and '"clock": "7 s are left"' in out
    monkeypatch.setattr(Retry, "AGAIN", -1.0)
    for _ in range(3):
        with retry:
            raise TooDear("the base fee is 9 gwei")
    assert capsys.readouterr().out.count("base fee is 9 gwei") == 3


def test_players_know_the_remaining_time_of_their_clocks(scene: Scene) -> None:
    play = scene.post(SETUP)
    trainer, auditor, spec = play.new_trainer(LIE), play.auditor(), SETUP.spec

    def left(window: str) -> int:
        return play.job.since + getattr(spec, window) - scene.chain.now()

    play.advance(10)
    assert trainer.hurry() == f"{left('accept_window')} s are left of the time to accept" and auditor.hurry() == ""
    trainer.accept()
    assert trainer.hurry() == f"{left('claim_window')} s are left of the time to claim"
    trainer.claim()
    assert (
        trainer.hurry() == "" and auditor.hurry() == f"{left('challenge_window')} s are left of the time to challenge"
    )
    auditor.step()
    play.advance(7)
    turn, end = play.client.turn(play.id, 0)
    assert turn is Turn.TRAINER
    assert trainer.hurry() == f"{end - scene.chain.now()} s are left of the own clock of dispute 0"
    assert "the time to challenge" in auditor.hurry()
    trainer.step()
    turn, end = play.client.turn(play.id, 0)
    assert turn is Turn.AUDITOR and trainer.hurry() == ""
    assert auditor.hurry() == f"{end - scene.chain.now()} s are left of the own clock of dispute 0"
    assert "the time to challenge" in play.auditor().hurry()
    auditor.game.chain.lost = True
    assert auditor.hurry() == ""
    auditor.game.chain.lost = False


def test_the_trainer_serves_disputes_in_order(scene: Scene) -> None:
    """By the time of the auditor's move, not by the number of the dispute: the slots of its grace assume this order."""
    play, served = scene.claimed(SETUP), []
    accusers = [play.auditor(None, FalseAccuser, step_wanted=1 + n) for n in range(2)]
    for accuser in accusers:
        accuser.step()
    play.trainer.step()
    for accuser in reversed(accusers):
        play.advance(10)
        accuser.step()
    play.trainer.answer = lambda _, number, __: bool(served.append(number))
    play.trainer.defend(play.job)
    assert served == [1, 0]
