"""Bonuses that no trainer could earn, or no payer could pay: `promise`, `check` and `prepare` refuse them by the same
conditions."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any
from unittest.mock import patch

import pytest
from bonus_stage import AMOUNT, Stage, Trained, task

import vgame.agents.bonus as bonus
from vgame.chain.records import Phase
from vgame.errors import Abstain
from vgame.job.terms import Pace


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def stage(system: Any, trained: Trained) -> Stage:
    return Stage(system, trained)


def opened(stage: Stage, spec: dict[str, Any] | None = None, terms: dict[str, Any] | None = None) -> bytes:
    """A bonus that another program has opened."""
    p = stage.escrow.promised(stage.id)
    stage.nonce += 1
    args = astuple(replace(p.terms, **terms or {})), astuple(replace(p.evaluation, **spec or {})), list(p.layout)
    receipt = stage.escrow.send("open", *args, 50 + stage.nonce, value=AMOUNT)
    return bytes(stage.escrow._decode(receipt["logs"][0]).args["id"])


@pytest.mark.parametrize("more", [None, 1])
def test_an_interval_that_no_evaluation_has_is_refused(stage: Stage, more: int | None) -> None:
    """`prepare` could not make the promised evaluation after the training."""
    steps = stage.escrow.promised(stage.id).evaluation.steps
    trap = opened(stage, {"interval": steps + more if more else 0})
    with pytest.raises(Abstain, match=f"the interval of its evaluation is .*, 1 to {steps} are possible"):
        stage.escrow.check(trap, stage.trained.bundle, task())


def test_a_bonus_for_another_training_is_refused(stage: Stage) -> None:
    """Only an account of the payer can accept that one, and does not."""
    own, puppet = stage.trained.bundle, stage.game()
    other = replace(own, terms=own.terms.model_copy(update={"trainer": puppet.wallet.address}))
    trap = opened(stage, terms={"training": stage.post(other)})
    with pytest.raises(Abstain, match="the bundle is not the one that job"):
        stage.escrow.check(trap, own, task())
    with pytest.raises(Abstain, match="the bundle is not the one that job"):
        stage.escrow.promise(stage.job, other, task(), "correct", least=1, amount=1)


def test_a_bonus_for_a_training_that_has_failed_is_refused(stage: Stage) -> None:
    stage.chain.advance(stage.trained.bundle.terms.accept_window + 1)
    stage.client.send("expire", stage.job)
    assert stage.client.job(stage.job).phase is Phase.EXPIRED
    with pytest.raises(Abstain, match="is expired, so nothing can be paid"):
        stage.escrow.check(stage.id, stage.trained.bundle, task())


def test_an_evaluation_that_takes_longer_than_its_windows_is_refused(stage: Stage) -> None:
    own = bonus.untrained_evaluation(task(), "correct", stage.trained.bundle, AMOUNT)
    slow = Pace(own.terms.claim_window / own.steps, 0.1)
    with patch.object(bonus, "measure", lambda *_: slow):
        with pytest.raises(Abstain, match=r"is \d+, (at least )?\d+ is needed"):
            stage.escrow.check(stage.id, stage.trained.bundle, task())
        with pytest.raises(Abstain, match=r"is \d+, (at least )?\d+ is needed"):
            stage.escrow.promise(stage.job, stage.trained.bundle, task(), "correct", least=1, amount=1)


def test_a_proof_that_no_transaction_holds_is_refused(stage: Stage) -> None:
    stage.train()
    assert stage.escrow.close(stage.id) == "started"
    job, run = stage.evaluation()
    promised = stage.escrow.promised(stage.id)
    proof = bonus.proof_of(promised, job, stage.trained.run, run)
    size = bonus._proof_size(stage.escrow, stage.trained.bundle, run.bundle)
    assert 0 <= size - len(stage.escrow.encoded("pay", stage.id, astuple(proof))) <= 2 * 32
    with patch.object(bonus, "CALLDATA_CAP", size - 1):
        for refused in (
            lambda: stage.escrow.check(stage.id, stage.trained.bundle, task()),
            lambda: stage.escrow.evaluation(stage.id, stage.trained.run, task(), validate=0),
        ):
            with pytest.raises(Abstain, match=f"its proof has {size:,} bytes"):
                refused()
