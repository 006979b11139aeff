"""Commands on a bonus use final states, and data that more than half of the endpoints show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from bonus_stage import AMOUNT, Stage, Trained, task, trained  # noqa: F401 (a fixture)
from test_delivery_few_lies import Turns

import vgame
from vgame.chain import agreed, escrow
from vgame.chain.connection import FINALITY
from vgame.chain.escrow import NONE
from vgame.chain.records import Phase
from vgame.errors import ContractError, LostRace, NotYet, VgameError


@pytest.fixture
def stage(system, trained: Trained) -> Stage:  # noqa: F811
    return Stage(system, trained)


class Three(Turns):
    def __init__(self) -> None:
        super().__init__(3, 3)

    def at_any(self, question: Callable[[], Any]) -> Any:
        problems = []
        for _ in self.all:
            try:
                return question()
            except VgameError as problem:
                problems.append(problem)
                self.next()
        raise problems[0]


def among(monkeypatch: pytest.MonkeyPatch, mine: vgame.Escrow, lies: dict[int, Callable[[Any], Any]]) -> Turns:
    """The escrow asks three endpoints, of which some show another bonus."""
    turns, usual = Three(), mine._shown
    monkeypatch.setattr(mine.game.chain, "turns", turns)
    mine._shown = lambda identity: lies.get(turns.at, lambda found: found)(usual(identity))  # type: ignore[method-assign]
    return turns


@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_invents_no_bonus_and_no_window(stage: Stage, monkeypatch: pytest.MonkeyPatch, false: int) -> None:
    """A larger amount before the work, the beginning of the window after it."""
    trainer = stage.train()
    mine = stage.seen_by(trainer.game)
    larger = lambda found: replace(found, amount=9 * AMOUNT, since=1)  # noqa: E731
    among(monkeypatch, mine, {false: larger})
    assert (mine.final(stage.id).amount, mine.final(stage.id).since) == (AMOUNT, 0)
    with pytest.raises(NotYet, match=r"has not begun"):
        mine.evaluation(stage.id, stage.trained.run, task(), validate=0)


def test_without_a_majority_nothing_is_decided(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = stage.seen_by(stage.game())
    among(monkeypatch, mine, {n: lambda found, n=n: replace(found, amount=n) for n in (1, 2)})
    with pytest.raises(NotYet, match=r"1 of the endpoints agree on the final state of bonus .*, 2 are needed"):
        mine.check(stage.id, stage.trained.bundle, task())


@pytest.mark.parametrize("false", range(3))
def test_one_endpoint_names_no_other_trainer(stage: Stage, monkeypatch: pytest.MonkeyPatch, false: int) -> None:
    """Neither in the state nor in the event: an auditor of such an evaluation would not see the true one."""
    trainer = stage.train()
    mine = stage.seen_by(trainer.game)
    mine.close(stage.id)
    stranger, jobs, content = stage.game().wallet.address, mine.game.jobs, mine.game.content
    turns = among(monkeypatch, mine, {})
    lie = lambda job: replace(job, trainer=stranger) if turns.at == false else job  # noqa: E731
    mine.game.jobs = lambda jobs_: [lie(job) for job in jobs(jobs_)]
    mine.game.content = lambda *args, **options: turns.at == false or content(*args, **options)
    bundle = mine.evaluation(stage.id, stage.trained.run, task(), validate=0)
    assert bundle.terms.trainer == trainer.address


def test_a_promise_is_checked_when_it_is_final(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch of a few blocks could undo it."""
    mine = stage.seen_by(stage.game())
    monkeypatch.setattr(mine.game.chain, "is_development", False)
    monkeypatch.setattr(mine.game.chain, "final_time", lambda *_: mine.game.chain.now() - FINALITY)
    with pytest.raises(NotYet, match=r"no final block shows bonus .* it is too new; try again in 15 minutes"):
        mine.check(stage.id, stage.trained.bundle, task())
    stage.chain.advance(FINALITY + 1)
    assert mine.check(stage.id, stage.trained.bundle, task()) == "correct"


def test_a_window_begins_when_it_is_final(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch of a few blocks could begin it after the claim of the evaluation, which would not count."""
    trainer = stage.train()
    mine = stage.seen_by(trainer.game)
    monkeypatch.setattr(mine.game.chain, "is_development", False)
    monkeypatch.setattr(mine.game.chain, "final_time", lambda *_: mine.game.chain.now() - FINALITY)
    stage.chain.advance(FINALITY + 1)
    mine.close(stage.id)
    with pytest.raises(NotYet, match=r"the window of bonus .* has not begun in a final block"):
        mine.evaluation(stage.id, stage.trained.run, task(), validate=0)
    stage.chain.advance(FINALITY + 1)
    assert mine.evaluation(stage.id, stage.trained.run, task(), validate=0).terms.trainer == trainer.address


@pytest.mark.parametrize("false", range(3))
def test_a_falsely_shown_failure_does_not_make_a_trainer_return_its_bonus(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, false: int
) -> None:
    trainer = stage.train()
    stage.escrow.close(stage.id)
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    mine = stage.seen_by(trainer.game)
    turns, usual = among(monkeypatch, mine, {false: lambda found: replace(found, since=0)}), mine.game.job
    mine.game.job = lambda job: replace(usual(job), phase=Phase.CONVICTED) if turns.at == false else usual(job)
    assert mine.close(stage.id) in ("started", "kept")
    assert stage.escrow.bonus(stage.id) is not None


def test_a_delegate_of_the_trainer_does_not_give_its_bonus_back(stage: Stage) -> None:
    trainer = stage.train()
    stage.escrow.close(stage.id)
    delegate = stage.game()
    trainer.game.send("setDelegate", stage.job, delegate.wallet.address, True)
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    assert stage.seen_by(delegate).close(stage.id) == "started"
    assert stage.escrow.close(stage.id) == "returned"


LIES = {
    "another payer": lambda found, other: replace(found, payer=other),
    "another training": lambda found, other: replace(found, training=bytes(31) + b"1"),
    "it is paid": lambda found, other: replace(found, settled_at=9, paid=True),
    "it is returned": lambda found, other: replace(found, settled_at=9),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_one_endpoint_settles_no_bonus(stage: Stage, monkeypatch: pytest.MonkeyPatch, lie: Callable) -> None:
    """A trainer's `close` returns nothing, and reports only a state that most endpoints show."""
    trainer = stage.train()
    stage.escrow.close(stage.id)
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    mine = stage.seen_by(trainer.game)
    among(monkeypatch, mine, {0: lambda found: lie(found, trainer.address)})
    assert mine.close(stage.id) == "started"
    assert stage.escrow.bonus(stage.id) is not None


@pytest.mark.parametrize(
    ("true", "phase", "outcome"), [("final", Phase.EXPIRED, "started"), ("expired", Phase.FINAL, "returned")]
)
def test_one_endpoint_ends_no_training(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, true: str, phase: Phase, outcome: str
) -> None:
    """The first one shows a final training as expired, or an expired one as final."""
    if true == "final":
        mine = stage.seen_by(stage.train().game)
    else:
        mine = stage.escrow
        stage.chain.advance(mine.game.job(stage.job).spec.accept_window + 1)
        mine.game.send("expire", stage.job)
    turns, usual = among(monkeypatch, mine, {}), mine.game.job
    monkeypatch.setattr(mine.game, "job", lambda job: usual(job) if turns.at else replace(usual(job), phase=phase))
    assert mine.close(stage.id) == outcome


def test_one_endpoint_does_not_determine_the_id_of_a_promise(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receipt's log names an older bonus."""
    usual = stage.escrow._decode
    monkeypatch.setattr(
        stage.escrow, "_decode", lambda log: replace(found := usual(log), args={**found.args, "id": stage.id})
    )
    found = stage.escrow.promise(
        stage.job, stage.trained.bundle, task(), "correct", least=1, amount=2 * AMOUNT, nonce=7
    )
    assert found != stage.id and stage.escrow.held(found).amount == 2 * AMOUNT


def hides_the_event(monkeypatch: pytest.MonkeyPatch, mine: vgame.Escrow, turns: Turns) -> None:
    for name in ("logs", "receipts"):
        usual = getattr(mine._contents, name)
        hidden = lambda *args, usual=usual: usual(*args) if turns.at else []  # noqa: E731
        monkeypatch.setattr(mine._contents, name, hidden)


def shows_no_money(monkeypatch: pytest.MonkeyPatch, mine: vgame.Escrow, turns: Turns) -> None:
    usual = mine.game.chain.balance
    monkeypatch.setattr(mine.game.chain, "balance", lambda address: usual(address) if turns.at else 0)


def shows_a_revert(monkeypatch: pytest.MonkeyPatch, mine: vgame.Escrow, turns: Turns) -> None:
    usual = mine.game.wallet.send

    def send(*args: Any) -> Any:
        turns.at = 0
        return dict(usual(*args)) | {"status": 0}

    monkeypatch.setattr(mine.game.wallet, "send", send)


def shows_no_bonus(monkeypatch: pytest.MonkeyPatch, mine: vgame.Escrow, turns: Turns) -> None:
    usual = mine._shown
    mine._shown = lambda identity: usual(identity) if turns.at else NONE  # type: ignore[method-assign]


@contextmanager
def at_one_endpoint(mine: vgame.Escrow) -> Iterator[None]:
    """Others play too, with the same chain object."""
    with patch.object(mine.game.chain, "turns", None):
        yield


FIRST = (hides_the_event, shows_no_money, shows_a_revert, shows_no_bonus)


@pytest.mark.parametrize("lie", FIRST)
def test_the_first_endpoint_stops_no_command(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, lie: Callable[..., None]
) -> None:
    """The window begins, the bonus is paid, the money is withdrawn."""
    trainer = stage.train()
    mine = stage.seen_by(trainer.game)
    lie(monkeypatch, mine, among(monkeypatch, mine, {}))
    assert mine.close(stage.id) == "started"
    with at_one_endpoint(mine):
        job, run = stage.evaluation(f"paid although it {lie.__name__}")
    assert mine.pay(stage.id, job, stage.trained.run, run) == AMOUNT
    assert mine.close(stage.id) == "paid" and mine.credits(trainer.address) == 0


@pytest.mark.parametrize("lie", FIRST)
def test_the_first_endpoint_keeps_no_money(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, lie: Callable[..., None]
) -> None:
    """A second bonus is promised; its window passes, and the payer has the money back."""
    mine = stage.seen_by(stage.client)
    lie(monkeypatch, mine, among(monkeypatch, mine, {}))
    found = mine.promise(stage.job, stage.trained.bundle, task(), "correct", least=1, amount=AMOUNT, nonce=5)
    with at_one_endpoint(mine):
        stage.train()
    assert mine.close(found) == "started"
    with at_one_endpoint(mine):
        stage.chain.advance(stage.escrow.promised(found).terms.window + 1)
    assert mine.close(found) == "returned" and mine.credits(stage.client.wallet.address) == 0
    with at_one_endpoint(mine):
        assert stage.seen_by(stage.game()).held(found).settled_at


def test_a_bonus_that_the_first_endpoint_invents_is_promised(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = stage.seen_by(stage.client)
    among(monkeypatch, mine, {0: lambda found: replace(found, amount=AMOUNT)})
    found = mine.promise(stage.job, stage.trained.bundle, task(), "correct", least=1, amount=AMOUNT, nonce=6)
    assert mine.final(found).amount == AMOUNT


def test_a_transaction_that_reverted_is_reported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most endpoints show no effect of it."""
    monkeypatch.setattr(agreed, "WAIT", 0.2)
    stage.train()
    mine = stage.seen_by(stage.client)
    among(monkeypatch, mine, {})
    monkeypatch.setattr(mine.game.wallet, "send", lambda *_: {"status": 0})
    with pytest.raises(LostRace, match="start"):
        mine.close(stage.id)


def just_before(monkeypatch: pytest.MonkeyPatch, race: Callable[[], object]) -> None:
    """Once, before the gas of a call is estimated."""
    races, usual = iter([race]), escrow.median_of

    def median_of(*args: Any) -> int:
        next(races, lambda: None)()
        return usual(*args)

    monkeypatch.setattr(escrow, "median_of", median_of)


@pytest.mark.parametrize("step", ["start", "giveBack"])
def test_a_call_that_a_stranger_has_made_just_before_is_no_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before the gas is estimated."""
    stage.train()
    other, mine = stage.seen_by(stage.game()), stage.seen_by(stage.client)
    if step != "start":
        other.start(stage.id)
        stage.chain.advance(mine.promised(stage.id).terms.window + 1)
    call = other.start if step == "start" else other.give_back
    just_before(monkeypatch, lambda: call(stage.id))
    assert mine.close(stage.id) == ("started" if step == "start" else "returned")
    assert mine.credits(stage.client.wallet.address) == 0


def test_a_bonus_that_was_paid_just_before_is_not_reported_as_returned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = stage.train()
    stage.escrow.close(stage.id)
    job, run = stage.evaluation("paid just before it is given back")
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    other, mine = stage.seen_by(trainer.game), stage.seen_by(stage.client)
    just_before(monkeypatch, lambda: other.pay(stage.id, job, stage.trained.run, run))
    with pytest.raises(ContractError, match="NoBonus"):
        mine.close(stage.id)
    assert mine.close(stage.id) == "paid"


@pytest.mark.parametrize("lie", [{"since": 2**31}, {"since": 0}, {"amount": 0}], ids=str)
def test_one_endpoint_stops_no_payment(stage: Stage, monkeypatch: pytest.MonkeyPatch, lie: dict[str, int]) -> None:
    trainer = stage.train()
    stage.escrow.close(stage.id)
    job, run = stage.evaluation(f"paid despite {lie}")
    mine = stage.seen_by(trainer.game)
    among(monkeypatch, mine, {0: lambda found: replace(found, **lie)})
    assert mine.pay(stage.id, job, stage.trained.run, run) == AMOUNT


class Estimates:
    """The functions of a contract; the first endpoint invents their gas estimates."""

    def __init__(self, functions: Any, turns: Turns, lie: Callable[[], int]) -> None:
        self.functions, self.turns, self.lie = functions, turns, lie

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def made(*args: Any) -> Any:
            function = getattr(self.functions, name)(*args)
            usual = function.estimate_gas
            function.estimate_gas = lambda call: usual(call) if self.turns.at else self.lie()
            return function

        return made


def no_mark() -> int:
    raise ContractError("MarkMissed", (7, 8))


@pytest.mark.parametrize("lie", [no_mark, lambda: 1, lambda: 2**30], ids=["a revert", "too little", "too much"])
def test_one_endpoint_estimates_no_payment(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, lie: Callable[[], int]
) -> None:
    trainer = stage.train()
    stage.escrow.close(stage.id)
    job, run = stage.evaluation(f"paid despite estimates {lie}")
    mine = stage.seen_by(trainer.game)
    turns = among(monkeypatch, mine, {})
    mine.contract = SimpleNamespace(
        functions=Estimates(mine.contract.functions, turns, lie), events=mine.contract.events
    )
    assert mine.pay(stage.id, job, stage.trained.run, run) == AMOUNT
    assert stage.escrow.held(stage.id).paid


def test_a_receipt_alone_pays_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One endpoint shows it as a success: the transaction had too little gas, or was never sent."""
    monkeypatch.setattr(agreed, "WAIT", 0.2)
    trainer = stage.train()
    stage.escrow.close(stage.id)
    job, run = stage.evaluation("not paid by a receipt")
    mine = stage.seen_by(trainer.game)
    among(monkeypatch, mine, {0: lambda found: replace(found, settled_at=9, paid=True)})
    monkeypatch.setattr(mine.game.wallet, "send", lambda *_: {"status": 1, "logs": []})
    with pytest.raises(NotYet, match=r"receipt of `pay` was shown, but most endpoints do not show its effect"):
        mine.pay(stage.id, job, stage.trained.run, run)


@pytest.mark.parametrize("lie", ["convicted", "other terms"])
def test_one_endpoint_stops_no_evaluation(stage: Stage, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    trainer = stage.train()
    stage.escrow.close(stage.id)
    mine = stage.seen_by(trainer.game)
    turns, usual = among(monkeypatch, mine, {}), mine.game.job

    def shown(identity: bytes) -> Any:
        job = usual(identity)
        other = replace(job, spec=replace(job.spec, challenge_window=77)) if lie == "other terms" else None
        return job if turns.at else other or replace(job, phase=Phase.CONVICTED)

    mine.game.job = shown  # type: ignore[method-assign]
    assert mine.evaluation(stage.id, stage.trained.run, task(), validate=0).terms.trainer == trainer.address


def test_a_forged_cached_promise_is_not_used(stage: Stage) -> None:
    """A cached event counts only for the bonus that the contract holds."""
    found = stage.escrow.promised(stage.id)
    forged = replace(stage.escrow.held(stage.id), amount=9 * AMOUNT)
    stage.escrow._contents._found[stage.id, forged] = replace(found, amount=9 * AMOUNT)
    assert stage.escrow.promised(stage.id, stage.escrow.final(stage.id)).amount == AMOUNT
