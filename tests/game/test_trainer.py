"""The trainer's process from acceptance to the end: outages, deadlines that have passed, an acceptance that was
undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP, SPEC
from scene import Play, Scene

import vgame.agents.roles
from vgame.agents.config import AgentConfig
from vgame.agents.retry import Retry
from vgame.agents.roles import run_delegate, run_trainer
from vgame.chain.game import Game
from vgame.chain.records import JobSpec, Phase
from vgame.dispute.player import DISPUTE_GAS
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, EndpointError, NotYet, Over, StoreError, VgameError
from vgame.system.progress import Reporter


class EventRecorder(Reporter):
    """Records all events; after the claim the challenge window passes."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play, self.events = play, []

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        self.events.append((event, text))
        if event == "claimed":
            self.play.pass_window()


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Phase, list[tuple[str, str]]]]:
    """Run a trainer over the toy machine; `during` happens while it trains. Returns its last phase and its events."""

    def run(
        play: Play, during: Callable[[], None], lock: Callable[[], None] = lambda: None, delegate: Game | None = None
    ) -> tuple[Phase, list[tuple[str, str]]]:
        recorder = EventRecorder(play)
        order = {f: getattr(SPEC, f) for f in JobSpec.__dataclass_fields__}
        computation = SimpleNamespace(
            rehearse=lambda: None,
            refuse_small_disk=lambda *_, **__: None,
            reporter=recorder,
            retry=Retry(recorder, 0.0, bears=VgameError),
            bundle=SimpleNamespace(order=order),
            run=lambda _: during(),
            history=SETUP.machine(),
            run_root=SETUP.honest.checkpoints[-1],
            lock=lock,
            store=SimpleNamespace(folder=Path("run")),
        )
        monkeypatch.setattr(vgame.agents.roles, "open_game", lambda seat, _: delegate or play.trainer.game)
        monkeypatch.setattr(vgame.agents.roles, "use_device", nullcontext)
        monkeypatch.setattr(vgame.agents.roles, "hello", lambda *_: None)
        monkeypatch.setattr(vgame.agents.roles, "find_order", lambda *_: None)
        monkeypatch.setattr(vgame.agents.roles, "LocalRun", lambda *_: computation)
        play.recorded = recorder.events
        seat = AgentConfig("", "", Path(), Path(), poll=0.0)
        if delegate:
            return run_delegate(seat, play.id, recorder), recorder.events
        return run_trainer(seat, play.id, recorder, any_terms=True), recorder.events

    return run


@pytest.fixture
def play(scene: Scene) -> Play:
    play = scene.post(SETUP)
    play.trainer = play.new_trainer()
    return play


def test_no_bond_is_staked_on_a_run_that_another_process_writes(play: Play, train: Callable) -> None:
    def taken() -> None:
        raise StoreError("another process writes there")

    with pytest.raises(StoreError):
        train(play, lambda: None, taken)
    assert play.phase is Phase.CREATED


def test_a_delegate_computes_and_waits_for_a_claim_to_defend(scene: Scene, play: Play, train: Callable) -> None:
    """For any action of the trainer meanwhile: here it accepts, names the account and claims while the delegate
    computes, and then goes down."""
    game = scene.game()

    def meanwhile() -> None:
        play.trainer.accept()
        play.trainer.claim()
        play.trainer.game.send("setDelegate", play.id, game.wallet.address, True)

    phase, events = train(play, meanwhile, delegate=game)
    assert phase is Phase.FINAL and events[0][0] == "claimed" and events[0][1].startswith("sees the claim, run root ")
    assert play.client.credits(play.trainer.address) == SPEC.reward + SPEC.trainer_bond


def test_a_trainer_waits_out_an_outage_at_the_end_of_training(play: Play, train: Callable) -> None:
    game, down = play.trainer.game, []

    def goes_down() -> None:
        usual, down[:] = game.job, [ChainError("no answer")] * 3

        def job(identity: bytes) -> Any:
            if down:
                raise down.pop()
            return usual(identity)

        game.job = job

    phase, events = train(play, goes_down)
    assert phase is Phase.FINAL and not down and play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond
    assert [event for event, _ in events] == ["accepted", "problem", "claimed", "ended"]


@pytest.mark.parametrize("lags", range(6))
def test_a_lagging_answer_about_the_acceptance_is_requested_again(play: Play, train: Callable, lags: int) -> None:
    """Two nodes behind one endpoint: the first `lags` answers after `acceptJob` show the state before it."""
    game, usual, before = play.trainer.game, play.trainer.game.job, play.job

    def send(name: str, *args: object, value: int = 0) -> Any:
        receipt = type(game).send(game, name, *args, value=value)
        if name == "acceptJob":
            behind = [before] * lags
            game.job = lambda identity: behind.pop() if behind else usual(identity)
        return receipt

    game.send = send
    assert train(play, lambda: None)[0] is Phase.FINAL
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("error", [ChainError, EndpointError])
def test_an_acceptance_that_seems_to_fail_is_tried_again(
    play: Play, train: Callable, error: type[Exception], made: bool
) -> None:
    game, failures = play.trainer.game, [error("no answer")] * 2

    def send(name: str, *args: object, value: int = 0) -> Any:
        if name == "acceptJob" and failures:
            if made and play.phase is Phase.CREATED:
                type(game).send(game, name, *args, value=value)
            raise failures.pop()
        return type(game).send(game, name, *args, value=value)

    game.send = send
    phase, events = train(play, lambda: None)
    assert phase is Phase.FINAL and "problem" in [event for event, _ in events]
    assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond


# ---- money ----

GWEI = 10**9


@pytest.fixture
def priced(play: Play, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Agents calculate with a gas price; on the fast chain gas is free."""
    monkeypatch.setattr(play.scene.chain, "fees", lambda **_: (10 * GWEI, GWEI), raising=False)
    return play


def has(play: Play, wei: int) -> None:
    play.scene.chain.node.evm.set_balance(play.trainer.address, wei)


def test_no_bond_is_staked_without_gas_for_later_moves(priced: Play, train: Callable) -> None:
    needed = SPEC.trainer_bond + priced.trainer.reserve()
    assert needed - SPEC.trainer_bond > 2 * DISPUTE_GAS * 21 * GWEI
    has(priced, needed - 1)
    with pytest.raises(ChainError, match=f"{needed} are needed to accept .* the bond of {SPEC.trainer_bond}, and "):
        train(priced, lambda: pytest.fail("trained"))
    assert priced.phase is Phase.CREATED
    has(priced, needed)
    assert train(priced, lambda: None)[0] is Phase.FINAL


@pytest.fixture
def owed(scene: Scene, priced: Play) -> Play:
    """A new order, for a trainer whose last job is final and whose credits are not withdrawn yet."""
    trainer = priced.trainer
    trainer.accept()
    trainer.claim()
    priced.pass_window()
    assert trainer.finish(priced.job)
    play = scene.post(SETUP)
    play.trainer = Trainer(trainer.game, play.id, trainer.machine)
    return play


def test_credits_count_for_the_bond(owed: Play, train: Callable) -> None:
    has(owed, owed.trainer.reserve())
    assert train(owed, lambda: None)[0] is Phase.FINAL


def test_credits_are_withdrawn_before_the_claim_that_needs_them(owed: Play) -> None:
    owed.trainer.accept()
    has(owed, GWEI)
    assert owed.trainer.step() and owed.phase is Phase.ACCEPTED
    assert owed.client.credits(owed.trainer.address) == 0
    assert owed.trainer.step() and owed.phase is Phase.CLAIMED


def test_a_late_claim_reports_the_fate_of_the_bond(play: Play, train: Callable) -> None:
    with pytest.raises(Over, match=rf"ended \d+ s ago: the bond of {SPEC.trainer_bond} wei is lost as soon as") as late:
        train(play, lambda: play.advance(SPEC.claim_window + 1))
    assert late.value.exit_code == 1 and play.phase is Phase.ACCEPTED
    assert [event for event, _ in play.recorded] == ["accepted"]
    with pytest.raises(Over, match="is lost as soon as"):  # after a restart, it does not train in vain
        train(play, lambda: pytest.fail("trained"))


def test_a_job_that_expired_during_training_is_not_claimed(play: Play, train: Callable) -> None:
    def expires() -> None:
        play.advance(SPEC.claim_window + 1)
        play.client.send("expire", play.id)

    with pytest.raises(Over, match=f"expired without a claim: the bond of {SPEC.trainer_bond} wei is lost"):
        train(play, expires)
    assert [event for event, _ in play.recorded] == ["accepted"]
    with pytest.raises(Over, match="expired without a claim"):
        train(play, lambda: pytest.fail("trained"))


@pytest.mark.parametrize("then", ["open", "late", "taken"])
def test_an_undone_acceptance_is_made_again(scene: Scene, play: Play, train: Callable, then: str) -> None:
    """A reorganisation; meanwhile the time to accept may have passed, or another trainer may have come first."""
    node, point, memory = scene.chain.node, scene.chain.node.snapshot(), scene.ghost.memory()

    def reorganised() -> None:
        node.revert(point)
        scene.ghost.remember(memory)
        if then == "late":
            play.advance(SPEC.accept_window + 1)
        if then == "taken":
            play.new_trainer().accept()

    if then == "open":
        assert train(play, reorganised)[0] is Phase.FINAL
        assert play.paid(play.trainer) == SPEC.reward + SPEC.trainer_bond
    else:
        with pytest.raises(Over, match="no bond is staked" if then == "late" else "not this trainer's"):
            train(play, reorganised)
        assert play.job.trainer != play.trainer.address


def test_an_endpoint_without_the_acceptance_yet_is_queried_again(play: Play) -> None:
    play.trainer.accept()
    game, usual = play.trainer.game, play.trainer.game.job
    behind = [replace(play.job, phase=Phase.CREATED)]
    game.job = lambda identity: behind[0] if behind else usual(identity)
    with pytest.raises(NotYet, match="does not show the acceptance of"):
        play.trainer.step()
    behind.clear()
    assert play.trainer.step() and play.phase is Phase.CLAIMED


def test_an_undone_order_is_waited_for(play: Play) -> None:
    play.trainer.id = bytes(32)
    assert play.trainer.step() is False


def test_a_hidden_job_that_was_accepted_is_queried_again(play: Play) -> None:
    """The endpoint shows a state before the order: no reason to abandon the bond."""
    play.trainer.accept()
    game, usual = play.trainer.game, play.trainer.game.job
    game.job = lambda identity: usual(bytes(32))
    with pytest.raises(NotYet, match="does not show the acceptance of"):
        play.trainer.accept()
    del game.job
    assert play.trainer.step() and play.phase is Phase.CLAIMED
