"""What strangers can do to the rounds of an auditor: with claims that are right, posted pieces, old jobs, and answers
of a node that lags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP, Forcer
from scene import Play, Scene
from test_divergence import BAD
from test_watch import LIE, SHOWN, staked, watch
from toy import INFINITY, Lies

import vgame.agents.auditor_service
from vgame.agents.auditor_service import AuditorService, Limits
from vgame.agents.retry import Retry
from vgame.chain.records import Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView
from vgame.errors import ChainError, VgameError


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are long enough; how much is done in a round depends on none."""
    monkeypatch.setattr(AuditorService, "OTHERS", 1e9)
    monkeypatch.setattr(vgame.agents.auditor_service, "auditor_shortcomings", lambda *_: [])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Jobs in the order in which they were looked at."""
    found, real = [], AuditorService._round
    monkeypatch.setattr(AuditorService, "_round", lambda own, job, one: found.append(job) or real(own, job, one))
    return found


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, int]]:
    """Posted pieces that were compared, by job and place."""
    found: list[tuple[bytes, int]] = []
    for name in ("contradicts_segment", "contradicts_trace"):

        def counted(view: ClaimView, where: int, root: bytes, real: Any = getattr(ClaimView, name)) -> bool:
            found.append((view.id, where))
            return real(view, where, root)

        monkeypatch.setattr(ClaimView, name, counted)
    return found


def claimed(scene: Scene, count: int, lies: Lies | None = None) -> list[Play]:
    plays = [scene.post(SETUP) for _ in range(count)]
    for play in plays:
        claim(play, lies)
    return plays


def claim(play: Play, lies: Lies | None = None) -> None:
    play.trainer = play.new_trainer(lies)
    play.trainer.accept()
    play.trainer.claim()


def disputed(service: AuditorService) -> list[bytes]:
    return [job for job, auditor in service.auditors.items() if auditor.engaged_in]


def beside_a_dispute(scene: Scene) -> tuple[list[Play], Play, AuditorService]:
    """Forty right claims, a false one, and an auditor that disputes it."""
    others, (false,) = claimed(scene, 40), claimed(scene, 1, LIE)
    service = watch(false, Limits())
    while not disputed(service):
        service.round()
    return others, false, service


def test_pieces_of_other_claims_are_executed_one_in_a_round(
    scene: Scene, executed: list[tuple[bytes, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty disputes in a right claim had a segment and a trace posted each: all of these were executed in one look,
    while the clock of a dispute elsewhere ran out. Now one between two looks at the own clocks, and none where a move
    was due or little is left; by turns of the jobs, and what is wrong is found."""
    *right, wrong = claimed(scene, 2) + claimed(scene, 1, SHOWN)
    for play in (*right, wrong):
        forcers = [play.auditor(None, Forcer, step=step) for step in (6, 1, 2, 3)]
        for _ in range(12):
            for player in (*forcers, play.trainer):
                player.step()
        assert len(play.events("SegmentPosted", "TracePosted")) >= 4
    (false,) = claimed(scene, 1, LIE)
    service = watch(false, Limits())
    service.round()
    assert disputed(service) == [false.id] and not executed
    monkeypatch.setattr(Auditor, "spare", lambda *_: False)
    for _ in range(3):
        service.round()
    assert not executed
    monkeypatch.undo()
    monkeypatch.setattr(vgame.agents.auditor_service, "auditor_shortcomings", lambda *_: [])
    counted = Counter[bytes]()
    real = Auditor.contradicts

    def contradicts(own: Auditor, *args: Any) -> bool | None:
        known = len(own.checked)
        found = real(own, *args)
        counted[own.id] += len(own.checked) - known
        return found

    monkeypatch.setattr(Auditor, "contradicts", contradicts)
    for _ in range(40):
        before = counted.total()
        acted = service.round()
        assert counted.total() - before <= 1 and (acted or counted.total() == before)
        assert max(counted.values(), default=0) - min((counted[play.id] for play in right), default=0) <= 2
    assert staked(wrong, service) == 1 and min(counted[play.id] for play in right) >= 4


def test_what_a_claim_itself_holds_is_executed_before_other_pieces(
    scene: Scene, executed: list[tuple[bytes, int]]
) -> None:
    """A false claim "diverged" before the first checkpoint shows in its last segment and trace alone; others had many
    pieces posted before it."""
    right = claimed(scene, 3)
    for play in right:
        forcers = [play.auditor(None, Forcer, step=step) for step in (6, 1, 2, 3)]
        for _ in range(12):
            for player in (*forcers, play.trainer):
                player.step()
    service = watch(right[0], Limits())
    service.round()
    assert len(service.behind) == 3
    (false,) = claimed(scene, 1, Lies(words={(1, *BAD): INFINITY}))
    assert not false.job.checkpoints
    executed.clear()
    while not staked(false, service):
        service.round()
    assert {job for job, _ in executed} == {false.id}


def test_an_own_dispute_does_not_wait_for_long_looks(
    scene: Scene, seen: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each look takes as long as one at the own dispute, two others have their turn before it has it again."""
    others, false, service = beside_a_dispute(scene)
    now = SimpleNamespace(monotonic=lambda: float(len(seen)))
    monkeypatch.setattr(vgame.agents.auditor_service, "time", now)
    monkeypatch.setattr(AuditorService, "OTHERS", 2.0)
    looked = set[bytes]()
    for _ in range(25):
        seen.clear()
        service.round()
        assert seen[0] == false.id and 2 <= len(seen) <= 4
        looked |= {*seen}
    assert looked == {play.id for play in (*others, false)}


def test_events_of_a_claim_in_which_nothing_was_disputed_are_not_asked_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who posts the same order many times, and right claims, had each of them cost a scan of the chain. What is asked
    for of a job is looked for from its claim on."""
    (play,) = claimed(scene, 1)
    service, asked = watch(play, Limits()), Counter[str]()
    real = service.game.events
    monkeypatch.setattr(
        service.game, "events", lambda name, *rest, **more: asked.update([name]) or real(name, *rest, **more)
    )
    for _ in range(3):
        service.round()
    assert {*asked} == {"Challenged", "JobCreated", "ClaimPosted"}
    assert service.game.begun == {play.id: next(e for e in real("ClaimPosted")).block}


def test_a_claim_in_a_job_that_was_said_to_have_ended(
    scene: Scene, seen: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three answers said so, as before a reorganisation: a new claim is looked at at once all the same. Those that have
    ended are asked again by turns."""
    monkeypatch.setattr(AuditorService, "OLD", 1)
    plays = [scene.post(SETUP) for _ in range(5)]
    service = watch(plays[0], Limits())
    real = service.game.job
    over = SimpleNamespace(**{name: getattr(real(plays[0].id), name) for name in real(plays[0].id).__slots__})
    over.phase = Phase.EXPIRED
    monkeypatch.setattr(service.game, "job", lambda _: over)
    while not all(map(service._over, [play.id for play in plays])):
        service.round()
    monkeypatch.setattr(AuditorService, "AGAIN", -1.0)
    seen.clear()
    for _ in range(10):
        service.round()
    assert seen == 2 * seen[:5] and {*seen} == {play.id for play in plays}
    monkeypatch.setattr(AuditorService, "AGAIN", 1e9)
    monkeypatch.setattr(service.game, "job", real)
    claim(plays[3], LIE)
    service.round()
    assert staked(plays[3], service) == 1


def test_an_answer_that_there_is_no_such_job_hides_no_own_dispute(
    scene: Scene, seen: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stale answer put an open dispute behind all idle jobs."""
    _, false, service = beside_a_dispute(scene)
    real = service.game.job
    monkeypatch.setattr(service.game, "job", lambda job: real(bytes(32) if job == false.id else job))
    service.round()
    monkeypatch.setattr(service.game, "job", real)
    seen.clear()
    service.round()
    assert seen[0] == false.id and disputed(service) == [false.id]
    monkeypatch.setattr(service.game, "job", lambda _: real(bytes(32)))  # not even where it stays for a while
    monkeypatch.setattr(service.game, "events", lambda *_, **__: [])
    for _ in range(5):
        service.round()
    assert disputed(service) == [false.id]
    monkeypatch.setattr(AuditorService, "GONE", 0.0)
    service.round()
    assert not disputed(service) and false.id not in service.auditors  # or `--once` would wait for it for ever


def test_a_dispute_that_has_ended_is_none_whatever_follows_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two were lost by time, so each look at that claim ends with "not disputed again": it counted as open, and every
    other false claim was refused for it."""
    first, second = claimed(scene, 2, LIE)
    monkeypatch.setattr(
        vgame.agents.auditor_service, "auditor_shortcomings", lambda *given: ["it is 1"] if given[3] else []
    )
    service = watch(first, Limits())
    monkeypatch.setattr(service, "refusal", lambda job, real=service.refusal: real(job))
    while not staked(first, service) + staked(second, service):
        service.round()
    lost = first if staked(first, service) else second
    for number in range(2):
        while not staked(lost, service) > number:
            service.round()
        lost.trainer.step()
        lost.advance(SETUP.spec.auditor_budget + 1)
        lost.client.send("timeout", lost.id, number)
    other = second if lost is first else first
    for _ in range(8):
        with suppress(VgameError):
            service.round()
    assert staked(lost, service) == 2 and staked(other, service) == 1


def test_an_auditor_says_its_word_about_every_claim_before_it_ends(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """Final claims "diverged", which show in posted pieces alone."""
    plays = claimed(scene, 3, Lies(words={(1, *BAD): INFINITY}))
    plays[0].advance(SETUP.spec.challenge_window + 1)
    for play in plays:
        play.trainer.step()
        assert play.phase is Phase.FINAL
    service = watch(plays[0], Limits())
    for _ in range(40):
        if service.finished:
            break
        service.round()
    assert service.finished and capsys.readouterr().out.count("NO MATCH") == 3


def test_a_claim_of_long_ago_is_read_some_ranges_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no own dispute is open in it."""
    *others, false = claimed(scene, 2) + claimed(scene, 1, LIE)
    service, limits = watch(false, Limits()), []
    real = Auditor.step
    monkeypatch.setattr(Auditor, "step", lambda own, job: limits.append((own.id, own.game.ranges)) or real(own, job))
    while not disputed(service):
        service.round()
    assert {*limits} == {(play.id, AuditorService.RANGES) for play in (*others, false)}
    limits.clear()
    service.round()
    assert (false.id, None) in limits and (others[0].id, AuditorService.RANGES) in limits
    limits.clear()
    while false.job.phase is not Phase.CONVICTED:
        false.trainer.step()
        service.round()
    limits.clear()
    service.round()
    assert (false.id, None) in limits  # the time to show what was known runs


def test_an_own_dispute_that_is_shown_late_is_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart, where the first answers lag: it was behind all other claims for good."""
    _, false, service = beside_a_dispute(scene)
    again = watch(false, Limits())
    again.game = service.game
    real = service.game.events
    monkeypatch.setattr(
        again.game, "events", lambda name, *rest, **more: [] if name == "Challenged" else real(name, *rest, **more)
    )
    monkeypatch.setattr(AuditorService, "IDLE", 1)
    again.look()
    monkeypatch.setattr(again.game, "events", real)
    again.round()
    assert disputed(again) == [false.id] and false.id not in again.idle


@pytest.mark.parametrize("shown", ["before the claim", "before the dispute"])
def test_a_state_that_lags_behind_an_own_dispute(scene: Scene, monkeypatch: pytest.MonkeyPatch, shown: str) -> None:
    """One such answer put an open dispute behind all orders that wait, for longer than its clock."""
    for _ in range(40):
        scene.post(SETUP)
    false = scene.post(SETUP)
    false.trainer = false.new_trainer(LIE)
    false.trainer.accept()
    service, states = watch(false, Limits()), [false.job]
    service.round()
    false.trainer.claim()
    states.append(false.job)
    while not disputed(service):
        service.round()
    real = service.game.job
    old = states[shown == "before the dispute"]
    monkeypatch.setattr(service.game, "job", lambda job: old if job == false.id else real(job))
    service.round()
    assert disputed(service) == [false.id] and false.id not in service.idle
    monkeypatch.setattr(service.game, "job", real)
    for _ in range(40):
        service.round()
        false.trainer.step()
    assert false.phase is Phase.CONVICTED and not disputed(service)


def test_a_state_that_lags_behind_a_claim(scene: Scene, seen: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the event was heard: the claim was behind all orders that wait, for longer than its window."""
    for _ in range(40):
        scene.post(SETUP)
    false = scene.post(SETUP)
    false.trainer = false.new_trainer(LIE)
    false.trainer.accept()
    accepted, service = false.job, watch(false, Limits())
    for _ in range(4):
        service.round()
    false.trainer.claim()
    real = service.game.job
    monkeypatch.setattr(service.game, "job", lambda job: accepted if job == false.id else real(job))
    service.round()
    monkeypatch.setattr(service.game, "job", real)
    assert false.id in seen[-17:] and not disputed(service)
    service.round()
    assert disputed(service) == [false.id]


def test_an_own_dispute_of_a_run_that_is_not_this_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode logged, started again with another log: it counted as open for good, and other claims were refused for
    it."""
    _, false, service = beside_a_dispute(scene)
    again = watch(false, Limits())
    again.game = service.game
    monkeypatch.setattr(
        again.computation, "why_foreign", lambda _, job, state: "another log" if job == false.id else ""
    )
    for _ in range(Retry.LOOKS):
        with suppress(VgameError):
            again.round()
    assert not disputed(again)
    with suppress(VgameError):
        again.round()
    assert not disputed(again)


def test_orders_and_claims_are_heard_of_whatever_becomes_of_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block with more events of one name than an endpoint returns ended each look."""
    (false,) = claimed(scene, 1, LIE)
    for name in ("JobCreated", "ClaimPosted", "Challenged"):
        service = watch(false, Limits())
        real = service.game.events

        def fails(asked: str, *rest: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            if asked == name:
                raise ChainError("more than 10000 results")
            return real(asked, *rest, **more)

        monkeypatch.setattr(service.game, "events", fails)
        with suppress(VgameError):
            service.round()
        assert (false.id in service.auditors) == (name != "JobCreated")
        assert bool(service.claims) == (name != "ClaimPosted")
