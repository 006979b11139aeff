"""The cheats of the story, several at a time: each with an order, a claim, a dispute, a verdict, the money."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG
from vgame.chain.records import Level, Phase, Status, Turn
from vgame.demo.dossier import Dossier, investigate
from vgame.demo.processes import Role
from vgame.demo.result import DEVICE_A, DEVICE_B
from vgame.demo.stage import CHEATS, LOGGED, Stage
from vgame.errors import ContractError
from vgame.watch.money import CONTRACT, balances, flows

# by name of an account: its party in the table of money
ROLES = dict.fromkeys((*CHEATS, "cheat with a log"), "cheat") | {"auditor of the log": "auditor"}


@dataclass
class Played:
    """One attack in play."""

    name: str
    job: bytes
    cheat: Role
    bundle: Any
    dossier: Dossier = field(default_factory=lambda: Dossier("", ""))

    @property
    def silent(self) -> frozenset[str]:
        return ATTACKS[self.name].silent if self.name in ATTACKS else frozenset()


class Cheats:
    """Plays attacks on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def attacks(self, names: list[str], cheats: dict[str, Role]) -> None:
        """Play all attacks, as many at a time as there are cheats: each with an order, a claim, a dispute, a verdict,
        the money.

        The clock of the chain runs for all, so it is moved only between two rounds, and once all but one are decided.
        """
        names, logged = list(names), self._log_players() if TAMPERED_LOG.name in names else []
        while names:
            count = max(len(cheats), 1)
            self._round([names.pop(0) for _ in range(min(len(names), count))], [*cheats.values()], logged)
        for who in ("auditor", "auditor of the log"):
            address = self.stage.wallets[who].address
            self.stage.until(lambda a=address: not self.stage.game.credits(a), f"the withdrawal of the {who}")
        for role in logged:
            role.stop()

    def _round(self, names: list[str], cheats: list[Role], logged: list[Role]) -> None:
        """Play attacks at the same time."""
        free = iter(cheats)
        playing = [self._begin(name, logged[0] if name == TAMPERED_LOG.name else next(free)) for name in names]
        for attack in playing:
            self._await(attack, playing)
        for attack in playing:
            self._judge(attack)
        self._collect([attack.job for attack in playing])
        for attack in playing:
            attack.dossier.money = self._nets(attack.job)
            self.stage.result.attacks.append(attack.dossier)

    def _begin(self, name: str, cheat: Role) -> Played:
        title = self._title(name)
        if name == TAMPERED_LOG.name:
            played = Played(name, self.stage.post(title, self.logged), cheat, self.logged)
            cheat.order(attack=name, job=played.job.hex(), step=3)
            return played
        played = Played(name, self.stage.post(title), cheat, self.stage.bundle)
        honest = self.stage.folder / ("trainer" if (self.stage.folder / "trainer").exists() else "auditor")
        mine = self.stage.folder / cheat.name / self.stage.bundle.identity.hex()[:16]
        if not mine.exists():  # up to the attacked step a cheat's run is the honest run, so it is copied
            copy_run(honest / mine.name, mine)
        cheat.order(attack=name, job=played.job.hex(), step=self._step_of(name))
        return played

    @staticmethod
    def _title(name: str) -> str:
        return f"{name}: {(ATTACKS.get(name) or TAMPERED_LOG).title}"

    def _log_players(self) -> list[Role]:
        """Cheat and auditor of a small job in mode `logged`: the auditor follows the cheat's own log, which does not
        permit its values."""
        self.logged = self.stage.prepare_logged()
        log = self.stage.folder / "cheat-logged" / self.logged.identity.hex()[:16]
        cheat = self.stage.role(
            "cheat with a log", "adversary", "cheat-logged", "cheat with a log", DEVICE_A, bundle=LOGGED
        )
        options = ("--log", str(log), *self.stage.extra)
        auditor = self.stage.role(
            "auditor of the log", "auditor", "auditor-logged", "auditor of the log", DEVICE_B, *options, bundle=LOGGED
        )
        return [cheat, auditor]

    def _step_of(self, name: str) -> int:
        """The step of an attack: a different one for each, in the last quarter of the run."""
        steps = self.stage.bundle.steps
        return steps - max(steps // 4, 1) + (7 * list(ATTACKS).index(name)) % max(steps // 4 - 3, 1) + 1

    def _await(self, attack: Played, playing: list[Played]) -> None:
        """Wait until the claim is decided; if the cheat is silent and no other attack is played, let its clock run
        out."""
        others = [other for other in playing if other is not attack]

        def silent() -> None:
            if "openLeaf" not in attack.silent or self.stage.game.job(attack.job).phase is not Phase.CLAIMED:
                return
            if any(self.stage.game.job(other.job).phase < Phase.CONVICTED for other in others):
                return
            for number in range(self.stage.game.job(attack.job).disputes):
                d = self.stage.game.dispute(attack.job, number)
                waiting = d.status is Status.OPEN and d.level is Level.TENSOR and d.height == 0
                if waiting and self._turn(attack.job, number) is Turn.TRAINER:
                    self.stage.run_out(attack.job, number)

        attack.cheat.wait("played", idle=silent, attack=attack.name)

    def _turn(self, job: bytes, number: int) -> Turn | None:
        """The turn of a dispute; None if it was decided meanwhile."""
        try:
            return self.stage.game.turn(job, number)[0]
        except ContractError:
            return None

    def _judge(self, attack: Played) -> None:
        self.stage.screen.scene(self._title(attack.name))
        attack.dossier = investigate(self.stage.game, attack.job, attack.name, attack.bundle.program, self.stage.names)
        self.stage.screen.verdict(attack.dossier)

    def _collect(self, jobs: list[bytes]) -> None:
        """Wait until all bonds are withdrawn."""
        for job in jobs:
            if self.stage.game.job(job).phase is Phase.CONVICTED:
                self.stage.until(lambda j=job: self.stage.game.job(j).open == 0 or self._others_open(j), "refunds")

    def _others_open(self, job: bytes) -> bool:
        """Refund the open disputes of accounts other than the auditors; True if no dispute is open then."""
        auditors = {self.stage.wallets[name].address for name in ("auditor", "auditor of the log")}
        for number in range(self.stage.game.job(job).disputes):
            d = self.stage.game.dispute(job, number)
            if d.status is Status.OPEN and d.auditor not in auditors:
                self.stage.game.send("refund", job, number)
        return self.stage.game.job(job).open == 0

    def _nets(self, job: bytes) -> dict[str, int]:
        """Gains and losses by party in this job."""
        found = balances(flows(self.stage.game.job(job), self.stage.game.events(job=job)))
        nets = dict.fromkeys(("client", "trainer", "auditor", "cheat", "accuser", "burnt"), 0)
        for party, wei in found.items():
            name = ROLES.get(self.stage.names.get(party, party), self.stage.names.get(party, party))
            if name != CONTRACT:
                nets[name] = nets.get(name, 0) + wei
        return nets


def copy_run(run: Path, target: Path) -> None:
    """Copy a whole run, while its owner may still measure its pace. Names that begin with a dot are left out: these
    files (being written, or the checkpoint of a measurement) come and go meanwhile."""
    shutil.copytree(run, target, ignore=shutil.ignore_patterns(".*"))
