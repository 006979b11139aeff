"""The story, scene by scene: an honest claim becomes final, every cheat is convicted by the contract, false accusers pay.

This process only orders, moves the clock of the development chain, watches and reports. Trainer, auditor and cheats
are processes of their own, on two devices; everything that is reported about the game is read from the chain.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG
from vgame.chain.connection import Wallet, connect, deploy_game
from vgame.chain.game import Event, Game, Level, Phase, Status, Turn
from vgame.demo.dossier import holdings, investigate, paid_in
from vgame.demo.processes import Role, start_embedded_chain
from vgame.demo.result import DEVICE_A, DEVICE_B, Result
from vgame.demo.screen import Screen
from vgame.errors import ContractError, VgameError

DIGITS = Path(str(files("vgame.tasks") / "digits.toml"))
LOGGED = "bundle-logged"  # of the job in mode `logged`
T = TypeVar("T")

ETHER = 10**18
FUNDS = {"client": 200, "trainer": 20, "auditor": 20, "cheat": 100, "accuser": 20}
WITHOUT_TIME_TRAVEL = {
    "challenge_window": 60, "reward_window": 20, "trainer_budget": 40, "auditor_budget": 40, "slot": 1,
}  # fmt: skip


def run_demo(json_output: bool, attack: str | None, rpc: str | None, report: Path, job_file: Path | None) -> int:
    """Play it; 0 if everything ended as it must, else 2."""
    from vgame.demo.report import write_report
    from vgame.job.bundle import read_job_file

    known = [*ATTACKS, TAMPERED_LOG.name]
    if attack is not None and attack not in known:
        raise VgameError(f"there is no attack {attack!r}; known are {', '.join(known)}")
    if job_file is not None:
        read_job_file(job_file)  # a wrong one is said at once
    if not os.access(report.parent, os.W_OK):
        raise VgameError(
            f"the report cannot be written to {report}: no such folder, or no permission; choose another --report"
        )
    screen = Screen(quiet=json_output)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgame-demo-")))
        story = Story(folder, screen, stack, rpc, job_file)
        result = story.play(known if attack is None else [attack], only=attack is not None)
    screen.table(result)
    write_report(result, report)
    if json_output:
        print(json.dumps(result.as_json()))
    else:
        screen.say(f"report: {report}")
    return 0 if as_expected(result) else 2


def as_expected(result: Result) -> bool:
    """Honest final, cheats convicted, accusations dismissed, money conserved."""
    honest = not result.honest or result.honest["verdict"] == "final"
    convicted = all(a.verdict == "convicted" for a in result.attacks)
    dismissed = all(a.verdict == "dismissed" for a in result.accusations)
    return honest and convicted and dismissed and result.conserved


class Story:
    """The stage: chain, accounts, bundle, processes."""

    def __init__(self, folder: Path, screen: Screen, stack: ExitStack, rpc: str | None, job_file: Path | None) -> None:
        self.folder, self.screen, self.stack = folder, screen, stack
        self.begin = time.monotonic()
        self.result = Result()
        self.url = rpc or self._embedded()
        self.chain = connect(self.url)
        self.can_travel = self.chain.advance(1)
        self.extra = () if self.can_travel else ("--any-terms",)  # nobody wants to wait for clocks that are safe
        self.wallets = {name: Wallet(self.chain) for name in FUNDS}
        self.names = {wallet.address: name for name, wallet in self.wallets.items()}
        self._fund()
        self.game = self._deploy()
        self.job_file = job_file or DIGITS
        self.bundle = self._prepare(self.job_file)
        self.nonce = 0

    def _embedded(self) -> str:
        process, url = start_embedded_chain(self.folder / "logs" / "chain.log")
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return url

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
        from vgame.job.bundle import prepare, read_job_file, save_bundle

        job = self._with_clocks(read_job_file(job_file))
        bundle = prepare(job)
        save_bundle(bundle, self.folder / "bundle")
        self.result.job = bundle.rendering() | {"operators": len(bundle.program.operators), "model": job.model}
        self.screen.say(
            f"program captured: {len(bundle.program.operators)} operators, {len(bundle.program.sources)} state tensors, "
            f"root {bundle.program.root.hex()[:16]}"
        )
        return bundle

    def _prepare_logged(self):
        """A small job in mode `logged`."""
        from vgame.job.bundle import LogTerms, prepare, read_job_file, save_bundle

        job = self._with_clocks(read_job_file(DIGITS))
        small = {"steps": 4, "interval": 2, "mode": "logged", "log": LogTerms(thresholds="proven")}
        bundle = prepare(job.model_copy(update=small | {"args": job.args | {"batch": 16}}))
        save_bundle(bundle, self.folder / LOGGED)
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
        role = Role(name, arguments, self.folder / "logs" / f"{name}.log", key, self.screen.event)
        self.stack.callback(role.stop)
        return role

    def post(self, bundle=None) -> bytes:
        """The client orders the job once more, or another one."""
        from vgame.agents.roles import post_job

        self.nonce += 1
        return post_job(self.game, bundle or self.bundle, self.nonce)

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

    def play(self, attacks: list[str], only: bool) -> Result:
        """All scenes, or one attack with the auditor that it needs."""
        if attacks != [TAMPERED_LOG.name]:
            self.main_job([name for name in attacks if name != TAMPERED_LOG.name], only)
        if TAMPERED_LOG.name in attacks:
            self.tampered_log()
        self._settle_accounts()
        self.result.seconds = time.monotonic() - self.begin
        return self.result

    def main_job(self, attacks: list[str], only: bool) -> None:
        """The scenes over the main job."""
        auditor = self.role("auditor", "auditor", "auditor", "auditor", DEVICE_B)
        if not only:
            self.honest(auditor)
            self.compare()
        cheat = self.role("cheat", "adversary", "cheat", "cheat", DEVICE_A)
        if only:
            auditor.wait("computed")
        for name in attacks:
            self.attack(name, cheat)
        for role in (cheat, auditor):
            role.stop()

    def honest(self, auditor: Role) -> None:
        """Scenes 1 to 3: an honest claim, two false accusations, the reward."""
        self.screen.scene("An honest trainer on one device, an auditor on another")
        job = self.post()
        trainer = self.role("trainer", "trainer", "trainer", "trainer", DEVICE_A, "--job", job.hex(), *self.extra)
        claimed = trainer.wait("claimed")
        audited = auditor.wait("audited", job=job.hex())
        marks = [next(e for e in r.seen if e["event"] == "hello") for r in (trainer, auditor)]
        self.result.honest = {
            "verdict": "open",
            "steps": self.bundle.steps,
            "accuracy": None,
            "trainer_root": claimed["run_root"],
            "auditor_root": audited["run_root"],
            "devices_differ": marks[0]["binary64 product"] != marks[1]["binary64 product"],
            "nearest_diverged_at": None,
            "fp32_diverged_at": None,
        }
        self._learn()
        self.screen.say(f"roots {'equal' if audited['agrees'] else 'DIFFER'}: {claimed['run_root'][:32]}...")
        self.accuse(job)
        spec = self.game.job(job).spec
        self.travel(self.game.job(job).since + spec.challenge_window + 1 - self.chain.now())
        trainer.wait("ended")
        self.result.honest["verdict"] = self.game.job(job).phase.name.lower()
        self.screen.say(f"the claim is {self.result.honest['verdict']}, the reward is withdrawn")

    def _learn(self) -> None:
        """Loss curve and accuracy of the trained network, from the trainer's store."""
        from vgame.api import Run
        from vgame.api_evaluation import evaluate
        from vgame.job.bundle import make_task, read_job_file
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
        """A malicious auditor disputes the honest claim twice."""
        self.screen.scene("Two false accusations against the honest trainer")
        accuser = self.role("accuser", "adversary", "accuser", "accuser", DEVICE_A)
        for number, how in enumerate(("path", "idle")):
            before = self._nets()
            accuser.order(accuse=how, job=job.hex())
            accuser.wait("played", how=how)
            if how == "idle":
                self._run_out(job, number)
            self.until(
                lambda n=number: self.game.dispute(job, n).status is not Status.OPEN, f"the end of accusation {how}"
            )
            name = {"path": "accuse-any-element", "idle": "accuse-and-idle"}[how]
            dossier = investigate(self.game, job, name, self.bundle.program, self.names, number)
            after = self._nets()
            dossier.money = {k: after[k] - before[k] for k in after}
            self.result.accusations.append(dossier)
            self.screen.verdict(dossier)
        accuser.stop()

    def _run_out(self, job: bytes, number: int) -> None:
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

    def compare(self) -> None:
        """The same two devices without correct rounding: where do they part?"""
        self.screen.scene("The same two devices in `nearest` mode and in plain FP32")
        for mode in ("nearest", "fp32"):
            runs = []
            for device in (DEVICE_A, DEVICE_B):
                arguments = ["roots", str(self.folder / "bundle"), "--mode", mode, "--device", device]
                name = f"{mode} on {device}"
                role = Role(name, arguments, self.folder / "logs" / f"{name}.log", None, self.screen.event)
                self.stack.callback(role.stop)
                runs.append(role)
            roots = [role.wait("roots")["roots"] for role in runs]
            parted = next((i for i, (a, b) in enumerate(zip(*roots, strict=True), 1) if a != b), None)
            self.result.honest[f"{mode}_diverged_at"] = parted
            self.screen.say(
                f"{mode}: {'the same bits to the end' if parted is None else f'the states part at step {parted}'}"
            )

    def attack(self, name: str, cheat: Role) -> None:
        """One cheat: an order, a claim, a dispute, a verdict, the money."""
        attack = ATTACKS[name]
        self.screen.scene(f"{name}: {attack.title}")
        before = self._nets()
        job = self.post()
        honest = self.folder / ("trainer" if (self.folder / "trainer").exists() else "auditor")
        mine = self.folder / "cheat" / self.bundle.identity.hex()[:16]
        if not mine.exists():  # a cheat trains honestly up to the step at which it cheats; that part is the honest run
            shutil.copytree(honest / mine.name, mine)
        cheat.order(attack=name, job=job.hex(), step=self._step_of(name))
        self._watch(job, cheat, name)
        dossier = investigate(self.game, job, name, self.bundle.program, self.names)
        self._collect(job)
        after = self._nets()
        dossier.money = {k: after[k] - before[k] for k in after}
        self.result.attacks.append(dossier)
        self.screen.verdict(dossier)

    def tampered_log(self) -> None:
        """A small job in mode `logged`: the auditor follows the cheat's own log, which permits no such values."""
        name, folder = TAMPERED_LOG.name, "cheat-logged"
        self.screen.scene(f"{name}: {TAMPERED_LOG.title}")
        bundle = self._prepare_logged()
        before = self._nets()
        job = self.post(bundle)
        log = self.folder / folder / bundle.identity.hex()[:16]
        cheat = self.role(folder, "adversary", folder, "cheat", DEVICE_A, bundle=LOGGED)
        options = ("--log", str(log), *self.extra)
        self.role("auditor-logged", "auditor", "auditor-logged", "auditor", DEVICE_B, *options, bundle=LOGGED)
        cheat.order(attack=name, job=job.hex(), step=3)
        cheat.wait("played", attack=name)
        dossier = investigate(self.game, job, name, bundle.program, self.names)
        self._collect(job)
        after = self._nets()
        dossier.money = {k: after[k] - before[k] for k in after}
        self.result.attacks.append(dossier)
        self.screen.verdict(dossier)

    def _step_of(self, name: str) -> int:
        """Every attack strikes at a step of its own, in the last quarter of the run."""
        steps = self.bundle.steps
        return steps - max(steps // 4, 1) + (7 * list(ATTACKS).index(name)) % max(steps // 4 - 3, 1) + 1

    def _watch(self, job: bytes, cheat: Role, name: str) -> None:
        """Until the claim is decided; where the cheat has fallen silent, let its clock run out."""

        def silent() -> None:
            if self.game.job(job).phase is not Phase.CLAIMED or "openLeaf" not in ATTACKS[name].silent:
                return
            for number in range(self.game.job(job).disputes):
                d = self.game.dispute(job, number)
                waiting = d.status is Status.OPEN and d.level is Level.TENSOR and d.height == 0
                if waiting and self._turn(job, number) is Turn.TRAINER:
                    self._run_out(job, number)

        cheat.wait("played", attack=name, idle=silent)

    def _turn(self, job: bytes, number: int) -> Turn | None:
        """None if the dispute was decided since it was looked at."""
        try:
            return self.game.turn(job, number)[0]
        except ContractError:
            return None

    def _collect(self, job: bytes) -> None:
        """The auditor shows what it knew; after the reward window it is paid, and everybody withdraws."""
        if self.game.job(job).phase is not Phase.CONVICTED:
            return
        verdict = self.game.verdict(job)
        entered = self.game.dispute(job, verdict.dispute).entry is Level.RUN
        behind = verdict.step > self.game.job(job).spec.interval
        paid = verdict.cause != "timeout" and entered and behind
        if paid:  # docs/protocol.md section 6
            self.until(lambda: self.game.verdict(job).best != 0, "the auditor's proof of knowledge", 60)
        self.until(lambda: self.game.job(job).open == 0 or self._others_open(job), "refunds", 60)
        until = self.game.job(job).since + self.game.job(job).spec.reward_window + 1
        self.travel(until - self.chain.now())
        if paid:
            self.until(lambda: self.game.verdict(job).paid, "the auditor's reward", 60)
        else:  # what nobody has earned is burnt as soon as anybody says so
            self.game.send("payReward", job)

    def _others_open(self, job: bytes) -> bool:
        """Open disputes of the accuser that helped the story along are refunded here."""
        for number in range(self.game.job(job).disputes):
            d = self.game.dispute(job, number)
            if d.status is Status.OPEN and d.auditor != self.wallets["auditor"].address:
                self.game.send("refund", job, number)
        return self.game.job(job).open == 0

    # ---- money ----

    def _at_rest(self, read: Callable[[list[Event]], T]) -> T:
        """What `read` finds while nobody moves: an agent may be withdrawing at this very moment."""
        while True:
            events = self.game.events()
            found = read(events)
            if self.game.events() == events:
                return found

    def _nets(self) -> dict[str, int]:
        """Per account what the contract gave or owes it minus what it paid in; and what is burnt."""

        def read(events: list[Event]) -> dict[str, int]:
            got = holdings(self.game, {n: w.address for n, w in self.wallets.items()}, events)
            paid = paid_in(self.game, events)
            nets = {name: got[name] - paid.get(w.address, 0) for name, w in self.wallets.items()}
            return nets | {"burnt": self.game.burnt()}

        return self._at_rest(read)

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
