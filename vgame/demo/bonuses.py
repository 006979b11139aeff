"""The scene of the order that pays by accuracy: two marks on one trained state, a false number, an honest one, a missed
mark.

A small job of its own. Trainer, cheat and auditor are the real players, in this process; the escrow is a separate
contract.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import torch

from vgame.agents.bonus import proof_of
from vgame.agents.client import post_job
from vgame.api import Job, Run, prepare, train
from vgame.api_bonus import Escrow
from vgame.api_evaluation import evaluated
from vgame.attacks.computation import CheatingHistory, Patch, PatchedExecutor
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.demo.result import Prize
from vgame.demo.stage import Stage
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import Terms
from vgame.runs.history import History
from vgame.runs.store import Store
from vgame.runs.training import train as run_training
from vgame.tasks.task import Evaluation, Task

AMOUNT, SAMPLES = 10**17, 40
MARKS = {"at least 50 %": SAMPLES // 2, "more than all": SAMPLES + 1}


def task() -> Task:
    torch.manual_seed(1)
    model, x, held = torch.nn.Linear(4, 4), torch.randn(32, 4), torch.randn(SAMPLES, 4)
    measure = lambda m, b: {"correct": (m(b["x"]).argmax(1) == b["y"]).sum()}  # noqa: E731
    loss = lambda m, b: torch.nn.functional.cross_entropy(m(b["x"]), b["y"])  # noqa: E731
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    evaluation = Evaluation(measure, {"x": held, "y": held.argmax(1)}, 10)
    return Task(model, loss, optimizer, {"x": x, "y": x.argmax(1)}, 8, evaluate=evaluation)


class Bonuses:
    """Plays the scene on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.folder = stage, stage.folder / "bonus"
        self.escrow = Escrow.deploy(stage.game)

    def play(self) -> None:
        stage = self.stage
        stage.screen.scene("An order that pays by accuracy: a false number, then the true one")
        terms = Terms(reward=AMOUNT, trainer_bond=2 * AMOUNT, diverged_pay=0)
        bundle = prepare(Job(task(), steps=12, interval=4, seed=3, terms=terms))
        training, run = self._post("a training with a bonus", bundle), train(bundle, self.folder / "run")
        promised = {
            title: self.escrow.promise(training, bundle, task(), "correct", least=least, amount=AMOUNT)
            for title, least in MARKS.items()
        }
        self._answer(training, self._history(run), "trainer")
        self._finish(training)
        for identity in promised.values():
            self.escrow.close(identity)
        measured = self.escrow.evaluation(promised["at least 50 %"], run, task())
        refusal = self._false_number(promised["more than all"], measured, run)
        evaluation = train(measured, self.folder / "evaluation")
        job = self._post("the evaluation", measured)
        self._answer(job, self._history(evaluation), "trainer")
        self._finish(job)
        self.escrow.pay(promised["at least 50 %"], job, run, evaluation)
        total = evaluated(evaluation).totals["correct"]
        stage.travel(self.escrow.bonus(promised["more than all"]).window + 1)
        for title, identity in promised.items():
            outcome = self.escrow.close(identity)
            self._tell(Prize(title, MARKS[title], int(total), outcome, refusal if outcome == "returned" else ""))

    def _tell(self, prize: Prize) -> None:
        stage = self.stage
        stage.result.prizes.append(prize)
        false = f"; a false number was convicted, the escrow refused it ({prize.refused})" if prize.refused else ""
        stage.screen.say(
            f"bonus for {prize.title} ({prize.least} of {SAMPLES}): {prize.total} are right, {prize.outcome}{false}"
        )

    def _post(self, title: str, bundle: Bundle) -> bytes:
        stage = self.stage
        stage.nonce += 1
        job = post_job(stage.game, bundle, stage.nonce)
        stage.page.titles[job.hex()] = title
        stage.page.programs.add(bundle)
        return job

    def _game(self, who: str) -> Game:
        return Game(self.stage.chain, self.stage.game.address, self.stage.wallets[who])

    def _answer(self, job: bytes, history: History, who: str) -> Trainer:
        trainer = Trainer(self._game(who), job, history)
        trainer.accept()
        trainer.claim()
        return trainer

    def _finish(self, job: bytes) -> None:
        self.stage.travel(self.stage.game.job(job).spec.challenge_window + 1)
        self.stage.game.send("finalize", job)

    def _history(self, run: Run) -> History:
        return History(run._store, _executor(run.bundle))

    def _false_number(self, identity: bytes, bundle: Bundle, run: Run) -> str:
        """The trainer counts all samples twice and is convicted; returns the escrow's error."""
        place = self.escrow.promised(identity).terms.total
        operator = bundle.program.sources[place].ref.index

        def more(step: int, o: int, words: torch.Tensor, before: Any) -> torch.Tensor:
            return words + SAMPLES if (step, o) == (bundle.steps, operator) else words

        cheat, store = PatchedExecutor(_executor(bundle), Patch(output=more)), Store(self.folder / "cheat", bundle)
        run_training(store, cheat, lambda *_: None)
        job = self._post("a false number", bundle)
        liar = self._answer(job, CheatingHistory(store, cheat), "trainer")
        own = train(bundle, self.folder / "audit")
        auditor = Auditor(self._game("auditor of the number"), job, self._history(own))
        while self.stage.game.job(job).phase is Phase.CLAIMED:
            liar.step()
            auditor.step()
        try:
            self.escrow.send("pay", identity, _proof(self.escrow, identity, job, run, store))
        except ContractError as refusal:
            return refusal.name
        return ""


def _executor(b: Bundle) -> Executor:
    return Executor(b.program, b.data, b.scalars, b.seed, b.mode)


def _proof(escrow: Escrow, identity: bytes, job: bytes, run: Run, false: Store) -> tuple[Any, ...]:
    return astuple(proof_of(escrow.promised(identity), job, run, Run(false)))
