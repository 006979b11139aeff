"""The stage of the demonstration: chain, accounts, bundle, the starter of roles.

The chain's process starts while this one loads; the contracts are deployed while the program is captured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG
from vgame.chain.connect import connect
from vgame.chain.game import Game
from vgame.chain.wallet import Wallet, deploy_game
from vgame.demo.nursery import Nursery, is_possible
from vgame.demo.page import StoryPage
from vgame.demo.processes import EmbeddedChain, Role, Start, spawn
from vgame.demo.result import Result
from vgame.demo.screen import Screen
from vgame.errors import ContractError, VgameError

DIGITS = Path(str(files("vgame.tasks") / "digits.toml"))
LOGGED = "bundle-logged"  # folder of the bundle in mode `logged`

ETHER = 10**18
CHEATS = ("cheat", "second cheat", "third cheat", "fourth cheat", "fifth cheat")  # cheats that play at the same time
FUNDS = dict.fromkeys(CHEATS, 50) | {
    "client": 200,
    "trainer": 20,
    "auditor": 20,
    "accuser": 20,
    "second accuser": 20,
    "cheat with a log": 20,
    "auditor of the log": 20,
    "auditor of the number": 20,
}
QUICK = ("flipped-bit",), 60  # attacks and steps of the short version
WITHOUT_TIME_TRAVEL = {
    "challenge_window": 60, "trainer_budget": 40, "auditor_budget": 40, "slot": 1,
}  # fmt: skip


@dataclass(frozen=True)
class DemoOptions:
    """The options of the demonstration."""

    attack: str | None = None  # play this attack only
    quick: bool = False  # play a short honest run and one cheat
    rpc: str | None = None
    job_file: Path | None = None

    @property
    def attacks(self) -> list[str]:
        known = [*ATTACKS, TAMPERED_LOG.name]
        return [self.attack] if self.attack else list(QUICK[0]) if self.quick else known


class Stage:
    """The state of a story, and the actions of its scenes."""

    def __init__(self, folder: Path, screen: Screen, stack: ExitStack, options: DemoOptions) -> None:
        self.folder, self.screen, self.stack, self.options = folder, screen, stack, options
        self.begin = time.monotonic()
        self.result = Result()
        chain = None if options.rpc else self._embedded()
        self.start_role = self._nursery()
        self.url = chain.url() if chain else options.rpc
        self.chain = connect(self.url)
        self.can_travel = self.chain.advance(1)
        self.extra = () if self.can_travel else ("--any-terms",)  # safe clocks would take too long
        self.wallets = {name: Wallet(self.chain) for name in FUNDS}
        self.names = {wallet.address: name for name, wallet in self.wallets.items()}
        self.job_file = options.job_file or DIGITS
        with ThreadPoolExecutor(1) as beside:
            built = beside.submit(self._build)
            self.bundle = self._prepare(self.job_file)
            built.result()
        self.page.programs.add(self.bundle)
        self.nonce = 0

    def _embedded(self) -> EmbeddedChain:
        chain = EmbeddedChain(self.folder / "logs" / "chain.log")
        self.stack.callback(chain.stop)
        return chain

    def _nursery(self) -> Start:
        """The starter of roles: by a fork if the system supports it."""
        if not is_possible():
            return spawn
        nursery = Nursery()
        self.stack.callback(nursery.stop)
        return nursery.start

    def _build(self) -> None:
        """Fund the accounts, deploy the game, serve its page."""
        self._fund()
        self.game = self._deploy()
        self.page = StoryPage(self.url, self.game.address, self.names)
        self.stack.callback(self.page.stop)
        self.screen.say(f"watch it: {self.page.url}")

    def _fund(self) -> None:
        """Fund all accounts from the node's unlocked account, or from that of the key in VGAME_KEY."""
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
        if self.options.quick:
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
        """Prepare a small job in mode `logged`."""
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
        """The job, with short clocks if time cannot be moved."""
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
        """Start a process that ends with the story; its reports are shown on the screen and on the page."""

        def hear(event: dict[str, Any]) -> None:
            self.screen.event(event)
            self.page.hear(event)

        log = self.folder / "logs" / f"{name.replace(' ', '-')}.log"
        role = Role(name, arguments, log, key, hear, self.start_role)
        self.stack.callback(role.stop)
        return role

    def post(self, title: str, bundle=None) -> bytes:
        """Post the job again, or another one, as the client."""
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
        """Poll until a condition holds."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise VgameError(
                    f"{what} did not happen within {timeout:.0f} seconds; logs are in {self.folder / 'logs'}"
                )
            time.sleep(0.1)

    def run_out(self, job: bytes, number: int) -> None:
        """Let the clock of the side to move run out."""
        try:
            while True:  # the honest side may still be answering
                turn, deadline = self.game.turn(job, number)
                time.sleep(0.5)
                if self.game.turn(job, number) == (turn, deadline):
                    break
        except ContractError:  # decided meanwhile
            return
        self.travel(deadline + 1 - self.chain.now())
