"""The story, scene by scene: an honest claim becomes final, every cheat is convicted by the contract, false accusers
pay.

This process only orders, moves the clock of the development chain, watches and reports. Trainer, auditor and cheats are
processes of their own, on two devices; all facts about the game are read from the chain.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG
from vgame.chain.records import Event, Status
from vgame.demo.bonuses import Bonuses
from vgame.demo.cheats import Cheats
from vgame.demo.comparison import Comparison
from vgame.demo.deliveries import Deliveries
from vgame.demo.dossier import investigate, paid_in
from vgame.demo.processes import Role
from vgame.demo.result import DEVICE_A, DEVICE_B, Result
from vgame.demo.screen import Screen
from vgame.demo.stage import CHEATS, DemoOptions, Stage
from vgame.errors import VgameError

T = TypeVar("T")


def run_demo(json_output: bool, options: DemoOptions, report: Path) -> int:
    """Play the story; 0 if everything ended as it must, else 2."""
    from vgame.demo.report import write_report

    _check(options)
    if not os.access(report.parent, os.W_OK):
        raise VgameError(
            f"the report cannot be written to {report}: no such folder, or no permission; choose another --report"
        )
    screen = Screen(quiet=json_output)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgame-demo-")))
        story = Story(folder, screen, stack, options)
        result = story.play()
        write_report(result, story.page.state(), report)
    screen.table(result)
    if json_output:
        print(json.dumps(result.as_json()))
    else:
        screen.say(f"report: {report}")
    return 0 if as_expected(result) else 2


def _check(options: DemoOptions) -> None:
    """VgameError for invalid options."""
    from vgame.job.file import read_job_file

    known = [*ATTACKS, TAMPERED_LOG.name]
    if options.attack is not None and options.attack not in known:
        raise VgameError(f"there is no attack {options.attack!r}; known are {', '.join(known)}")
    if options.attack is not None and options.quick:
        raise VgameError("--quick plays one cheat of its own; leave out --attack, or --quick")
    if options.job_file is not None:
        read_job_file(options.job_file)


def as_expected(result: Result) -> bool:
    """Honest final, cheats convicted, accusations dismissed, money conserved."""
    honest = not result.honest or result.honest["verdict"] == "final"
    convicted = all(a.verdict == "convicted" for a in result.attacks)
    dismissed = all(a.verdict == "dismissed" for a in result.accusations)
    exchanged = all(s.right for s in (*result.exchanges, *result.prizes))
    return honest and convicted and dismissed and exchanged and result.conserved


class Story(Stage):
    """The scenes."""

    def play(self) -> Result:
        """Play all scenes, or the chosen ones."""
        attacks = self.options.attacks
        if attacks != [TAMPERED_LOG.name]:
            self.main_job(attacks)
        else:
            Cheats(self).attacks([TAMPERED_LOG.name], {})
        self._settle_accounts()
        self.result.seconds = time.monotonic() - self.begin
        return self.result

    def main_job(self, attacks: list[str]) -> None:
        """The scenes over the main job. Processes are started early, while a core would be idle."""
        auditor = self.role("auditor", "auditor", "auditor", "auditor", DEVICE_B)
        if self.options.attack:
            cheats = self._cheats(1)
            auditor.wait("computed")
        else:
            job, trainer = self.honest()
            if not self.options.quick:
                self.accuse(job)
            self.audited(auditor, trainer, job)
            cheats = self._cheats(min(len(attacks), len(CHEATS)))
            self.settle(trainer, job)
        Cheats(self).attacks(attacks, cheats)
        for role in (auditor, *cheats.values()):
            role.stop()
        if not (self.options.attack or self.options.quick):
            self._epilogue()

    def _epilogue(self) -> None:
        """Scenes in this process, with the comparison of devices beside them."""
        comparison = Comparison(self, (DEVICE_A, DEVICE_B))
        if self.can_travel:
            Deliveries(self).play()
            Bonuses(self).play()
        comparison.tell()

    def _cheats(self, count: int) -> dict[str, Role]:
        return {name: self.role(name, "adversary", name, name, DEVICE_A) for name in CHEATS[:count]}

    def honest(self) -> tuple[bytes, Role]:
        """Play an honest claim; returns its job and its trainer."""
        self.screen.scene("An honest trainer on one device, an auditor on another")
        job = self.post("honest: the job as it was ordered")
        trainer = self.role("trainer", "trainer", "trainer", "trainer", DEVICE_A, "--job", job.hex(), *self.extra)
        self.page.follow(self._store_of("trainer"), self.bundle)
        claimed = trainer.wait("claimed")
        self.result.honest = {
            "verdict": "open",
            "steps": self.bundle.steps,
            "accuracy": None,
            "trainer_root": claimed["run_root"],
        }
        return job, trainer

    def audited(self, auditor: Role, trainer: Role, job: bytes) -> None:
        """Check that the other device gets the same roots."""
        audited = auditor.wait("audited", job=job.hex())
        marks = [next(e for e in r.seen if e["event"] == "hello")["binary64 product"] for r in (trainer, auditor)]
        self.result.honest |= {"auditor_root": audited["run_root"], "devices_differ": marks[0] != marks[1]}
        self._learn()
        self.screen.say(f"roots {'equal' if audited['agrees'] else 'DIFFER'}: {audited['run_root'][:32]}...")

    def settle(self, trainer: Role, job: bytes) -> None:
        """End the challenge window, after which the reward is paid."""
        spec = self.game.job(job).spec
        self.travel(self.game.job(job).since + spec.challenge_window + 1 - self.chain.now())
        trainer.wait("ended")
        self.result.honest["verdict"] = self.game.job(job).phase.name.lower()
        self.screen.say(f"the claim is {self.result.honest['verdict']}, the reward is withdrawn")

    def _learn(self) -> None:
        """Read loss curve and accuracy of the trained network from the trainer's store."""
        from vgame.api import Run
        from vgame.api_evaluation import evaluate
        from vgame.job.factory import make_task
        from vgame.job.file import read_job_file
        from vgame.runs.store import Store

        store = Store(self._store_of("trainer"), self.bundle)
        self.result.losses = [float(x) for x in store.losses()]
        task = make_task(read_job_file(self.job_file))
        if task.evaluate is not None and store.divergence is None:
            found = evaluate(Run(store), task, self.folder / "evaluation")
            if "correct" in found.totals:
                self.result.honest["accuracy"] = found.mean("correct")

    def _store_of(self, role: str) -> Path:
        return self.folder / role / self.bundle.identity.hex()[:16]

    def accuse(self, job: bytes) -> None:
        """Two malicious auditors dispute the honest claim, one after the other."""
        self.screen.scene("Two false accusations against the honest trainer")
        accusers = [self.role(name, "adversary", name, name, DEVICE_A) for name in ("accuser", "second accuser")]
        for number, (accuser, how) in enumerate(zip(accusers, ("path", "idle"), strict=True)):
            accuser.order(accuse=how, job=job.hex())
            accuser.wait("played", how=how)
            if how == "idle":
                self.run_out(job, number)
            self.until(
                lambda n=number: self.game.dispute(job, n).status is not Status.OPEN, f"the end of accusation {how}"
            )
            name = {"path": "accuse-any-element", "idle": "accuse-and-idle"}[how]
            dossier = investigate(self.game, job, name, self.bundle.program, self.names, number)
            self.result.accusations.append(dossier)
            self.screen.verdict(dossier)
            accuser.stop()

    # ---- money ----

    def _at_rest(self, read: Callable[[list[Event]], T]) -> T:
        """The value of `read` while no transaction is pending: an agent may be withdrawing."""
        while True:
            events = self.game.events()
            found = read(events)
            if self.game.events() == events:
                return found

    def _settle_accounts(self) -> None:
        """Money in = money out + credits + burnt, to the wei, against the contract's real balance."""

        def read(events: list[Event]) -> dict[str, int]:
            return {
                "in": sum(paid_in(self.game, events).values()),
                "out": sum(e.args["amount"] for e in events if e.name == "Withdrawn"),
                "credits": sum(self.game.credits(w.address) for w in self.wallets.values()),
                "burnt": self.game.burnt(),
                "balance": self.chain.balance(self.game.address),
            }

        self.result.money = money = self._at_rest(read)
        kept = money["credits"] + money["burnt"]
        self.result.conserved = money["in"] == money["out"] + kept and money["balance"] == kept
