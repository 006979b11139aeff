"""A bonus by accuracy: paid only for a final evaluation of the trained state that reaches the mark.

A false number is convicted. Trainer and auditor are the real agents, the contracts the real ones.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from bonus_stage import AMOUNT, MARK, SAMPLES, Stage, Trained, executor, task

import vgame
from vgame.agents.client import close_job
from vgame.attacks.computation import CheatingHistory, Patch, PatchedExecutor
from vgame.chain.escrow import Bonus
from vgame.chain.records import CAUSES, ZERO_ADDRESS, Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError, NotYet, Over, ValidationError, VgameError
from vgame.program.lowering.table import HANDLERS
from vgame.runs.history import History
from vgame.runs.store import Store
from vgame.runs.training import train


def test_a_late_trainer_does_not_give_its_own_bonus_back(stage: Stage) -> None:
    """`pay` counts until another account gives it back."""
    trainer = stage.train()
    stage.escrow.close(stage.id)
    job, run = stage.evaluation()
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    assert stage.seen_by(trainer.game).close(stage.id) == "started"
    assert stage.escrow.pay(stage.id, job, stage.trained.run, run) == AMOUNT


def test_a_state_that_reaches_the_mark_is_paid(stage: Stage) -> None:
    stage.escrow.check(stage.id, stage.trained.bundle, task())
    trainer = stage.train()
    assert stage.escrow.close(stage.id) == "started"
    job, run = stage.evaluation()
    total = vgame.evaluated(run).totals["correct"]
    assert MARK < total <= SAMPLES and stage.escrow.credits(trainer.address) == 0
    stranger = stage.seen_by(stage.game())
    assert stranger.pay(stage.id, job, stage.trained.run, run) == AMOUNT
    assert stage.escrow.credits(trainer.address) == AMOUNT == stage.chain.balance(stage.escrow.address)
    assert stage.escrow.held(stage.id).paid and stage.escrow.bonus(stage.id) is None
    before = stage.chain.balance(trainer.address)
    assert stage.seen_by(trainer.game).close(stage.id) == "paid"
    assert stage.chain.balance(trainer.address) - before == AMOUNT and stage.chain.balance(stage.escrow.address) == 0
    assert stage.refused("pay", stage.id, astuple(stage.proof(job, run))) == "NoBonus"
    assert stage.refused("giveBack", stage.id) == "NoBonus"


def test_no_other_account_can_delay_the_evaluation(stage: Stage) -> None:
    """The evaluation names its trainer: a second account of the payer cannot accept it and claim a wrong root at the
    end."""
    trainer = stage.train()
    stage.escrow.close(stage.id)
    job = stage.post(stage.escrow.evaluation(stage.id, stage.trained.run, task()))
    bond = stage.client.job(job).spec.trainer_bond
    for other in (stage.client, stage.game()):
        with pytest.raises(ContractError, match="NotTrainer"):
            other.send("acceptJob", job, value=bond)
        with pytest.raises(Over, match=f"is reserved for the trainer {trainer.address}"):
            Trainer(other, job, stage.trained.history(stage.trained.run)).accept()
    trainer.game.send("acceptJob", job, value=bond)
    assert stage.client.job(job).trainer == trainer.address


def test_a_false_number_is_convicted_and_the_payer_gets_the_money_back(
    system, trained: Trained, tmp_path: Path
) -> None:
    """The trainer claims one more sample in the last batch, consistently."""
    stage = Stage(system, trained, least=SAMPLES)
    stage.train()
    stage.escrow.close(stage.id)
    bundle = stage.escrow.evaluation(stage.id, trained.run, task())
    place = stage.escrow.promised(stage.id).terms.total
    operator = bundle.program.sources[place].ref.index

    def more(step: int, o: int, words: torch.Tensor, before: Any) -> torch.Tensor:
        return words + 5 if (step, o) == (bundle.steps, operator) else words

    cheat = PatchedExecutor(executor(bundle), Patch(output=more))
    store = Store(tmp_path / "cheat", bundle)
    train(store, cheat, lambda *_: None)
    job = stage.post(bundle)
    trainer = stage.claimed(job, CheatingHistory(store, cheat))
    auditor = Auditor(stage.game(), job, History(vgame.train(bundle, tmp_path / "own")._store, executor(bundle)))
    for _ in range(100):
        if not sum(player.step() for player in (trainer, auditor)):
            break
    assert stage.client.job(job).phase is Phase.CONVICTED
    (verdict,) = stage.client.events("Convicted", job)
    assert CAUSES[verdict.args["cause"]] == "element"
    proof = stage.proof(job, vgame.Run(store))
    assert proof.total > vgame.evaluated(tmp_path / "own").totals["correct"]
    assert stage.refused("pay", stage.id, astuple(proof)) == "NotTrained"
    assert stage.escrow.close(stage.id) == "started"
    stage.chain.advance(stage.escrow.bonus(stage.id).window + 1)
    before = stage.chain.balance(stage.client.wallet.address)
    assert stage.escrow.close(stage.id) == "returned"
    assert stage.chain.balance(stage.client.wallet.address) - before == AMOUNT


@pytest.mark.parametrize("final", [True, False])
def test_an_evaluation_claimed_before_its_training_is_not_paid(system, tmp_path: Path, final: bool) -> None:
    """An account that computed the training earlier orders its evaluation; no auditor has the state to check it. The
    same evaluation, claimed again after the start, is paid."""
    trained = Trained(tmp_path, terms=vgame.Terms(claim_window=10**6))
    stage = Stage(system, trained)
    trainer = Trainer(stage.game(), stage.job, trained.history(trained.run))
    trainer.accept()
    run = vgame.train(stage.prepared(), tmp_path / "evaluation")
    early = stage.post(run.bundle)
    stage.claimed(early, History(run._store, executor(run.bundle)))
    if final:
        stage.finish(early)
    trainer.claim()
    stage.finish(stage.job)
    if not final:
        stage.client.send("finalize", early)
    stage.escrow.send("start", stage.id)
    proof = astuple(stage.proof(early, run))
    for game in (trainer.game, stage.client):
        assert stage.refused("pay", stage.id, proof, escrow=stage.seen_by(game)) == "ClaimedTooEarly"
    assert stage.escrow.bonus(stage.id) is not None
    assert stage.escrow.pay(stage.id, *_evaluated(stage, run)) == AMOUNT


def test_a_missed_mark_is_paid_back_after_the_window(system, trained: Trained) -> None:
    stage = Stage(system, trained, least=SAMPLES + 1)
    stage.train()
    stage.escrow.send("start", stage.id)
    job, run = stage.evaluation("missed")
    with pytest.raises(ContractError, match="MarkMissed"):
        stage.escrow.pay(stage.id, job, trained.run, run)
    until = stage.escrow.bonus(stage.id).since + stage.escrow.bonus(stage.id).window
    stage.chain.advance(until - stage.chain.now())
    assert stage.refused("giveBack", stage.id) == "NotOver"  # in the last second
    stage.chain.advance(1)
    assert stage.escrow.close(stage.id) == "returned" and stage.escrow.bonus(stage.id) is None


def test_a_total_equal_to_the_mark_is_paid(system, trained: Trained) -> None:
    stage = Stage(system, trained)
    stage.train()
    _, run = stage.evaluation("exact")
    total = vgame.evaluated(run).totals["correct"]
    exact = stage.escrow.promise(stage.post(trained.bundle), trained.bundle, task(), "correct", least=total, amount=1)
    assert stage.escrow.promised(exact).terms.least == total
    same = Stage(system, trained, least=total)
    same.train()
    assert same.escrow.close(same.id) == "started"
    job, run = same.evaluation("enough")
    assert same.escrow.pay(same.id, job, trained.run, run) == AMOUNT


def test_no_evaluation_is_prepared_before_the_training_has_a_trainer(stage: Stage) -> None:
    """It would name no trainer, and not be paid; claimed before the bonus's window has begun it is not paid either."""
    with pytest.raises(NotYet, match="shows the trainer of the training"):
        stage.prepared()
    stage.train()
    with pytest.raises(NotYet, match=r"the window of bonus .* has not begun"):
        stage.escrow.evaluation(stage.id, stage.trained.run, task())
    stage.escrow.close(stage.id)
    stage.escrow.evaluation(stage.id, stage.trained.run, task())


@pytest.mark.parametrize("named", ["no account", "the client"])
def test_an_evaluation_that_does_not_name_the_trainer_is_not_paid(stage: Stage, named: str) -> None:
    """Auditors play the order of their bundle: a false number in another order would become final undetected."""
    stage.train()
    stage.escrow.close(stage.id)
    bundle = stage.escrow.evaluation(stage.id, stage.trained.run, task())
    other = {"no account": ZERO_ADDRESS, "the client": stage.client.wallet.address}[named]
    terms = bundle.terms.model_copy(update={"trainer": other})
    job, run = stage.evaluation(f"by {named}", terms=terms)
    with pytest.raises(ContractError, match="WrongTrainer"):
        stage.escrow.pay(stage.id, job, stage.trained.run, run)
    assert stage.refused("pay", stage.id, astuple(stage.proof(job, run))) == "WrongTrainer"


def _evaluated(stage: Stage, run: vgame.Run) -> tuple[bytes, vgame.Run, vgame.Run]:
    job = stage.post(run.bundle)
    stage.claimed(job, History(run._store, executor(run.bundle)))
    stage.finish(job)
    return job, stage.trained.run, run


def test_an_evaluation_is_claimed_after_the_start(stage: Stage) -> None:
    """Before it the trained state need not be available, so a false number could not be contested. Then another one is
    paid."""
    trainer = stage.train()
    job, run = stage.evaluation("early")
    early = astuple(stage.proof(job, run))
    claimed = stage.client.job(job).claimed_at
    with pytest.raises(ContractError) as caught:
        stage.escrow.send("pay", stage.id, early)
    assert (caught.value.name, caught.value.args_) == ("ClaimedTooEarly", (claimed, 0))
    stage.escrow.send("start", stage.id)
    since = stage.escrow.bonus(stage.id).since
    with pytest.raises(ContractError) as caught:
        stage.escrow.send("pay", stage.id, early)
    assert caught.value.args_ == (claimed, since) and claimed < since
    late, *_ = _evaluated(stage, run)
    assert stage.escrow.pay(stage.id, late, stage.trained.run, run) == AMOUNT
    assert stage.escrow.credits(trainer.address) == AMOUNT


def test_a_settled_bonus_can_still_be_read(stage: Stage) -> None:
    promised = Bonus(*stage.escrow._call("getBonus", stage.id))
    assert (promised.since, promised.settled_at, promised.paid) == (0, 0, False) and promised.promised_at
    stage.train()
    stage.escrow.close(stage.id)
    stage.chain.advance(promised.window + 1)
    assert stage.escrow.close(stage.id) == "returned"
    settled = Bonus(*stage.escrow._call("getBonus", stage.id))
    assert (settled.settled_at, settled.paid) == (stage.chain.now() - 1, False)  # then its payer withdrew
    assert replace(settled, since=0, settled_at=0) == promised and stage.escrow.bonus(stage.id) is None


# ---- a training that ends otherwise ----


def test_a_training_without_trainer_is_refunded_at_once(stage: Stage) -> None:
    assert stage.escrow.close(stage.id) == "waiting" and stage.refused("giveBack", stage.id) == "NotOver"
    assert stage.refused("start", stage.id) == "NotTrained"
    stage.chain.advance(stage.client.job(stage.job).spec.accept_window + 1)
    stage.client.send("expire", stage.job)
    assert stage.seen_by(stage.game()).close(stage.id) == "returned"
    assert stage.escrow.credits(stage.client.wallet.address) == AMOUNT


def test_a_diverged_training_pays_back_at_once(system, tmp_path: Path) -> None:
    wild = Trained(tmp_path, schedule=vgame.Constant(lr="1e38"))
    assert wild.run.divergence is not None
    stage = Stage(system, wild)
    stage.train()
    assert stage.refused("start", stage.id) == "NotTrained"
    assert stage.escrow.close(stage.id) == "returned"


def test_a_state_that_was_not_delivered_is_not_paid(system, tmp_path: Path) -> None:
    windows = {"confirm_window": 5_000, "key_window": 5_000, "complaint_window": 5_000}
    sold = Trained(tmp_path, terms=vgame.Terms(**windows))
    stage = Stage(system, sold)
    trainer = Trainer(stage.game(), stage.job, sold.history(sold.run))
    trainer.accept()
    final, path = trainer.checkpoint(len(trainer.machine.checkpoints))
    claim = (stage.job, trainer.run_tree().root, final, path, b"\1" * 32, b"\2" * 32)
    trainer.game.send("postClaim", *claim)
    stage.finish(stage.job)
    assert stage.client.job(stage.job).phase is Phase.DELIVERING
    assert stage.escrow.close(stage.id) == "waiting"
    job, run = stage.evaluation()
    assert stage.refused("pay", stage.id, astuple(stage.proof(job, run))) == "NotTrained"
    stage.chain.advance(10_002)
    close_job(stage.client, stage.job)
    assert stage.client.job(stage.job).phase is Phase.UNDELIVERED
    assert stage.escrow.close(stage.id) == "returned"


def test_a_training_in_mode_logged(system, tmp_path: Path) -> None:
    """The path of its final state begins with the root of its log."""
    logged = Trained(tmp_path, mode="logged", log=vgame.LogTerms(thresholds="proven"), steps=4, interval=2)
    stage = Stage(system, logged, least=1)
    trainer = stage.train()
    assert stage.escrow.close(stage.id) == "started"
    job, run = stage.evaluation()
    proof = stage.proof(job, run)
    assert stage.refused("pay", stage.id, astuple(replace(proof, trained_path=[]))) == "PathLength"
    stage.pay(proof)
    assert stage.escrow.credits(trainer.address) == AMOUNT


def test_the_evaluation_is_compared_with_the_measuring_code(stage: Stage) -> None:
    stage.train()
    stage.escrow.close(stage.id)
    bundle = stage.escrow.evaluation(stage.id, stage.trained.run, task(), validate=60)
    assert bundle.validation["validated"] and bundle.validation["complete"]


def test_an_evaluation_that_differs_from_the_measuring_code_is_neither_promised_nor_ordered(stage: Stage) -> None:
    equal, unequal = torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor
    wrong = {equal: lambda b, *a: HANDLERS[unequal](b, *a)}
    with patch.dict(HANDLERS, wrong), pytest.raises(ValidationError, match=r"totals\.correct"):
        stage.escrow.promise(stage.job, stage.trained.bundle, task(), "correct", least=1, amount=1, validate=60)
    stage.train()
    with patch.dict(HANDLERS, wrong):
        job = stage.post(stage.trained.bundle)
        stage.id = stage.escrow.promise(job, stage.trained.bundle, task(), "correct", least=1, amount=1, validate=0)
        Trainer(stage.game(), job, stage.trained.history(stage.trained.run)).accept()
        with pytest.raises(ValidationError, match=r"totals\.correct"):
            stage.prepared(validate=60)


@pytest.mark.parametrize("place", [31, 95, 500, -1], ids=["amount", "window", "order", "layout"])
def test_a_promise_equals_the_contracts_record(stage: Stage, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """An altered record of an endpoint is rejected; receipts are a second source."""
    methods, true = stage.chain.node.methods, stage.escrow.promised(stage.id)

    def altered(log: dict[str, Any]) -> dict[str, Any]:
        data = bytearray.fromhex(log["data"][2:])
        data[place] ^= 1
        return log | {"data": "0x" + data.hex()}

    logs, receipts = methods["eth_getLogs"], methods["eth_getBlockReceipts"]
    monkeypatch.setitem(methods, "eth_getLogs", lambda query: [altered(log) for log in logs(query)])
    asking = stage.seen_by(stage.game())
    assert asking.promised(stage.id) == true
    lies = lambda block: [r | {"logs": [altered(x) for x in r["logs"]]} for r in receipts(block)]  # noqa: E731
    monkeypatch.setitem(methods, "eth_getBlockReceipts", lies)
    asking = stage.seen_by(stage.game())
    with pytest.raises(NotYet, match="lags, hides it or alters it"):
        asking.promised(stage.id)


def test_no_evaluation_names_a_trainer_without_an_event_of_its_acceptance(stage: Stage) -> None:
    stage.train()
    stage.escrow.close(stage.id)
    game, usual, stranger = stage.escrow.game, stage.escrow.game.jobs, stage.game().wallet.address
    game.jobs = lambda jobs: [replace(job, trainer=stranger) for job in usual(jobs)]
    with pytest.raises(VgameError, match=r"JobAccepted|event"):
        stage.escrow.evaluation(stage.id, stage.trained.run, task())


def test_a_run_that_began_for_an_order_with_other_terms_is_evaluated(system, trained: Trained, tmp_path: Path) -> None:
    """A trainer's store keeps the terms of the first order; the same computation in another order continues that
    run."""
    stage = Stage(system, trained)
    other = replace(trained.bundle, terms=trained.bundle.terms.model_copy(update={"claim_window": 500_000}))
    run = vgame.train(other, tmp_path / "run")
    stage.train()
    assert run.bundle.order != trained.bundle.order and stage.escrow.close(stage.id) == "started"
    bundle = stage.escrow.evaluation(stage.id, run, task(), validate=0)
    assert bundle.order == stage.escrow.evaluation(stage.id, trained.run, task(), validate=0).order


def test_a_bonus_that_was_opened_before_is_named_also_without_money(stage: Stage) -> None:
    """A command that was killed has opened it; a second one does not ask for more money."""
    payer = stage.client.wallet.address
    stage.chain.node.set_balance(payer, AMOUNT // 2)
    with pytest.raises(ContractError, match="BonusExists") as caught:
        stage.escrow.promise(stage.job, stage.trained.bundle, task(), "correct", **stage.terms)
    assert caught.value.args_ == (stage.id,)


def _given_back(system, trained: Trained, shown: list[int]) -> int:
    """The wei that a payer's `close` after the window yields if the next looks at its credits show this."""
    stage = Stage(system, trained, least=SAMPLES + 1)
    stage.train()
    stage.escrow.close(stage.id)
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    usual, before = stage.escrow.credits, stage.chain.balance(stage.client.wallet.address)
    stage.escrow.credits = lambda account: shown.pop(0) if shown else usual(account)
    assert stage.escrow.close(stage.id) == "returned"
    return stage.chain.balance(stage.client.wallet.address) - before


def test_credits_that_a_node_shows_late_are_withdrawn(system, trained: Trained) -> None:
    assert _given_back(system, trained, [0, 0, 0]) == AMOUNT


def test_credits_that_no_look_shows_are_reported(system, trained: Trained) -> None:
    with pytest.raises(NotYet, match="no credits of"):
        _given_back(system, trained, [0] * 10)
