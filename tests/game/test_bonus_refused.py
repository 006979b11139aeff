"""Refusals of the escrow of a bonus: damaged proofs, other states, other orders, other terms."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bonus_stage import AMOUNT, Stage, Trained, executor, measure, refused_by_both, task
from deployed import compile_cached
from eth_abi import encode
from revm_chain import RevmGame
from scene import CONTRACTS, PAYEE_MODES, deploy_code

import vgame
from vgame.agents.bonus import needed_window, untrained_evaluation
from vgame.chain.abi import artifact
from vgame.chain.escrow import NAME, BonusProof, entry_of
from vgame.errors import Abstain, ChainError
from vgame.job.terms import LONGEST_WINDOW
from vgame.runs.history import History
from vgame.runs.store import Store

# ---- proofs ----


@pytest.fixture(scope="module")
def shown(system, trained: Trained) -> tuple[Stage, BonusProof]:
    """A bonus that could be paid."""
    stage = Stage(system, trained)
    stage.train()
    stage.escrow.send("start", stage.id)
    return stage, stage.proof(*stage.evaluation("shown"))


def flipped(word: bytes) -> bytes:
    return bytes([word[0] ^ 1]) + word[1:]


DAMAGE = {
    "another layout": lambda p: {"layout": [flipped(p.layout[0]), *p.layout[1:]]},
    "a layout with more": lambda p: {"layout": [*p.layout, bytes(32)]},
    "another state": lambda p: {"trained": flipped(p.trained)},
    "another path": lambda p: {"trained_path": [flipped(p.trained_path[0]), *p.trained_path[1:]]},
    "another tensor": lambda p: {"tensors": [flipped(p.tensors[0]), *p.tensors[1:]]},
    "an optimizer's tensor": lambda p: {"tensors": [*p.tensors[:-1], flipped(p.tensors[-1])]},
    "another measured state": lambda p: {"measured": flipped(p.measured)},
    "a measured state of before": lambda p: {"measured": p.trained},
    "another total": lambda p: {"total": p.total + 1},
    "the size as total": lambda p: {"total": p.size, "total_path": p.size_path},
    "another place": lambda p: {"total_path": list(reversed(p.total_path))},
    "another size": lambda p: {"size": 0},
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_proof_pays_nothing(shown: tuple[Stage, BonusProof], how: str) -> None:
    stage, proof = shown
    assert stage.refused("pay", stage.id, astuple(replace(proof, **DAMAGE[how](proof)))) == "WrongRoot"


LENGTHS = {
    "a tensor less": (lambda p: {"tensors": p.tensors[:-1]}, "WrongCount"),
    "padding as a tensor": (lambda p: {"tensors": [*p.tensors, bytes(32)]}, "WrongCount"),
    "a path too short": (lambda p: {"measured_path": p.measured_path[:-1]}, "PathLength"),
    "a path too long": (lambda p: {"total_path": [*p.total_path, bytes(32)]}, "PathLength"),
}


@pytest.mark.parametrize("how", LENGTHS)
def test_a_proof_of_another_length_pays_nothing(shown: tuple[Stage, BonusProof], how: str) -> None:
    (change, name), (stage, proof) = LENGTHS[how], shown
    changed = replace(proof, **change(proof))
    if changed == proof:  # a run tree of one checkpoint has no path to cut
        changed = replace(proof, measured_path=[bytes(32)])
    assert stage.refused("pay", stage.id, astuple(changed)) == name


def test_the_evaluation_of_another_state_pays_nothing(shown: tuple[Stage, BonusProof], tmp_path: Path) -> None:
    """The same order over the untrained weights: its own root, so not that of the trained ones."""
    stage, proof = shown
    untrained = untrained_evaluation(task(), "correct", stage.trained.bundle, AMOUNT)
    run = vgame.train(untrained, tmp_path / "untrained")
    job = stage.post(untrained)
    stage.claimed(job, History(run._store, executor(untrained)))
    stage.finish(job)
    assert stage.refused("pay", stage.id, astuple(replace(proof, evaluation=job))) == "WrongRoot"
    assert stage.refused("pay", stage.id, astuple(stage.proof(job, run))) == "WrongRoot"


@pytest.mark.parametrize("change", [{"seed": 1}, {"depth": 4}, {"terms": {"auditor_bond": 10**17}}])
def test_an_evaluation_of_another_order_pays_nothing(shown: tuple[Stage, BonusProof], change: dict[str, Any]) -> None:
    """Fewer bonds, another seed: any difference from the promise."""
    stage, proof = shown
    bundle = vgame.Run.open(stage.trained.folder / "shown").bundle
    if "terms" in change:
        change = {"terms": bundle.terms.model_copy(update=change["terms"])}
    other = replace(bundle, **change)
    history = History(Store(stage.trained.folder / "shown", bundle, writable=False), executor(bundle))
    job = stage.post(other)
    stage.claimed(job, history)
    stage.finish(job)
    assert stage.refused("pay", stage.id, astuple(replace(proof, evaluation=job))) == "WrongRoot"


def test_an_evaluation_that_is_not_final_pays_nothing(shown: tuple[Stage, BonusProof]) -> None:
    stage, proof = shown
    run = vgame.Run.open(stage.trained.folder / "shown")
    job = stage.post(run.bundle)
    later = astuple(replace(proof, evaluation=job))
    assert stage.refused("pay", stage.id, later) == "NotTrained"
    stage.claimed(job, History(run._store, executor(run.bundle)))
    assert stage.refused("pay", stage.id, later) == "NotTrained"
    assert stage.refused("pay", stage.id, astuple(replace(proof, evaluation=bytes(32)))) == "NotTrained"


@pytest.mark.parametrize("each, name", [(2**24, "MarkMissed"), (2**26, "TotalTooLarge")])
def test_a_total_that_may_have_wrapped_pays_nothing(system, tmp_path: Path, each: int, name: str) -> None:
    """40 samples of 2^26 are more than 2^31: the sum in 32 bits wraps to a small number and does not count."""

    def count(model: torch.nn.Module, batch) -> dict[str, torch.Tensor]:
        ones = torch.full_like(batch["y"], each).to(torch.int32)
        return {"correct": (ones + 0 * model(batch["x"]).argmax(1)).sum()}

    trained = Trained(tmp_path)
    stage = Stage(system, trained)
    counted = task(count)
    job = stage.post(trained.bundle)
    mark = 2**30 - 1 if name == "MarkMissed" else 1 - 2**30
    stage.id, stage.job = stage.escrow.promise(job, trained.bundle, counted, "correct", least=mark, amount=AMOUNT), job
    stage.train()
    stage.escrow.send("start", stage.id)
    bundle = stage.escrow.evaluation(stage.id, trained.run, counted)
    run = vgame.train(bundle, tmp_path / "large")
    job = stage.post(bundle)
    stage.claimed(job, History(run._store, executor(bundle)))
    stage.finish(job)
    if name == "TotalTooLarge":
        with pytest.raises(vgame.ProgramError, match="added up in 32 bits"):
            stage.escrow.pay(stage.id, job, trained.run, run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vgame.agents.bonus.evaluated", lambda run: None)
        assert stage.refused("pay", stage.id, astuple(stage.proof(job, run))) == name


# ---- a promise ----


def changed(stage: Stage, terms: dict = {}, spec: dict = {}, layout: list | None = None) -> tuple[Any, ...]:  # noqa: B006
    """Terms, evaluation and layout of another bonus."""
    found = stage.escrow.promised(stage.id)
    return replace(found.terms, **terms), replace(found.evaluation, **spec), layout or list(found.layout)


def opened(stage: Stage, **changes: Any) -> tuple[Any, ...]:
    """Arguments of `open`, changed."""
    terms, spec, layout = changed(stage, **changes)
    return astuple(terms), astuple(spec), layout, 7


def test_terms_that_cannot_be_fulfilled_are_not_promised(stage: Stage) -> None:
    def refused(value: int = AMOUNT, **changes: Any) -> str:
        return stage.refused("open", *opened(stage, **changes), value=value)

    assert refused(0) == "NoMoney" and refused(spec={"initial_root": b"\x01" * 32}) == "InitialRootGiven"
    assert refused(spec={"trainer_bond": 2 * AMOUNT - 1}) == "BondTooSmall"
    states = stage.client.job(stage.job).states
    assert refused(layout=[entry_of(states)]) == "NoSuchTensor"
    for place in ("total", "size"):  # a promise that no state of the evaluation could fulfil
        assert refused(terms={place: len(opened(stage)[2])}) == "NoSuchTensor"
    assert refused(spec={"trainer": stage.client.wallet.address}) == "TrainerGiven"
    stage.escrow.send("open", *opened(stage, layout=[entry_of(states - 1)] * len(opened(stage)[2])), value=AMOUNT)
    stage.escrow.send("open", *opened(stage), value=AMOUNT)
    assert refused() == "BonusExists"
    stage.train()
    assert refused() == "NotAhead" and refused(terms={"training": b"\x07" * 32}) == "NotAhead"


def test_a_second_start_and_an_empty_withdrawal_are_refused(stage: Stage) -> None:
    stage.train()
    stage.escrow.send("start", stage.id)
    assert stage.refused("start", stage.id) == "AlreadyStarted"
    assert stage.refused("withdraw", stage.client.wallet.address) == "NothingOwed"
    with pytest.raises(ChainError, match="there is no bonus 0707"):
        stage.escrow.close(b"\x07" * 32)


@pytest.mark.parametrize("mode", ["REFUSE", "BURN", "LOUD"])
def test_a_recipient_that_refuses_payment_changes_nothing(stage: Stage, mode: str) -> None:
    """The same credits go to another recipient."""
    code = compile_cached(CONTRACTS / "Payee.sol")["Payee"]["bytecode"]
    payee = deploy_code(stage.chain, code + encode(["uint8", "bytes"], [PAYEE_MODES.index(mode), b""]).hex())
    stage.chain.advance(stage.client.job(stage.job).spec.accept_window + 1)
    stage.client.send("expire", stage.job)
    stage.escrow.send("giveBack", stage.id)
    assert stage.refused("withdraw", payee) == "PaymentRefused"
    assert stage.escrow.credits(stage.client.wallet.address) == AMOUNT
    taker = stage.chain.wallet().address
    before = stage.chain.balance(taker)
    stage.escrow.send("withdraw", taker)
    assert stage.chain.balance(taker) == before + AMOUNT


def test_a_trainer_detects_differences_from_its_task(system, trained: Trained) -> None:
    stage = Stage(system, trained)
    escrow, bundle = stage.escrow, trained.bundle
    other = task()
    other.evaluate.data["y"][0] = (other.evaluate.data["y"][0] + 1) % 4
    with pytest.raises(Abstain, match="not for the measure of this task: data_root differ"):
        escrow.check(stage.id, bundle, other)
    with pytest.raises(Abstain, match="data_root"):
        escrow.evaluation(stage.id, trained.run, other)
    needed = needed_window(untrained_evaluation(task(), "correct", bundle, AMOUNT), AMOUNT)
    with pytest.raises(Abstain, match=f"its window of {needed - 1} s is too short, {needed} s are needed"):
        escrow.promise(stage.job, bundle, task(), "correct", least=1, amount=AMOUNT, window=needed - 1)
    found = escrow.promised(stage.id)
    short = escrow.open(replace(found.terms, window=needed - 1), found.evaluation, list(found.layout), AMOUNT, 7)
    with pytest.raises(Abstain, match=f"its window of {needed - 1} s is too short, {needed} s are needed"):
        escrow.check(short, bundle, task())
    for changes, word in (
        ({"terms": {"total": found.terms.size}}, "total"),
        ({"layout": [*found.layout[:-1], bytes(31) + b"\x01"]}, "layout"),
        ({"spec": {"steps": found.evaluation.steps - 1}}, "steps"),
    ):
        with pytest.raises(Abstain, match=f"{word} differ"):
            escrow.check(escrow.open(*changed(stage, **changes), AMOUNT, 7), bundle, task())


@pytest.mark.parametrize(
    "terms, why",
    [
        ({"fee": 2**96 - 1}, "the auditor's bond and the fee are"),
        ({"fee": 10**18}, "fee is 1000000000000000000 wei"),
        ({"auditor_bond": 10**26}, "the auditor's bond and the fee are"),
        ({"auditor_bond": 10**18, "fee": 1 + 10**18}, "the auditor's bond and the fee are"),
        ({"challenge_window": 1}, "challenge_window is 1"),
        ({"challenge_window": 450, "slot": 60}, "challenge_window is 450, at least 5.. is needed"),
        ({"slot": 1, "auditor_budget": 600}, "auditor_budget is 600"),
        ({"trainer_budget": LONGEST_WINDOW + 1}, "trainer_budget is"),
        ({"slot": 2**24 - 1, "trainer_budget": 2**24}, "slot is 16777215"),
    ],
)
def test_an_evaluation_that_no_auditor_would_dispute_is_refused(stage: Stage, terms: dict[str, int], why: str) -> None:
    """The payer's own trainer would make it final, as often as the evaluation is ordered, and the bonus would go
    back. The criterion is the one by which `vgame auditor` stakes."""
    bundle = replace(stage.trained.bundle, terms=vgame.Terms(**terms))
    refused_by_both(stage, bundle, task, f"an auditor would not dispute a false evaluation: .*{why}")


@pytest.mark.parametrize("windows", [0, 40_000])
def test_a_bonus_on_a_training_without_delivery_gives_warnings(system, tmp_path: Path, windows: int) -> None:
    """For payer and trainer: the state that an evaluation starts from may not be public."""
    names = ("confirm_window", "key_window", "complaint_window")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        stage = Stage(system, Trained(tmp_path, terms=vgame.Terms(**dict.fromkeys(names, windows))))
        stage.escrow.check(stage.id, stage.trained.bundle, task())
    output = [str(w.message) for w in found if "no delivery" in str(w.message)]
    assert len(output) == (0 if windows else 2) and all("confirm_window" in text for text in output)
    assert sum("can decline the delivery" in str(w.message) for w in found) == (1 if windows else 0)  # in `check`


def test_other_terms_than_the_trainings_are_refused(stage: Stage) -> None:
    identity = stage.escrow.open(*changed(stage, spec={"fee": 2**96 - 1}), AMOUNT, 7)
    with pytest.raises(Abstain, match="fee differ"):
        stage.escrow.check(identity, stage.trained.bundle, task())


def test_invalid_marks_are_refused(stage: Stage) -> None:
    def promise(measured: Callable = measure, total: str = "correct", **changes: Any) -> None:
        terms = {"least": 1, "amount": AMOUNT} | changes
        stage.escrow.promise(stage.job, stage.trained.bundle, task(measured), total, **terms)

    def floats(model: torch.nn.Module, batch) -> dict[str, torch.Tensor]:
        return measure(model, batch) | {"loss": model(batch["x"]).sum()}

    promise(floats)  # the other total is left out
    for total in ("loss", "right"):
        with pytest.raises(
            vgame.ProgramError, match=f"total = '{total}': an integer total .*, one of correct; count a"
        ):
            promise(floats, total)
    for least in (2**31, 0.91):
        with pytest.raises(vgame.VgameError, match="a whole number above"):
            promise(least=least)
    with pytest.raises(vgame.VgameError, match="amount = 0 wei: more than 0"):
        promise(amount=0)
    plain = replace(task(), evaluate=None)
    with pytest.raises(vgame.ProgramError, match="the task has no evaluation"):
        stage.escrow.promise(stage.job, stage.trained.bundle, plain, "correct", least=1, amount=1)


def test_an_escrow_of_another_game_is_refused(stage: Stage) -> None:
    with pytest.raises(ChainError, match="is not the AccuracyEscrow of this vgame"):
        vgame.Escrow(stage.client, stage.address)
    second = RevmGame(stage.chain, stage.chain.wallet().address, stage.client.wallet)
    with pytest.raises(ChainError, match="belongs to the game"):
        vgame.Escrow(second, stage.escrow.address)


def test_every_error_of_the_escrow_is_tested() -> None:
    names = {e["name"] for e in artifact(NAME)["abi"] if e["type"] == "error"}
    source = Path(__file__).read_text().split("def test_every_error")[0]
    source += Path(__file__).with_name("test_bonus.py").read_text()
    #: A missing precompile; a place that only the payer chose.
    unreached = {"HashFailed", "IndexOutOfRange"}
    assert {n for n in names if f'"{n}"' not in source} == unreached
