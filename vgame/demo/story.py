"""The story, scene by scene: an honest claim becomes final, every cheat is convicted by the contract, false accusers
pay.

This process only orders, moves the clock of the development chain, watches and reports. Trainer, auditor and cheats
are processes of their own, on two devices; everything that is reported about the game is read from the chain.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG
from vgame.chain.connection import connect
from vgame.chain.game import Game
from vgame.chain.records import Event, Status
from vgame.chain.wallet import Wallet, deploy_game
from vgame.demo.bonuses import Bonuses
from vgame.demo.cheats import LOGGED, Cheats
from vgame.demo.comparison import Comparison
from vgame.demo.deliveries import Deliveries
from vgame.demo.dossier import investigate, paid_in
from vgame.demo.nursery import Nursery
from vgame.demo.page import StoryPage
from vgame.demo.processes import EmbeddedChain, Role, Start, spawn
from vgame.demo.result import DEVICE_A, DEVICE_B, Result
from vgame.demo.screen import Screen
from vgame.errors import ContractError, VgameError

DIGITS = Path(str(files("vgame.tasks") / "digits.toml"))
T = TypeVar("T")

ETHER = 10**18
FUNDS = {
    "client": 200,
    "trainer": 20,
    "auditor": 20,
    "cheat": 100,
    "other cheat": 100,
    "accuser": 20,
    "cheat with a log": 20,
    "auditor of the log": 20,
    "auditor of the number": 20,
}
CHEATS = ("cheat", "other cheat")  # that play at the same time
QUICK = ("flipped-bit",), 60  # attacks and steps of the short version
WITHOUT_TIME_TRAVEL = {
    "challenge_window": 60, "reward_window": 20, "trainer_budget": 40, "auditor_budget": 40, "slot": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Wishes:
    """What is to be played, and where."""

    attack: str | None = None  # this one only
    quick: bool = False  # a short honest run and one cheat
    rpc: str | None = None
    job_file: Path | None = None

    @property
    def attacks(self) -> list[str]:
        known = [*ATTACKS, TAMPERED_LOG.name]
        return [self.attack] if self.attack else list(QUICK[0]) if self.quick else known


def run_demo(json_output: bool, wishes: Wishes, report: Path) -> int:
    """Play it; 0 if everything ended as it must, else 2."""
    from vgame.demo.report import write_report

    _check(wishes)
    if not os.access(report.parent, os.W_OK):
        raise VgameError(
            f"the report cannot be written to {report}: no such folder, or no permission; choose another --report"
        )
    screen = Screen(quiet=json_output)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgame-demo-")))
        story = Story(folder, screen, stack, wishes)
        result = story.play()
        write_report(result, story.page.state(), report)
    screen.table(result)
    if json_output:
        print(json.dumps(result.as_json()))
    else:
        screen.say(f"report: {report}")
    return 0 if as_expected(result) else 2


def _check(wishes: Wishes) -> None:
    """What is wrong is said at once."""
    from vgame.job.file import read_job_file

    known = [*ATTACKS, TAMPERED_LOG.name]
    if wishes.attack is not None and wishes.attack not in known:
        raise VgameError(f"there is no attack {wishes.attack!r}; known are {', '.join(known)}")
    if wishes.attack is not None and wishes.quick:
        raise VgameError("--quick plays one cheat of its own; leave out --attack, or --quick")
    if wishes.job_file is not None:
        read_job_file(wishes.job_file)


def as_expected(result: Result) -> bool:
    """Honest final, cheats convicted, accusations dismissed, money conserved."""
    honest = not result.honest or result.honest["verdict"] == "final"
    convicted = all(a.verdict == "convicted" for a in result.attacks)
    dismissed = all(a.verdict == "dismissed" for a in result.accusations)
    exchanged = all(s.right for s in (*result.exchanges, *result.prizes))
    return honest and convicted and dismissed and exchanged and result.conserved


class Story:
    """The stage: chain, accounts, bundle, processes."""

    def __init__(self, folder: Path, screen: Screen, stack: ExitStack, wishes: Wishes) -> None:
        self.folder, self.screen, self.stack, self.wishes = folder, screen, stack, wishes
        self.begin = time.monotonic()
        self.result = Result()
        chain = None if wishes.rpc else self._embedded()
        self.start_role = self._nursery()
        self.url = chain.url() if chain else wishes.rpc
        self.chain = connect(self.url)
        self.can_travel = self.chain.advance(1)
        self.extra = () if self.can_travel else ("--any-terms",)  # nobody wants to wait for clocks that are safe
        self.wallets = {name: Wallet(self.chain) for name in FUNDS}
        self.names = {wallet.address: name for name, wallet in self.wallets.items()}
        self._fund()
        self.game = self._deploy()
        self.page = StoryPage(self.url, self.game.address, self.names)
        self.stack.callback(self.page.stop)
        self.screen.say(f"watch it: {self.page.url}")
        self.job_file = wishes.job_file or DIGITS
        self.bundle = self._prepare(self.job_file)
        self.page.programs.add(self.bundle)
        self.nonce = 0

    def _embedded(self) -> EmbeddedChain:
        chain = EmbeddedChain(self.folder / "logs" / "chain.log")
        self.stack.callback(chain.stop)
        return chain

    def _nursery(self) -> Start:
        """How roles are started: at once, where the system can."""
        if not hasattr(os, "pidfd_open"):
            return spawn
        nursery = Nursery()
        self.stack.callback(nursery.stop)
        return nursery.start

    def _fund(self) -> None:
        """From the node's unlocked account, or from the key in VGAME_KEY."""
        scale = ETHER if self.can_travel else ETHER // 100
        if key := os.environ.get("VGAME_KEY"):
            bank = Wallet(self.chain, key)
            for name, ether in FUNDS.items():
                bank.send(self.wallets[name].address, b"", ether * scale)
            return
        for name, ether in FUNDS.items():
            self.chain.fund(self.wallets[name].address, ether * scale)

    def _deploy(self) -> Game:
        address = deploy_game(self.wallets["client"])
        self.screen.say(f"chain {self.chain.chain_id} at {self.url}, game at {address}")
        return Game(self.chain, address, self.wallets["client"])

    def _prepare(self, job_file: Path):
        from vgame.job.bundle import save_bundle
        from vgame.job.file import read_job_file
        from vgame.runs.prepare import prepare

        job = self._with_clocks(read_job_file(job_file))
        if self.wishes.quick:
            job = job.model_copy(update={"steps": min(job.steps, QUICK[1])})
        bundle = prepare(job)
        save_bundle(bundle, self.folder / "bundle")
        self.result.job = bundle.rendering() | {"operators": len(bundle.program.operators), "model": job.model}
        self.screen.say(
            f"program captured: {len(bundle.program.operators)} operators, {len(bundle.program.sources)} state "
            f"tensors, root {bundle.program.root.hex()[:16]}"
        )
        return bundle

    def prepare_logged(self):
        """A small job in mode `logged`."""
        from vgame.job.bundle import save_bundle
        from vgame.job.file import LogTerms, read_job_file
        from vgame.runs.prepare import prepare

        job = self._with_clocks(read_job_file(DIGITS))
        small = {"steps": 4, "interval": 2, "mode": "logged", "log": LogTerms(thresholds="proven")}
        bundle = prepare(job.model_copy(update=small | {"args": job.args | {"batch": 16}}))
        save_bundle(bundle, self.folder / LOGGED)
        self.page.programs.add(bundle)
        return bundle

    def _with_clocks(self, job):
        """The job, with short clocks where time cannot be moved."""
        if self.can_travel:
            return job
        return job.model_copy(update={"terms": job.terms.model_copy(update=WITHOUT_TIME_TRAVEL)})

    # ---- helpers ----

    def role(
        self, name: str, command: str, store: str, wallet: str | None, device: str, *extra: str, bundle: str = "bundle"
    ) -> Role:
        """Start a role of the game on a device."""
        arguments = [
            command, "--rpc", self.url, "--game", self.game.address, "--bundle", str(self.folder / bundle),
            "--store", str(self.folder / store), "--device", device, *extra,
        ]  # fmt: skip
        key = self.wallets[wallet].key if wallet else None
        return self.start(name, arguments, key)

    def start(self, name: str, arguments: list[str], key: bytes | None = None) -> Role:
        """A process that ends with the story; what it says is shown on the screen and on the page."""

        def hear(event: dict[str, Any]) -> None:
            self.screen.event(event)
            self.page.hear(event)

        log = self.folder / "logs" / f"{name.replace(' ', '-')}.log"
        role = Role(name, arguments, log, key, hear, self.start_role)
        self.stack.callback(role.stop)
        return role

    def post(self, title: str, bundle=None) -> bytes:
        """The client orders the job once more, or another one."""
        from vgame.agents.client import post_job

        self.nonce += 1
        job = post_job(self.game, bundle or self.bundle, self.nonce)
        self.page.titles[job.hex()] = title
        return job

    def travel(self, seconds: int) -> None:
        """Let time pass."""
        if seconds <= 0:
            return
        if self.can_travel:
            self.chain.advance(seconds)
        else:
            time.sleep(seconds)

    def until(self, condition: Callable[[], bool], what: str, timeout: float = 300) -> None:
        """Poll the chain."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise VgameError(
                    f"{what} did not happen within {timeout:.0f} seconds; logs are in {self.folder / 'logs'}"
                )
            time.sleep(0.1)

    # ---- scenes ----

    def play(self) -> Result:
        """All scenes, or those that are wished for."""
        attacks = self.wishes.attacks
        if attacks != [TAMPERED_LOG.name]:
            self.main_job(attacks)
        else:
            Cheats(self).attacks([TAMPERED_LOG.name], {}, None)
        self._settle_accounts()
        self.result.seconds = time.monotonic() - self.begin
        return self.result

    def main_job(self, attacks: list[str]) -> None:
        """The scenes over the main job. Processes are started before they are needed, where a core would be idle."""
        auditor = self.role("auditor", "auditor", "auditor", "auditor", DEVICE_B)
        cheats: dict[str, Role] = {}
        if self.wishes.attack:
            cheats |= self._cheats(1)
            auditor.wait("computed")
            Cheats(self).attacks(attacks, cheats, None)
            return
        job, trainer = self.honest()
        if self.wishes.quick:
            cheats |= self._cheats(1)
            self.audited(auditor, trainer, job)
            self.settle(trainer, job)
            Cheats(self).attacks(attacks, cheats, None)
            return
        accuser = self.role("accuser", "adversary", "accuser", "accuser", DEVICE_A)
        cheats |= self._cheats(2)
        self.accuse(accuser, job)
        self.audited(auditor, trainer, job)
        self.settle(trainer, job)
        Cheats(self).attacks(attacks, cheats, Comparison(self, (DEVICE_A, DEVICE_B)))
        if self.can_travel:
            Deliveries(self).play()
            Bonuses(self).play()

    def _cheats(self, count: int) -> dict[str, Role]:
        return {name: self.role(name, "adversary", name, name, DEVICE_A) for name in CHEATS[:count]}

    def honest(self) -> tuple[bytes, Role]:
        """An honest claim."""
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
        """The other device comes to the same."""
        audited = auditor.wait("audited", job=job.hex())
        marks = [next(e for e in r.seen if e["event"] == "hello")["binary64 product"] for r in (trainer, auditor)]
        self.result.honest |= {"auditor_root": audited["run_root"], "devices_differ": marks[0] != marks[1]}
        self._learn()
        self.screen.say(f"roots {'equal' if audited['agrees'] else 'DIFFER'}: {audited['run_root'][:32]}...")

    def settle(self, trainer: Role, job: bytes) -> None:
        """Nobody disputes it any more: the reward."""
        spec = self.game.job(job).spec
        self.travel(self.game.job(job).since + spec.challenge_window + 1 - self.chain.now())
        trainer.wait("ended")
        self.result.honest["verdict"] = self.game.job(job).phase.name.lower()
        self.screen.say(f"the claim is {self.result.honest['verdict']}, the reward is withdrawn")

    def _learn(self) -> None:
        """Loss curve and accuracy of the trained network, from the trainer's store."""
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

    def accuse(self, accuser: Role, job: bytes) -> None:
        """A malicious auditor disputes the honest claim twice."""
        self.screen.scene("Two false accusations against the honest trainer")
        for number, how in enumerate(("path", "idle")):
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

    def run_out(self, job: bytes, number: int) -> None:
        """Let the clock of the side that is to move run out."""
        try:
            while True:  # the honest side may still be answering
                turn, deadline = self.game.turn(job, number)
                time.sleep(0.5)
                if self.game.turn(job, number) == (turn, deadline):
                    break
        except ContractError:  # decided meanwhile
            return
        self.travel(deadline + 1 - self.chain.now())

    # ---- money ----

    def _at_rest(self, read: Callable[[list[Event]], T]) -> T:
        """What `read` finds while nobody moves: an agent may be withdrawing at this very moment."""
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
