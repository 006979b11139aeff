"""A training, its evaluation and the escrow of a bonus, on the real contracts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from revm_chain import RevmChain, RevmGame

import vgame
from vgame.agents.bonus import evaluation_bundle, layout_of, place_of, proof_of, untrained_evaluation
from vgame.agents.bonus_conditions import template_of
from vgame.agents.client import post_job
from vgame.chain.escrow import BonusProof, BonusTerms
from vgame.chain.records import JobSpec
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain, ContractError
from vgame.execute.executor import Executor
from vgame.runs.history import History
from vgame.runs.logged_history import LoggedHistory
from vgame.runs.logged_store import make_executor

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
        self.games: dict[str, RevmGame] = {}
        self.client = self.game()
        self.escrow = vgame.Escrow.deploy(self.client)
        self.nonce = 0
        self.job = self.post(trained.bundle)
        self.terms = {"least": least, "amount": AMOUNT} | options
        self.id = self.escrow.promise(self.job, trained.bundle, task(), "correct", **self.terms)
        self.trainer: Trainer | None = None

    def game(self) -> RevmGame:
        game = RevmGame(self.chain, self.address, self.chain.wallet())
        self.games[game.wallet.address] = game
        return game

    def seen_by(self, game: RevmGame) -> vgame.Escrow:
        return vgame.Escrow(game, self.escrow.address)

    def post(self, bundle: vgame.Bundle, game: RevmGame | None = None) -> bytes:
        Stage.number = getattr(Stage, "number", 0) + 1
        return post_job(game or self.client, bundle, Stage.number)

    def claimed(self, job: bytes, history: Any) -> Trainer:
        """Claimed by the account named in the order, or by a new one."""
        trainer = Trainer(self.games.get(self.client.job(job).spec.trainer) or self.game(), job, history)
        trainer.accept()
        trainer.claim()
        return trainer

    def finish(self, job: bytes) -> None:
        """Pass the challenge window."""
        self.chain.advance(self.client.job(job).spec.challenge_window + 1)
        self.client.send("finalize", job)

    def train(self) -> Trainer:
        self.trainer = self.claimed(self.job, self.trained.history(self.trained.run))
        self.finish(self.job)
        return self.trainer

    def prepared(self, validate: float = 0) -> vgame.Bundle:
        """The evaluation's bundle, also before the window has begun."""
        promised = self.escrow.promised(self.id)
        return evaluation_bundle(self.escrow, promised, self.trained.run, task(), validate, early=True)

    def evaluation(self, name: str = "evaluation", **options: Any) -> tuple[bytes, vgame.Run]:
        """The evaluation of the bonus, ordered, computed and final."""
        bundle = self.prepared()
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


def refused_by_both(stage: Stage, bundle: vgame.Bundle, made: Callable[[], vgame.Task], why: str) -> None:
    """`promise` refuses a bonus, and `check` the same one of a payer that does not use `promise`."""
    job = stage.post(bundle)
    with pytest.raises(Abstain, match=f"the bonus: .*{why}"):
        stage.escrow.promise(job, bundle, made(), "correct", least=1, amount=AMOUNT, validate=0)
    own = untrained_evaluation(made(), "correct", bundle, AMOUNT)
    terms = BonusTerms(job, 2**31, *place_of(own), 1)
    identity = stage.escrow.open(terms, template_of(JobSpec(**own.order)), layout_of(bundle, own), AMOUNT, 1)
    with pytest.raises(Abstain, match=f"bonus {identity.hex()[:16]}: .*{why}"):
        stage.escrow.check(identity, bundle, made())
