"""A bonus by accuracy: paid for a final evaluation of the trained state that reaches the mark, for nothing else.

A false number is convicted. Trainer and auditor are the real agents, the contracts the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from revm_node import RevmChain, RevmGame

import vgame
from vgame.agents.bonus import needed_window, proof_of, untrained_evaluation
from vgame.agents.client import close_job, post_job
from vgame.attacks.computation import CheatingHistory, Patch, PatchedExecutor
from vgame.chain.connection import artifact
from vgame.chain.escrow import NAME, BonusProof, entry_of
from vgame.chain.records import CAUSES, Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ChainError, ContractError
from vgame.execute.executor import Executor
from vgame.runs.history import History
from vgame.runs.logged_history import LoggedHistory
from vgame.runs.logged_store import make_executor
from vgame.runs.store import Store
from vgame.runs.training import train

AMOUNT, MARK, SAMPLES = 10**18, 20, 40


def measure(model: torch.nn.Module, batch) -> dict[str, torch.Tensor]:
    return {"correct": (model(batch["x"]).argmax(1) == batch["y"]).sum()}


def task(measure: Callable = measure, samples: int = SAMPLES) -> vgame.Task:
    torch.manual_seed(1)
    model, x, held = torch.nn.Linear(4, 4), torch.randn(32, 4), torch.randn(samples, 4)
    loss = lambda m, b: torch.nn.functional.cross_entropy(m(b["x"]), b["y"])  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    evaluation = vgame.Evaluation(measure, {"x": held, "y": held.argmax(1)}, 10)
    return vgame.Task(model, loss, optimizer, {"x": x, "y": x.argmax(1)}, 8, evaluate=evaluation)


class Trained:
    """A run of the job, with its order."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        job = vgame.Job(task(), **({"steps": 12, "interval": 4, "seed": 3} | options))
        self.bundle = vgame.prepare(job)
        self.run = vgame.train(self.bundle, folder / "run")
        self.number = 0

    def history(self, run: vgame.Run) -> History:
        if run.bundle.mode == "logged":
            return LoggedHistory(run._store, make_executor(run.bundle, "cpu"), run._store)
        return History(run._store, executor(run.bundle))


def executor(b: vgame.Bundle) -> Executor:
    return Executor(b.program, b.data, b.scalars, b.seed, b.mode)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


class Stage:
    """A game, an escrow, a payer; the training is ordered, the bonus promised."""

    def __init__(self, system: tuple[RevmChain, str], trained: Trained, least: int = MARK, **options: Any) -> None:
        self.chain, self.address = system
        self.trained = trained
        self.client = self.game()
        self.escrow = vgame.Escrow.deploy(self.client)
        self.nonce = 0
        self.job = self.post(trained.bundle)
        self.terms = {"least": least, "amount": AMOUNT} | options
        self.id = self.escrow.promise(self.job, trained.bundle, task(), "correct", **self.terms)
        self.trainer: Trainer | None = None

    def game(self) -> RevmGame:
        return RevmGame(self.chain, self.address, self.chain.wallet())

    def seen_by(self, game: RevmGame) -> vgame.Escrow:
        return vgame.Escrow(game, self.escrow.address)

    def post(self, bundle: vgame.Bundle, game: RevmGame | None = None) -> bytes:
        Stage.number = getattr(Stage, "number", 0) + 1
        return post_job(game or self.client, bundle, Stage.number)

    def claimed(self, job: bytes, history: Any) -> Trainer:
        trainer = Trainer(self.game(), job, history)
        trainer.accept()
        trainer.claim()
        return trainer

    def finish(self, job: bytes) -> None:
        """Past the challenge window."""
        self.chain.advance(self.client.job(job).spec.challenge_window + 1)
        self.client.send("finalize", job)

    def train(self) -> Trainer:
        self.trainer = self.claimed(self.job, self.trained.history(self.trained.run))
        self.finish(self.job)
        return self.trainer

    def evaluation(self, name: str = "evaluation", **options: Any) -> tuple[bytes, vgame.Run]:
        """The evaluation that the bonus asks for, ordered, computed and final."""
        bundle = self.escrow.evaluation(self.id, self.trained.run, task())
        run = vgame.train(bundle, self.trained.folder / name)
        job = self.post(replace(bundle, **options))
        self.claimed(job, History(run._store, executor(bundle)))
        self.finish(job)
        return job, run

    def proof(self, job: bytes, run: vgame.Run) -> BonusProof:
        return proof_of(self.escrow.promised(self.id), job, self.trained.run, run)

    def pay(self, proof: BonusProof) -> Any:
        return self.escrow.send("pay", self.id, astuple(proof))

    def refused(self, name: str, *args: Any, value: int = 0, escrow: vgame.Escrow | None = None) -> str:
        with pytest.raises(ContractError) as error:
            (escrow or self.escrow).send(name, *args, value=value)
        return error.value.name


@pytest.fixture
def stage(system, trained: Trained) -> Stage:
    return Stage(system, trained)


def test_a_state_that_counts_enough_is_paid(stage: Stage) -> None:
    stage.escrow.check(stage.id, stage.trained.bundle, task())
    trainer = stage.train()
    assert stage.escrow.close(stage.id) == "started"
    job, run = stage.evaluation()
    total = vgame.evaluated(run).totals["correct"]
    assert MARK < total <= SAMPLES and stage.escrow.credits(trainer.address) == 0
    stranger = stage.seen_by(stage.game())
    assert stranger.pay(stage.id, job, stage.trained.run, run) == AMOUNT
    assert stage.escrow.credits(trainer.address) == AMOUNT == stage.chain.balance(stage.escrow.address)
    (paid,) = [e.args for e in stage.escrow.events(stage.id) if e.name == "Paid"]
    assert (paid["trainer"], paid["total"], paid["evaluation"]) == (trainer.address, total, job)
    before = stage.chain.balance(trainer.address)
    assert stage.seen_by(trainer.game).close(stage.id) == "paid"
    assert stage.chain.balance(trainer.address) - before == AMOUNT and stage.chain.balance(stage.escrow.address) == 0
    assert stage.refused("pay", stage.id, astuple(stage.proof(job, run))) == "NoBonus"
    assert stage.refused("giveBack", stage.id) == "NoBonus"


def test_a_false_number_is_convicted_and_the_payer_has_the_money_back(system, trained: Trained, tmp_path: Path) -> None:
    """The trainer claims one sample more in the last batch, consistently."""
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


def test_a_missed_mark_is_paid_back_after_the_window(system, trained: Trained) -> None:
    stage = Stage(system, trained, least=SAMPLES + 1)
    stage.train()
    stage.escrow.send("start", stage.id)
    job, run = stage.evaluation("missed")
    with pytest.raises(ContractError, match="MarkMissed"):
        stage.escrow.pay(stage.id, job, trained.run, run)
    until = stage.escrow.bonus(stage.id).since + stage.escrow.bonus(stage.id).window
    stage.chain.advance(until - stage.chain.now() - 1)
    assert stage.refused("giveBack", stage.id) == "NotOver"  # in the last second
    stage.chain.advance(1)
    assert stage.escrow.close(stage.id) == "returned" and stage.escrow.bonus(stage.id) is None


def test_the_mark_itself_is_enough(system, trained: Trained) -> None:
    stage = Stage(system, trained)
    stage.train()
    _, run = stage.evaluation("exact")
    total = vgame.evaluated(run).totals["correct"]
    exact = stage.escrow.promise(stage.post(trained.bundle), trained.bundle, task(), "correct", least=total, amount=1)
    assert stage.escrow.promised(exact).terms.least == total
    same = Stage(system, trained, least=total)
    same.train()
    assert same.escrow.pay(same.id, *_evaluated(same, run)) == AMOUNT


def _evaluated(stage: Stage, run: vgame.Run) -> tuple[bytes, vgame.Run, vgame.Run]:
    job = stage.post(run.bundle)
    stage.claimed(job, History(run._store, executor(run.bundle)))
    stage.finish(job)
    return job, stage.trained.run, run


# ---- a training that ends otherwise ----


def test_a_training_that_nobody_took_pays_back_at_once(stage: Stage) -> None:
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
    claim = (stage.job, trainer.run_tree().root, final, path, bytes(32), bytes(32))
    trainer.game.send("postClaimAndOffer", *claim)
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
    job, run = stage.evaluation()
    proof = stage.proof(job, run)
    assert stage.refused("pay", stage.id, astuple(replace(proof, trained_path=[]))) == "PathLength"
    stage.pay(proof)
    assert stage.escrow.credits(trainer.address) == AMOUNT


# ---- proofs ----


@pytest.fixture(scope="module")
def shown(system, trained: Trained) -> tuple[Stage, BonusProof]:
    """A bonus that could be paid."""
    stage = Stage(system, trained)
    stage.train()
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
    """Fewer bonds, another seed: whatever differs from what was promised."""
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
def test_a_total_that_may_have_begun_again_pays_nothing(system, tmp_path: Path, each: int, name: str) -> None:
    """40 samples of 2^26 are more than 2^31: the sum in 32 bits is a small number again, and no mark."""

    def count(model: torch.nn.Module, batch) -> dict[str, torch.Tensor]:
        ones = torch.full_like(batch["y"], each).to(torch.int32)
        return {"correct": (ones + 0 * model(batch["x"]).argmax(1)).sum()}

    trained = Trained(tmp_path)
    stage = Stage(system, trained)
    counted = task(count)
    job = stage.post(trained.bundle)
    mark = 2**31 - 1 if name == "MarkMissed" else -(2**31)
    stage.id, stage.job = stage.escrow.promise(job, trained.bundle, counted, "correct", least=mark, amount=AMOUNT), job
    stage.train()
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


def opened(stage: Stage, **changes: Any) -> tuple[Any, ...]:
    """Arguments of `open`, changed."""
    found = stage.escrow.promised(stage.id)
    terms, spec = found.terms, found.evaluation
    spec = replace(spec, **changes.pop("spec", {}))
    return astuple(replace(terms, **changes.pop("terms", {}))), astuple(spec), changes.pop("layout", found.layout), 7


def test_what_nobody_could_keep_is_not_promised(stage: Stage) -> None:
    def refused(value: int = AMOUNT, **changes: Any) -> str:
        return stage.refused("open", *opened(stage, **changes), value=value)

    assert refused(0) == "NoMoney" and refused(spec={"initial_root": b"\x01" * 32}) == "InitialRootGiven"
    assert refused(spec={"trainer_bond": 2 * AMOUNT - 1}) == "BondTooSmall"
    states = stage.client.job(stage.job).states
    assert refused(layout=[entry_of(states)]) == "NoSuchTensor"
    stage.escrow.send("open", *opened(stage, layout=[entry_of(states - 1)]), value=AMOUNT)
    stage.escrow.send("open", *opened(stage), value=AMOUNT)
    assert refused() == "BonusExists"
    stage.train()
    assert refused() == "NotAhead" and refused(terms={"training": b"\x07" * 32}) == "NotAhead"


def test_a_second_start_and_an_empty_withdrawal(stage: Stage) -> None:
    stage.train()
    stage.escrow.send("start", stage.id)
    assert stage.refused("start", stage.id) == "AlreadyStarted"
    assert stage.refused("withdraw", stage.client.wallet.address) == "NothingOwed"
    with pytest.raises(ChainError, match="there is no bonus 0707"):
        stage.escrow.close(b"\x07" * 32)


def test_a_trainer_sees_what_is_not_its_task(system, trained: Trained) -> None:
    stage = Stage(system, trained)
    escrow, bundle = stage.escrow, trained.bundle
    other = task()
    other.evaluate.data["y"][0] = (other.evaluate.data["y"][0] + 1) % 4
    with pytest.raises(Abstain, match="not for what the task measures: data_root differ"):
        escrow.check(stage.id, bundle, other)
    with pytest.raises(Abstain, match="data_root"):
        escrow.evaluation(stage.id, trained.run, other)
    needed = needed_window(untrained_evaluation(task(), "correct", bundle, AMOUNT), AMOUNT)
    short = escrow.promise(stage.job, bundle, task(), "correct", least=1, amount=AMOUNT, window=needed - 1)
    with pytest.raises(Abstain, match=f"its window of {needed - 1} s is too short, for {needed} s"):
        escrow.check(short, bundle, task())
    found = escrow.promised(stage.id)
    for changes, word in (
        ({"terms": {"total": found.terms.size}}, "total"),
        ({"layout": [*found.layout[:-1], bytes(31) + b"\x01"]}, "layout"),
        ({"spec": {"steps": found.evaluation.steps - 1}}, "steps"),
    ):
        receipt = escrow.send("open", *opened(stage, **changes), value=AMOUNT)
        identity = escrow._decode(receipt["logs"][0]).args["id"]
        with pytest.raises(Abstain, match=f"{word} differ"):
            escrow.check(identity, bundle, task())


@pytest.mark.parametrize("terms", [{"fee": 2**96 - 1}, {"auditor_bond": 10**26}, {"challenge_window": 1}])
def test_an_evaluation_that_nobody_could_dispute_is_refused(system, tmp_path: Path, terms: dict[str, int]) -> None:
    """The payer's own trainer would make it final, as often as the evaluation is ordered, and the bonus would go
    back."""
    stage = Stage(system, Trained(tmp_path, terms=vgame.Terms(**terms)))
    with pytest.raises(Abstain, match=f"nobody could dispute a false evaluation: `{next(iter(terms))}`"):
        stage.escrow.check(stage.id, stage.trained.bundle, task())


def test_other_terms_than_the_trainings_are_refused(stage: Stage) -> None:
    receipt = stage.escrow.send("open", *opened(stage, spec={"fee": 2**96 - 1}), value=AMOUNT)
    with pytest.raises(Abstain, match="fee differ"):
        stage.escrow.check(stage.escrow._decode(receipt["logs"][0]).args["id"], stage.trained.bundle, task())


def test_what_cannot_be_a_mark_is_refused(stage: Stage) -> None:
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
        with pytest.raises(vgame.VgameError, match="a whole number of 32 bits is expected"):
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


def test_every_error_of_the_escrow_is_met() -> None:
    names = {e["name"] for e in artifact(NAME)["abi"] if e["type"] == "error"}
    source = Path(__file__).read_text().split("def test_every_error")[0]
    #: A precompile that is not there, a place that only the payer gave; who is paid refuses:
    #: tests/game/test_payments.py, the same code.
    unreached = {"HashFailed", "IndexOutOfRange", "FailedCall", "InsufficientBalance"}
    assert {n for n in names if f'"{n}"' not in source} == unreached
