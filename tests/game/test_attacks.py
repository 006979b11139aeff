"""The twelve attacks of the demonstration, with a real training run, the real referee and the honest auditor: name ->
outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from outcomes import prize
from revm_chain import RevmChain, RevmGame
from revm_node import RevmNode
from scene import NAME, Play, Scene, watch

from vgame.attacks import computation as attacks
from vgame.attacks.adversaries import ATTACKS, CheatingTrainer, FalseAccuser
from vgame.chain.records import JobSpec, Level, Phase
from vgame.chain.wallet import deploy_game
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle, save_bundle
from vgame.job.file import JobFile
from vgame.program.schedule import Schedule
from vgame.runs.history import History
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import train

STEPS, INTERVAL, STRIKE = 6, 2, 4

#: Attack -> (cause of the verdict, its level, the tree in which the deciding dispute began).
OUTCOMES = {
    "poisoned-sample": ("element", Level.ELEMENT, Level.RUN),
    "backdoor-trigger": ("element", Level.ELEMENT, Level.RUN),
    "wrong-order": ("element", Level.ELEMENT, Level.RUN),
    "wrong-learning-rate": ("element", Level.ELEMENT, Level.RUN),
    "skipped-steps": ("element", Level.ELEMENT, Level.RUN),
    "flipped-bit": ("element", Level.ELEMENT, Level.RUN),
    "wrong-activation": ("element", Level.ELEMENT, Level.RUN),
    "inconsistent-trace": ("opening", Level.STATE, Level.RUN),
    "other-initial-state": ("element", Level.ELEMENT, Level.RUN),
    "silent-before-leaf": ("timeout", Level.TENSOR, Level.RUN),
    "silent-after-leaf": ("element", Level.ELEMENT, Level.RUN),
    "false-divergence": ("element", Level.ELEMENT, Level.TRACE),
}


class Job:
    """An order, the honest run of it, and a chain with the real referee."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_bundle(prepare(JobFile(
            model="vgame.tasks.digits:task", seed=7, steps=STEPS, interval=INTERVAL,
            schedule=Schedule(kind="cosine", lr="0.08", warmup=2),
        )), folder / "bundle")  # fmt: skip
        self.bundle: Bundle = load_bundle(folder / "bundle")
        self.spec = JobSpec(**self.bundle.order)
        self.executor = self.device()
        self.store = Store(folder / "honest", self.bundle)
        self.honest = History(train(self.store, self.executor), self.executor)

    def device(self) -> Executor:
        b = self.bundle
        return Executor(b.program, b.data, b.scalars, b.seed, b.mode)

    def cheat(self, name: str) -> History:
        """The run of a cheat: it equals the honest run up to its first lie."""
        patch = getattr(attacks, ATTACKS[name].patch)(self.bundle, STRIKE)
        store = self.store.fork(self.folder / name, (patch.first - 1) // INTERVAL)
        stepper = attacks.PatchedExecutor(self.device(), patch)
        return attacks.CheatingHistory(train(store, stepper), stepper)

    def play(self, scene: Scene) -> Play:
        """Order it."""
        scene.nonce += 1
        game = scene.game()
        game.send(
            "createJob",
            dataclasses.astuple(self.spec),
            scene.nonce,
            NAME,
            self.bundle.program.header,
            value=self.spec.reward,
        )
        setup = SimpleNamespace(spec=self.spec)
        return Play(scene, setup, game.job_id(self.spec, game.wallet.address, scene.nonce), game)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Job(tmp_path_factory.mktemp("attacks"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def machine_scene() -> Scene:
    """The whole system as it is deployed, watched by a ghost."""
    chain = RevmChain(RevmNode())
    scene = Scene(chain, deploy_game(chain.wallet()), chain.wallet, RevmGame)
    scene.ghost = watch(scene)
    return scene


def test_the_table_names_every_attack() -> None:
    assert list(OUTCOMES) == list(ATTACKS)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_convicted(machine_scene: Scene, job: Job, name: str) -> None:
    attack, play = ATTACKS[name], job.play(machine_scene)
    play.trainer = CheatingTrainer(machine_scene.game(), play.id, job.cheat(name), attack.silent)
    play.trainer.accept()
    play.trainer.claim()
    auditor = Auditor(machine_scene.game(), play.id, job.honest)
    assert play.run_to_end(play.trainer, auditor) is Phase.CONVICTED
    (verdict, number, cause), v = play.verdicts[-1], play.client.verdict(play.id)
    assert (verdict, cause, v.level, play.dispute(number).entry) == ("Convicted", *OUTCOMES[name])
    assert v.step == (1 if name == "other-initial-state" else STRIKE)
    assert play.dispute(number).auditor == auditor.address
    assert play.paid(auditor) == job.spec.stake + prize(job.spec, cause)


@pytest.mark.parametrize("step", [0, 1, STRIKE, STEPS])
def test_a_false_accuser_loses(machine_scene: Scene, job: Job, step: int) -> None:
    """Along an arbitrary path, and idle (step 0)."""
    play = job.play(machine_scene)
    play.trainer = Trainer(machine_scene.game(), play.id, job.honest)
    play.trainer.accept()
    play.trainer.claim()
    accuser = FalseAccuser(machine_scene.game(), play.id, job.honest, idle=not step, step_wanted=step)
    assert play.run_to_end(play.trainer, accuser) is Phase.FINAL
    assert [name for name, _, _ in play.verdicts] == ["Dismissed"]
    assert play.paid(play.trainer) == job.spec.trainer_bond + job.spec.reward + job.spec.auditor_bond // 2
