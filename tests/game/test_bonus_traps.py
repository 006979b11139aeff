"""Bonuses that could not be earned or paid: `promise`, `check` and `prepare` name the condition that fails, and the
trainer does not return its own bonus."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from bonus_stage import AMOUNT, SAMPLES, Stage, Trained, refused_by_both, task
from test_delivery_few_lies import Turns

import vgame
from vgame.agents import bonus_conditions
from vgame.agents.bonus import untrained_evaluation
from vgame.agents.bonus_conditions import proof_size
from vgame.chain.wallet import CALLDATA_CAP
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain
from vgame.job.terms import Pace


def opened(stage: Stage, spec: dict[str, Any] | None = None, **terms: Any) -> bytes:
    """A second bonus, changed, by the contract's own `open`: a payer need not use `promise`."""
    found = stage.escrow.promised(stage.id)
    order = replace(found.evaluation, **(spec or {}))
    return stage.escrow.open(replace(found.terms, **terms), order, list(found.layout), AMOUNT, 77)


@pytest.mark.parametrize("interval", [0, 5])
def test_an_interval_that_no_evaluation_can_have(stage: Stage, interval: int) -> None:
    steps = stage.escrow.promised(stage.id).evaluation.steps
    assert steps == 4
    trap, text = opened(stage, {"interval": interval}), f"interval of its evaluation is {interval}, 1 to {steps}"
    with pytest.raises(Abstain, match=text):
        stage.escrow.check(trap, stage.trained.bundle, task())
    stage.train()
    with pytest.raises(Abstain, match=text):
        stage.escrow.evaluation(trap, stage.trained.run, task())


@pytest.mark.parametrize("interval", [1, 4])
def test_every_interval_up_to_the_steps_can_be_prepared(stage: Stage, interval: int) -> None:
    found = opened(stage, {"interval": interval}, window=2**31)
    stage.escrow.check(found, stage.trained.bundle, task())
    stage.id = found
    stage.train()
    assert stage.prepared().interval == interval


def test_a_bonus_for_another_order_is_neither_promised_nor_accepted(stage: Stage) -> None:
    """Only the payer's own account can accept the other job, and lets it expire: the money goes back."""
    own = stage.trained.bundle
    puppet = own.terms.model_copy(update={"trainer": stage.game().wallet.address})
    decoy = stage.post(replace(own, terms=puppet))
    with pytest.raises(Abstain, match=f"the bonus is for job {decoy.hex()[:16]}, whose order is not this bundle"):
        stage.escrow.promise(decoy, own, task(), "correct", least=1, amount=AMOUNT)
    with pytest.raises(Abstain, match=f"for job {decoy.hex()[:16]}, whose order is not this bundle"):
        stage.escrow.check(opened(stage, training=decoy), own, task())


def test_a_bonus_for_the_same_order_posted_twice(stage: Stage) -> None:
    second, own = stage.post(stage.trained.bundle), stage.trained.bundle
    stage.escrow.check(stage.id, own, task(), job=stage.job)
    with pytest.raises(Abstain, match=f"for job {stage.job.hex()[:16]}, not for job {second.hex()[:16]}"):
        stage.escrow.check(stage.id, own, task(), job=second)


def test_a_bonus_of_a_training_that_has_ended(system, tmp_path: Path, stage: Stage) -> None:
    wild = Trained(tmp_path, schedule=vgame.Constant(lr="1e38"))
    diverged = Stage(system, wild)
    diverged.train()
    stage.chain.advance(stage.client.job(stage.job).spec.accept_window + 1)
    stage.client.send("expire", stage.job)
    for ended, bundle, outcome in ((stage, stage.trained.bundle, "expired"), (diverged, wild.bundle, "diverged")):
        with pytest.raises(Abstain, match=rf"has ended without a trained state \({outcome}\)"):
            ended.escrow.check(ended.id, bundle, task())
        with pytest.raises(Abstain, match=rf"has ended without a trained state \({outcome}\)"):
            ended.escrow.evaluation(ended.id, ended.trained.run, task())


def test_no_evaluation_is_prepared_for_the_run_of_another_training(stage: Stage, tmp_path: Path) -> None:
    """Its evaluation would start from another state than the bonus pays for. Another reward does not change a run."""
    stage.train()
    stage.escrow.send("start", stage.id)
    with pytest.raises(Abstain, match="whose order is not this bundle"):
        stage.escrow.evaluation(stage.id, Trained(tmp_path / "other", seed=4).run, task())
    terms = vgame.Terms(reward=5, diverged_pay=1)
    stage.escrow.evaluation(stage.id, Trained(tmp_path / "cheap", terms=terms).run, task())


def test_a_settled_bonus_is_not_prepared(stage: Stage) -> None:
    stage.train()
    stage.escrow.close(stage.id)
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    stage.escrow.close(stage.id)
    for call in (
        lambda: stage.escrow.check(stage.id, stage.trained.bundle, task()),
        lambda: stage.escrow.evaluation(stage.id, stage.trained.run, task()),
    ):
        with pytest.raises(Abstain, match="is settled; `vgame bonus close` prints the outcome"):
            call()


# ---- time ----


def test_an_evaluation_too_long_for_its_claim_window(stage: Stage, tmp_path: Path) -> None:
    """40,000 batches of one sample; the claim window is one second longer than `vgame trainer` needs without
    computation."""
    many = lambda: _many_batches(40_000)  # noqa: E731
    terms = vgame.Terms(claim_window=601)
    bundle = vgame.prepare(vgame.Job(many(), steps=1, interval=1, seed=3, terms=terms), validate=0)
    text = "would refuse its evaluation of 40000 steps.*claim_window is 601, .* is needed"
    refused_by_both(stage, bundle, many, text)


def _many_batches(samples: int) -> vgame.Task:
    made = task(samples=samples)
    return replace(made, evaluate=replace(made.evaluate, batch=1))


def test_an_evaluation_too_long_for_its_challenge_window(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An auditor computes it before it disputes. 4 steps of 10,000 s, with a challenge window of 40,000 s."""
    monkeypatch.setattr(bonus_conditions, "measure", lambda *_: Pace(10_000, 10_000))
    monkeypatch.setattr(bonus_conditions, "why_not_staked", lambda *_: "")
    bundle = replace(stage.trained.bundle, terms=vgame.Terms(challenge_window=40_000))
    text = "an auditor would not dispute .*: challenge_window is 40000, at least 4.... is needed"
    refused_by_both(stage, bundle, task, text)


# ---- the size of a proof ----


def test_a_bonus_whose_proof_is_too_large_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `promise`, `check` and `prepare`: 32 bytes for each state tensor are more than a transaction may have."""
    bundle = stage.trained.bundle
    size = proof_size(bundle, untrained_evaluation(task(), "correct", bundle, AMOUNT))
    assert 32 * (len(bundle.state) + len(stage.escrow.promised(stage.id).layout)) < size
    monkeypatch.setattr(bonus_conditions, "CALLDATA_CAP", size)
    stage.escrow.check(stage.id, bundle, task())
    stage.train()
    monkeypatch.setattr(bonus_conditions, "CALLDATA_CAP", size - 1)
    text = f"its proof has {size:,} bytes, {size - 1:,} are the most in a transaction"
    refused_by_both(stage, bundle, task, text)
    with pytest.raises(Abstain, match=text):
        stage.escrow.evaluation(stage.id, stage.trained.run, task())


@pytest.mark.parametrize("mode", ["correct", "logged"])
def test_the_size_of_a_proof_is_known_in_advance(system, tmp_path: Path, mode: str) -> None:
    log = {"log": vgame.LogTerms(thresholds="proven")} if mode == "logged" else {}
    stage = Stage(system, Trained(tmp_path, mode=mode, steps=5, interval=2, **log))
    stage.train()
    stage.escrow.send("start", stage.id)
    job, run = stage.evaluation()
    call = stage.escrow.contract.functions.pay(stage.id, astuple(stage.proof(job, run)))
    size = (len(call._encode_transaction_data()) - 2) // 2
    assert size == proof_size(stage.trained.bundle, run.bundle) < CALLDATA_CAP


# ---- close ----


def test_a_trainer_does_not_return_a_bonus_whose_window_began(stage: Stage) -> None:
    """At no time, in no state of its evaluation: only the payer gains by it, and `pay` is possible until then."""
    trainer = stage.train()
    stage.escrow.send("start", stage.id)
    mine, bundle = stage.seen_by(trainer.game), stage.prepared()
    run = vgame.train(bundle, stage.trained.folder / "at all times")
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    own = Trainer(trainer.game, job := stage.post(bundle), stage.trained.history(run))
    for step in (own.accept, own.claim, lambda: stage.finish(job)):
        assert mine.close(stage.id) == "started"
        step()
    assert mine.close(stage.id) == "started"
    assert mine.pay(stage.id, job, stage.trained.run, run) == AMOUNT
    assert mine.close(stage.id) == "paid" and stage.escrow.credits(trainer.address) == 0


@pytest.mark.parametrize("false", range(3))
def test_an_endpoint_that_shows_another_trainer_does_not_have_the_bonus_returned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, false: int
) -> None:
    trainer = stage.train()
    stage.escrow.send("start", stage.id)
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    mine, turns = stage.seen_by(trainer.game), Turns(3, 3)
    usual, stranger = mine.game.job, stage.game().wallet.address
    mine.game.job = lambda job: replace(usual(job), trainer=stranger) if turns.at == false else usual(job)
    monkeypatch.setattr(mine.game.chain, "turns", turns)
    assert mine.close(stage.id) == "started"
    assert stage.escrow.bonus(stage.id) is not None


def test_a_payer_closes_after_the_window(system, trained: Trained) -> None:
    stage = Stage(system, trained, least=SAMPLES + 1)
    trainer = stage.train()
    stage.escrow.send("start", stage.id)
    stage.evaluation("missed by the payer")
    stage.chain.advance(stage.escrow.promised(stage.id).terms.window + 1)
    assert stage.seen_by(trainer.game).close(stage.id) == "started"
    assert stage.escrow.close(stage.id) == "returned"


# ---- the bundle, the mark, the total ----


def test_a_bundle_with_exchanged_names_is_refused(stage: Stage, tmp_path: Path) -> None:
    """No root on chain covers names: the evaluation would measure the momentum in place of the weight."""
    bundle = stage.trained.bundle
    labels = bundle.program.labels.state
    slot = next(label.name for label in labels if label.name != "weight" and label.name.endswith("weight"))
    names = {"weight": slot, slot: "weight"}
    changed = tuple(replace(label, name=names.get(label.name, label.name)) for label in labels)
    program = replace(bundle.program, labels=replace(bundle.program.labels, state=changed))
    other = replace(bundle, program=program)
    assert other.order == bundle.order
    text = "names a state tensor .*weight of shape .* in the task, so that another tensor would be measured"
    with pytest.raises(Abstain, match=text):
        stage.escrow.promise(stage.job, other, task(), "correct", least=1, amount=1, nonce=5)
    with pytest.raises(Abstain, match=text):
        stage.escrow.check(stage.id, other, task())


@pytest.mark.parametrize("least", [2**30, -(2**30), 2**31 - 1])
def test_a_mark_that_no_total_can_reach_is_refused(stage: Stage, least: int) -> None:
    found = stage.escrow.promised(stage.id)
    trap = stage.escrow.open(replace(found.terms, least=least), found.evaluation, list(found.layout), AMOUNT, 9)
    text = f"its mark is {least}, but a whole number above"
    with pytest.raises(Abstain, match=text):
        stage.escrow.check(trap, stage.trained.bundle, task())
    with pytest.raises(Abstain, match=text):
        stage.escrow.promise(stage.job, stage.trained.bundle, task(), "correct", least=least, amount=1)
    assert stage.escrow.check(stage.id, stage.trained.bundle, task()) == "correct"
