"""Refusals of `promise`, `check` and `prepare`: amounts and windows that no contract holds, a disk that is too small,
another run, a measure that the program does not compute."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bonus_stage import AMOUNT, Stage, Trained, task, trained  # noqa: F401 (a fixture)

import vgame
from vgame.agents import bonus
from vgame.errors import Abstain, ContractError, StoreError, VgameError


@pytest.fixture
def stage(system, trained: Trained) -> Stage:  # noqa: F811
    return Stage(system, trained)


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"amount": 2**127}, "less than 2.127 is expected"),
        ({"window": 2**32}, "window = 4294967296: a whole number from 1 to 4294967295 is expected"),
        ({"window": 0}, "window = 0"),
        ({"nonce": 2**256}, "nonce = "),
        ({"amount": 10**23}, "the window would be .* s, 4294967295 s are the most.*larger auditor_bond"),
    ],
    ids=str,
)
def test_values_that_the_contract_cannot_hold_are_refused(stage: Stage, terms: dict[str, int], why: str) -> None:
    terms = {"least": 1, "amount": AMOUNT, "validate": 0} | terms
    with pytest.raises(VgameError, match=why):
        stage.escrow.promise(stage.job, stage.trained.bundle, task(), "correct", **terms)


def test_an_evaluation_that_does_not_fit_the_disk_is_refused(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`vgame trainer` would refuse it after the training."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(StoreError, match=r"this run needs .* more of its disk, 100 bytes are free"):
        stage.escrow.check(stage.id, stage.trained.bundle, task(), store=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for store in (tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(StoreError, match=r"No such file|Not a directory.*--store"):
            stage.escrow.check(stage.id, stage.trained.bundle, task(), store=store)


def test_the_time_of_checkpoints_counts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.agents.bonus_conditions.checkpoint_seconds", lambda *_: 5.0e5)
    with pytest.raises(Abstain, match=r"`vgame trainer` would refuse.* s a checkpoint on this device: claim_window"):
        stage.escrow.check(stage.id, stage.trained.bundle, task())


def test_few_checkpoints_of_a_large_model_are_kept(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    size = 4 * sum(p.numel() for p in task().model.parameters())
    assert bonus.untrained_evaluation(task(samples=400), "correct", trained.bundle, AMOUNT).interval == 10
    monkeypatch.setattr(bonus, "MOST_KEPT", 2 * size)
    assert bonus.untrained_evaluation(task(samples=400), "correct", trained.bundle, AMOUNT).interval == 20


def test_another_run_than_the_claimed_one_is_refused(stage: Stage, tmp_path: Path) -> None:
    stage.train()
    stage.escrow.close(stage.id)
    other = vgame.train(stage.trained.bundle, tmp_path / "run")
    roots = other.folder / "roots.bin"
    roots.write_bytes(bytes([roots.read_bytes()[0] ^ 1]) + roots.read_bytes()[1:])
    with pytest.raises(Abstain, match=r"is not the run of the training's claim: its root is .*, that of the claim"):
        stage.escrow.evaluation(stage.id, other.folder, task(), validate=0)


def wraps(model: torch.nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """Squares beyond 32 bits: torch adds them up in 64."""
    return {"correct": ((model(batch["x"]).argmax(1) + 65536) ** 2).sum()}


@pytest.mark.parametrize("who", ["payer", "trainer"])
def test_an_integer_that_wraps_within_a_batch_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Before the payer pays, and before the trainer works."""
    terms = {"least": 1, "amount": AMOUNT}
    made = lambda: task(wraps)  # noqa: E731
    if who == "payer":
        with pytest.raises(VgameError, match=r"ValidationError|differ|compute"):
            stage.escrow.promise(stage.job, stage.trained.bundle, made(), "correct", validate=20, **terms)
        return
    identity = stage.escrow.promise(stage.job, stage.trained.bundle, made(), "correct", validate=0, **terms)
    with pytest.raises(VgameError, match=r"differ|compute"):
        stage.escrow.check(identity, stage.trained.bundle, made(), validate=20)


def test_refusals_of_the_contract_name_a_remedy(stage: Stage) -> None:
    with pytest.raises(ContractError, match=r"BonusExists\(.*\): it has been promised; give another --nonce"):
        stage.escrow.promise(stage.job, stage.trained.bundle, task(), "correct", validate=0, **stage.terms)
    stage.train()
    stage.escrow.close(stage.id)
    job, run = stage.evaluation("paid twice")
    stage.escrow.pay(stage.id, job, stage.trained.run, run)
    with pytest.raises(ContractError, match=r"NoBonus\(.*\): there is none, or it is settled"):
        stage.escrow.pay(stage.id, job, stage.trained.run, run)
