"""An auditor's stakes and refusals: its limits hold before every bond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from frauds import LIE, SETUP
from scene import Play, Scene, Setup
from toy import Lies

import vgame.agents.staking
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.chain.game import Game
from vgame.chain.records import Level, Phase, Status
from vgame.dispute.claim_view import ClaimView
from vgame.errors import ChainError
from vgame.job.terms import Pace
from vgame.system.progress import Reporter

BOND = SETUP.spec.auditor_bond


def watch(
    play: Play, limits: Limits, foreign: Callable[[], str] = lambda: "", game: Game | None = None
) -> AuditorService:
    """An auditor as `vgame auditor` runs it, over the toy machine."""
    setup, machine = play.setup, play.setup.machine()
    computation = SimpleNamespace(
        bundle=SimpleNamespace(order=asdict(setup.spec)),
        history=machine,
        history_of=lambda _: machine,
        run_root=bytes(32),
        pace=Pace(0.01, 0.01),
        known_pace=Pace(0.01, 0.01),
        log_mismatch=lambda *_: foreign(),
        compute_ahead=lambda *_: False,
        rehearse=lambda: None,
        refuse_small_disk=lambda *_, **__: None,
    )
    return AuditorService(game or play.scene.game(), computation, Reporter(), 0.0, limits)


def staked(play: Play, watch: AuditorService) -> int:
    return sum(d.auditor == watch.game.wallet.address for d in play.disputes())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Make the auditor's clock too short, or not."""

    def set_(too_short: bool) -> None:
        monkeypatch.setattr(
            vgame.agents.staking,
            "auditor_shortcomings",
            lambda *_: ["auditor_budget is 1"] if too_short else [],
        )

    set_(False)
    return set_


@pytest.mark.parametrize("limit", ["bond", "clocks"])
def test_no_bond_is_staked_beyond_a_limit(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str], limit: str
) -> None:
    play = scene.claimed(SETUP, LIE)
    short(limit == "clocks")
    watches = [watch(play, Limits(BOND - (limit == "bond"))), watch(play, Limits(BOND, any_clocks=True))]
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
    """A cheat posts the same order many times: if all were disputed at once, each dispute would wait for the moves of
    the others."""
    at_once = lambda _, __, others: [] if others < 2 else ["auditor_budget is 1"]  # noqa: E731
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", at_once)
    plays = [scene.claimed(SETUP, LIE) for _ in range(4)]
    auditor = watch(plays[0], Limits())
    for _ in range(3):
        auditor.round()
    assert [staked(play, auditor) for play in plays] == [1, 1, 0, 0]
    assert "together with 2 open disputes of other claims" in capsys.readouterr().out
    for _ in range(200):
        if all(play.phase is Phase.CONVICTED for play in plays):
            break
        auditor.round()
        for play in plays:
            play.trainer.step()
    assert [play.phase for play in plays] == [Phase.CONVICTED] * 4


def test_the_default_limit_is_the_trainers_stake(scene: Scene, short: Callable[[bool], None]) -> None:
    for more in (0, 1):
        setup = Setup(SETUP.program, steps=8, terms={"auditor_bond": SETUP.spec.trainer_bond + more})
        play = scene.claimed(setup, LIE)
        auditor = watch(play, Limits())
        auditor.round()
        assert staked(play, auditor) == 1 - more


def test_a_dispute_lost_by_time_is_not_opened_again(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """An auditor that is too slow would lose bond after bond; one with another key convicts."""
    play = scene.claimed(SETUP, LIE)
    auditor = watch(play, Limits(BOND))
    auditor.round()
    play.trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    play.trainer.step()
    for _ in range(3):
        auditor.round()
    assert [d.status for d in play.disputes()] == [Status.LAPSED] and staked(play, auditor) == 1
    assert capsys.readouterr().out.count("ran out of time in dispute 0") == 1
    other = play.auditor()  # though this one has lost
    assert play.run_to_end(play.trainer, other) is Phase.CONVICTED


def test_an_open_dispute_is_continued_under_any_limits(scene: Scene, short: Callable[[bool], None]) -> None:
    """The auditor is restarted with a lower --max-bond: its staked bond is not abandoned."""
    play = scene.claimed(SETUP, LIE)
    before = watch(play, Limits(BOND))
    before.round()
    after = watch(play, Limits(0))
    after.game.wallet = before.game.wallet
    assert play.run_to_end(play.trainer, SimpleNamespace(step=after.round)) is Phase.CONVICTED


@pytest.mark.parametrize("broken", ["foreign", "agrees"])
def test_a_failed_first_look_is_repeated(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    """Otherwise, after one unanswered request, the log would never be compared with the claim's, nor the claim with the
    auditor's run."""
    play = scene.claimed(SETUP, LIE)
    answers = [ChainError("no answer")] if broken == "foreign" else []

    def foreign() -> str:
        if answers:
            raise answers.pop()
        return "the log is another one" if broken == "foreign" else ""

    auditor = watch(play, Limits(BOND), foreign)
    if broken == "agrees":
        usual, calls = auditor.seat(play.id).agrees, [ChainError("no answer")]

        def agrees(view: ClaimView) -> bool:
            if calls:
                raise calls.pop()
            return usual(view)

        auditor.auditors[play.id].agrees = agrees
    for _ in range(3):
        auditor.round()
    out = capsys.readouterr().out
    assert out.count("no answer (trying again)") == 1
    if broken == "foreign":
        assert "is not audited: the log is another one" in out and not play.disputes()
    else:
        assert out.count("NO MATCH") == 1 and play.dispute().entry is Level.RUN


@pytest.mark.parametrize("lies", [None, LIE])
def test_a_claim_that_is_already_final_is_compared_too(
    scene: Scene, short: Callable[[bool], None], capsys: pytest.CaptureFixture[str], lies: Lies | None
) -> None:
    """A late auditor reports the missed deadline."""
    play = scene.claimed(SETUP, lies)
    play.advance(SETUP.spec.challenge_window + 1)
    play.trainer.step()
    assert play.phase is Phase.FINAL
    auditor = watch(play, Limits(BOND))
    for _ in range(3):
        auditor.round()
    out = capsys.readouterr().out
    assert auditor.finished and staked(play, auditor) == 0
    assert out.count(f": {'NO ' * (lies is not None)}MATCH, ") == out.count("; the claim is final") == 1


def test_the_claim_whose_window_ends_first_is_disputed_first(scene: Scene, short: Callable[[bool], None]) -> None:
    """For any order of their names: in another order one may be too late."""
    plays = sorted((scene.post(SETUP) for _ in range(3)), key=lambda play: play.id, reverse=True)
    for play in plays:
        play.trainer = play.new_trainer(LIE)
        play.trainer.accept()
    for play in plays:
        play.trainer.claim()
        scene.chain.advance(SETUP.spec.challenge_window // 4)
    auditor = watch(plays[0], Limits(jobs=frozenset(play.id for play in plays)))
    for last in range(3):
        auditor.round()
        assert [staked(play, auditor) for play in plays] == [n <= last for n in range(3)]
