"""What an auditor stakes, and when it says that it does not: its limits hold before every bond."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from frauds import SETUP, SUM, Forcer, word_lie
from scene import Play, Scene, Setup
from toy import Lies

import vgame.agents.auditor_service
from vgame.agents.auditor_service import AuditorService, Limits
from vgame.chain.records import Job, Level, Phase, Status
from vgame.errors import ChainError, VgameError
from vgame.job.terms import Pace
from vgame.system.progress import Reporter

LIE = word_lie(6, SUM, 4, 1)[0]
SHOWN = Lies(shown={(6, SUM, 4): 12345})  # the run root is right, only the trace of step 6 is not
BOND = SETUP.spec.auditor_bond


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is done in a round depends on no clock."""
    monkeypatch.setattr(AuditorService, "OTHERS", 1e9)


def watch(play: Play, limits: Limits, foreign: Callable[[], str] = lambda: "") -> AuditorService:
    """An auditor as `vgame auditor` runs it, over the toy machine."""
    setup, machine = play.setup, play.setup.machine()
    computation = SimpleNamespace(
        bundle=SimpleNamespace(order=asdict(setup.spec)),
        history=machine,
        history_of=lambda _: machine,
        run_root=bytes(32),
        pace=Pace(0.01, 0.01),
        why_foreign=lambda *_: foreign(),
        ahead=lambda *_: False,
    )
    return AuditorService(play.scene.game(), computation, Reporter(), 0.0, limits)


def staked(play: Play, watch: AuditorService) -> int:
    return sum(d.auditor == watch.game.wallet.address for d in play.disputes())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Make the auditor's clock too short, or not."""

    def set_(too_short: bool) -> None:
        monkeypatch.setattr(
            vgame.agents.auditor_service,
            "auditor_shortcomings",
            lambda *_: ["auditor_budget is 1"] if too_short else [],
        )

    set_(False)
    return set_


def lured(scene: Scene) -> Play:
    """A claim that matches; after the first look, somebody makes the trainer post a trace that does not."""
    return scene.claimed(SETUP, SHOWN)


def post_the_trace(play: Play) -> None:
    forcer = play.auditor(None, Forcer, step=6)
    for _ in range(20):
        forcer.step()
        play.trainer.step()
    assert play.events("TracePosted") and play.phase is Phase.CLAIMED


@pytest.mark.parametrize("limit", ["bond", "clocks"])
def test_limits_hold_for_what_is_posted_after_the_first_look(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    play = lured(scene)
    short(limit == "clocks")
    watches = [watch(play, Limits(BOND - (limit == "bond"))), watch(play, Limits(BOND, any_clocks=True))]
    for each in watches:
        each.round()
    assert capsys.readouterr().out.count(": MATCH") == 2
    post_the_trace(play)
    for _ in range(3):
        for each in watches:
            each.round()
    out = capsys.readouterr().out
    assert [staked(play, each) for each in watches] == [0, 1]
    assert out.count("is not disputed: ") == 1 and "trying again" not in out
    assert ("more than" if limit == "bond" else "auditor_budget is 1") in out


def test_claims_of_twin_orders_are_disputed_as_far_as_the_clocks_allow(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cheat posts the same order many times: played all at once, each dispute would wait for the moves of the
    others."""
    at_once = lambda _, __, ___, others: [] if others < 2 else ["auditor_budget is 1"]  # noqa: E731
    monkeypatch.setattr(vgame.agents.auditor_service, "auditor_shortcomings", at_once)
    plays = [scene.claimed(SETUP, LIE) for _ in range(4)]
    auditor = watch(plays[0], Limits())
    auditor.round()
    auditor.round()
    assert [staked(play, auditor) for play in plays] == [1, 1, 0, 0]
    assert "beside 2 disputes of other claims" in capsys.readouterr().out
    for _ in range(200):
        if all(play.phase is Phase.CONVICTED for play in plays):
            break
        auditor.round()
        for play in plays:
            play.trainer.step()
    assert [play.phase for play in plays] == [Phase.CONVICTED] * 4


def test_by_default_never_more_is_staked_than_the_trainer_did(scene: Scene, short: Callable[[bool], None]) -> None:
    for more in (0, 1):
        setup = Setup(SETUP.program, steps=8, terms={"auditor_bond": SETUP.spec.trainer_bond + more})
        play = scene.claimed(setup, LIE)
        auditor = watch(play, Limits())
        auditor.round()
        assert staked(play, auditor) == 1 - more


def test_a_dispute_lost_by_time_is_opened_again_once(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was away for a while: the fraud is still caught. It always is too late: it does not lose bond after bond."""
    play = scene.claimed(SETUP, LIE)
    auditor = watch(play, Limits(BOND))
    for lost in (1, 2):
        auditor.round()
        play.trainer.step()
        play.advance(SETUP.spec.auditor_budget + 1)
        play.trainer.step()
        assert [d.status for d in play.disputes()] == [Status.LAPSED] * lost
    for _ in range(3):
        auditor.round()
    out = capsys.readouterr().out
    assert staked(play, auditor) == 2 and out.count("has lost 2 disputes about it by time") == 1
    other = play.auditor()  # whatever this one lost
    assert play.run_to_end(play.trainer, other) is Phase.CONVICTED


def test_an_open_dispute_is_played_on_whatever_the_limits_are_now(scene: Scene, short: Callable[[bool], None]) -> None:
    """The auditor is started again with a lower --max-bond: what it has staked is not thrown away."""
    play = scene.claimed(SETUP, LIE)
    before = watch(play, Limits(BOND))
    before.round()
    after = watch(play, Limits(0))
    after.game.wallet = before.game.wallet
    assert play.run_to_end(play.trainer, SimpleNamespace(step=after.round)) is Phase.CONVICTED


@pytest.mark.parametrize("broken", ["foreign", "agrees"])
def test_a_first_look_that_failed_is_taken_again(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    """One request without an answer, and the log would never be compared with the claim's, nor the claim with the own
    run."""
    play = scene.claimed(SETUP, LIE)
    answers = [ChainError("no answer")] if broken == "foreign" else []

    def foreign() -> str:
        if answers:
            raise answers.pop()
        return "the log is another one" if broken == "foreign" else ""

    auditor = watch(play, Limits(BOND), foreign)
    if broken == "agrees":
        auditor.look()
        usual, calls = auditor.auditors[play.id].agrees, [ChainError("no answer")]

        def agrees(state: Job) -> bool:
            if calls:
                raise calls.pop()
            return usual(state)

        auditor.auditors[play.id].agrees = agrees
    for _ in range(4):  # three looks in a row say that it has ended
        auditor.round()
    out = capsys.readouterr().out
    assert out.count("no answer (trying again)") == 1
    if broken == "foreign":
        assert "is not audited: the log is another one" in out and not play.disputes() and auditor.finished
    else:
        assert out.count("NO MATCH") == 1 and play.dispute().entry is Level.RUN


@pytest.mark.parametrize("lies", [None, LIE])
def test_a_claim_that_is_final_already_is_compared_too(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str], lies: Lies | None
) -> None:
    """An auditor that comes too late says what it missed."""
    play = scene.claimed(SETUP, lies)
    play.advance(SETUP.spec.challenge_window + 1)
    play.trainer.step()
    assert play.phase is Phase.FINAL
    auditor = watch(play, Limits(BOND))
    for _ in range(3):
        auditor.round()
    out = capsys.readouterr().out
    assert auditor.finished and staked(play, auditor) == 0
    assert (
        out.count(": NO MATCH, ") == out.count("; the claim is final, it can be disputed no more") == (lies is not None)
    )
    assert out.count("MATCH") == 1


def test_old_claims_that_match_are_one_line(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A chain may have thousands of them; for programs each is an event."""
    plays = [scene.claimed(SETUP, lies) for lies in (None, LIE, None, None)]
    plays[0].advance(SETUP.spec.challenge_window + 1)
    for play in plays:
        play.trainer.step()
        assert play.phase is Phase.FINAL
    auditor = watch(plays[0], Limits(BOND))
    for _ in range(2):
        auditor.round()
    out = capsys.readouterr().out
    assert out.count("MATCH: 3 jobs") == 1 and out.count(f"job {plays[1].id.hex()[:16]}: NO MATCH, ") == 1
    assert len(out.splitlines()) == 2
    again = watch(plays[0], Limits(BOND))
    again.reporter = Reporter(json_lines=True)
    again.round()
    told = capsys.readouterr().out.splitlines()
    assert sum('"audited"' in line for line in told) == 4 and sum('"agree": 3' in line for line in told) == 1


def test_idle_orders_cost_the_moves_of_others_no_time(
    scene: Scene, short: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody posts the same order a hundred times. Every job is looked at all the same, and a new claim at once."""
    plays = [scene.post(SETUP) for _ in range(100)]
    auditor, seen = watch(plays[0], Limits()), []
    monkeypatch.setattr(auditor, "_round", lambda job, own, real=auditor._round: seen.append(job) or real(job, own))
    auditor.round()
    assert len(seen) == AuditorService.IDLE
    for _ in range(100 // AuditorService.IDLE):
        auditor.round()
    assert {*seen} == {play.id for play in plays}
    false = next(play for play in plays if play.id in seen[-AuditorService.IDLE :])  # its turn would come last
    false.trainer = false.new_trainer(LIE)
    false.trainer.accept()
    false.trainer.claim()
    auditor.round()
    assert staked(false, auditor) == 1
    seen.clear()
    auditor.round()
    assert seen[0] == false.id and 1 < len(seen) <= 1 + AuditorService.IDLE


def test_claims_that_wait_cost_the_moves_of_others_no_time(
    scene: Scene, short: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty twin orders with honest claims, which wait for a whole run: all of them were looked at in every round. They
    are looked at by turns, also when they come at once; and what is disputed already at once, after a restart too."""
    plays = [scene.post(SETUP) for _ in range(40)]
    false, auditor, seen = plays[30], watch(plays[0], Limits()), []
    for play in plays:
        play.trainer = play.new_trainer(LIE if play is false else Lies())
        play.trainer.accept()
    machine, honest = auditor.computation.history, []
    monkeypatch.setattr(auditor.computation, "history_of", lambda claim: None if claim.run_root in honest else machine)
    monkeypatch.setattr(auditor, "_round", lambda job, own, real=auditor._round: seen.append(job) or real(job, own))
    while auditor.round():
        pass
    for play in plays:
        play.trainer.claim()
    honest.append(auditor.game.job(plays[0].id).run_root)
    for _ in range(6):
        seen.clear()
        auditor.round()
        assert len(seen) <= 1 + 2 * AuditorService.IDLE
    assert len(auditor.awaiting) == 39 and staked(false, auditor) == 1
    again = watch(plays[0], Limits())
    again.game = auditor.game
    monkeypatch.setattr(again.computation, "history_of", lambda _: None)
    again.round()
    assert [job for job, own in again.auditors.items() if own.engaged_in] == [false.id]


def test_claims_that_are_refused_cost_the_moves_of_others_no_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eighty twin orders with the same false claim, of which the clocks allow one dispute at a time: those that were
    refused were looked at in every round."""
    allowed = lambda *given: ["auditor_budget is 1"] if given[3] else []  # noqa: E731
    monkeypatch.setattr(vgame.agents.auditor_service, "auditor_shortcomings", allowed)
    plays = [scene.post(SETUP) for _ in range(80)]
    for play in plays:
        play.trainer = play.new_trainer(LIE)
        play.trainer.accept()
        play.trainer.claim()
    auditor, seen = watch(plays[0], Limits()), []
    monkeypatch.setattr(auditor, "_round", lambda job, own, real=auditor._round: seen.append(job) or real(job, own))
    for _ in range(8):
        seen.clear()
        with suppress(VgameError):
            auditor.round()
        assert len(seen) <= 1 + 2 * AuditorService.IDLE
    engaged = [job for job, own in auditor.auditors.items() if own.engaged_in]
    assert len(engaged) == 1 == sum(staked(play, auditor) for play in plays) and seen[0] == engaged[0]
