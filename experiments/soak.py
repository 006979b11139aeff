"""A day of a market in fast time: jobs, cheats, permanent auditors, kills, outages. Checks the money and the growth of
memory. JSON on stdout.

    python experiments/soak.py --speed 60 > docs/soak.json       # 24 simulated hours in about 25 minutes
    python experiments/soak.py --hours 2 --jobs 4 --speed 60     # a short one

All roles are processes of the command line, on anvil, behind an endpoint with outages. The chain's clock runs `speed`
times as fast as this machine's, for all roles. One auditor and `vgame watch` are never killed: their memory shows
growth.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "node"))
from chains import anvil  # noqa: E402
from demo_memory import pss  # noqa: E402
from proxy import Proxy, served  # noqa: E402

from vgame.agents.client import post_job  # noqa: E402
from vgame.attacks.adversaries import ATTACKS  # noqa: E402
from vgame.chain.connect import connect  # noqa: E402
from vgame.chain.game import Game  # noqa: E402
from vgame.chain.records import Phase  # noqa: E402
from vgame.chain.wallet import Wallet, deploy_game  # noqa: E402
from vgame.demo.processes import Role  # noqa: E402
from vgame.job.bundle import save_bundle  # noqa: E402
from vgame.job.file import read_job_file  # noqa: E402
from vgame.runs.prepare import prepare  # noqa: E402

ETHER, HOUR = 10**18, 3600
#: Clocks of these jobs, in simulated seconds: a day has several jobs one after the other.
CLOCKS = {
    "accept_window": 2 * HOUR, "claim_window": 6 * HOUR, "challenge_window": 2 * HOUR,
    "trainer_budget": 6 * HOUR, "auditor_budget": 6 * HOUR, "slot": HOUR // 2,
}  # fmt: skip
CHEATS_EVERY = 4
CHEATS = list(ATTACKS)
ENDED = (Phase.FINAL, Phase.CONVICTED)


class Endpoint(Proxy):
    """Start an outage."""

    away = False

    def do_POST(self) -> None:
        if type(self).away:
            self.hang_up()
        else:
            super().do_POST()


@dataclass
class Life:
    """A role that is restarted after each kill; memory of each of its processes, by simulated second."""

    name: str
    arguments: list[str]
    key: bytes | None
    log: Path
    mortal: bool = True
    role: Any = None
    kills: int = 0
    ended: int = 0  # number of ends with an error, for example during an outage at its start
    orders: dict[str, Any] = field(default_factory=dict)
    reported: list[dict] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)

    def start(self) -> None:
        log = self.log / f"{self.name}-{self.kills}-{self.ended}.log"
        self.role, self.memory = Role(self.name, self.arguments, log, self.key, self.reported.append), []
        if self.orders:
            self.role.order(**self.orders)

    def revive(self) -> None:
        """Restart a failed process, as deploy/vgame@.service does."""
        if self.role.process.poll() not in (None, 0):
            self.role.stop()
            self.ended += 1
            self.start()

    def kill(self) -> None:
        self.role.process.kill()
        self.role.process.wait()
        self.role.stop()
        self.kills += 1
        self.start()

    def sample(self, now: float) -> None:
        """Megabytes of the process."""
        if self.role.process.poll() is None:
            self.memory.append((now, pss(self.role.process.pid) / 2**20))


class Soak:
    """The stage of the day, and its events."""

    def __init__(self, folder: Path, url: str, direct: str, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.folder, self.url, self.arguments, self.stack = folder, url, arguments, stack
        self.chain, self.dice = connect(direct), random.Random(arguments.seed)
        self.client = Wallet(self.chain)
        self.chain.fund(self.client.address, 10_000 * ETHER)
        self.game = Game(self.chain, deploy_game(self.client), self.client)
        job = read_job_file(ROOT / "vgame" / "tasks" / "digits.toml")
        terms = job.terms.model_copy(update=CLOCKS)
        self.bundle = prepare(job.model_copy(update={"steps": 60, "interval": 10, "terms": terms}))
        save_bundle(self.bundle, folder / "bundle")
        self.lives: dict[str, Life] = {}
        self.accounts = [self.client.address]
        self.jobs: dict[bytes, str] = {}  # expected final phases
        self.finished: dict[bytes, float] = {}
        self.outages = 0

    def add(self, name: str, *command: str, mortal: bool = True, keyed: bool = True) -> Life:
        wallet = Wallet(self.chain)
        if keyed:
            self.accounts.append(wallet.address)
            self.chain.fund(wallet.address, 50 * ETHER)
        arguments = [command[0], "--rpc", self.url, "--game", self.game.address, *command[1:]]
        life = Life(name, arguments, wallet.key if keyed else None, self.folder / "logs", mortal)
        life.start()
        self.stack.callback(lambda: life.role.stop())
        self.lives[name] = life
        return life

    def store(self, name: str) -> tuple[str, ...]:
        return "--bundle", str(self.folder / "bundle"), "--store", str(self.folder / name)

    def order(self, number: int) -> None:
        """Order one more job, for an honest trainer or a cheat."""
        job = post_job(self.game, self.bundle, number)
        cheats = number % CHEATS_EVERY == 0
        self.jobs[job] = "CONVICTED" if cheats else "FINAL"
        name = f"{'cheat' if cheats else 'trainer'} {number}"
        run, mine = self.bundle.identity.hex()[:16], self.folder / name
        done = self.folder / "auditor 0" / run
        if cheats:
            shutil.copytree(done, mine / run)
            life = self.add(name, "adversary", *self.store(name), mortal=False)
            attack = CHEATS[number // CHEATS_EVERY % len(CHEATS)]
            life.orders = {"attack": attack, "job": job.hex(), "step": 50}
            life.role.order(**life.orders)
        else:
            self.add(name, "trainer", "--job", job.hex(), *self.store(name), "--any-terms")

    def play(self) -> dict:
        """The day."""
        for n in range(3):
            self.add(f"auditor {n}", "auditor", *self.store(f"auditor {n}"), "--any-terms", mortal=n > 0)
        self.add("watch", "watch", "--port", "0", mortal=False, keyed=False)
        for n in range(3):
            self.lives[f"auditor {n}"].role.wait("computed", timeout=300)
        speed, hours = self.arguments.speed, self.arguments.hours
        begin = before = time.monotonic()
        posted, calm = 0, 0.0
        every = (hours - 5) * HOUR / max(self.arguments.jobs - 1, 1) if hours > 6 else HOUR / 4
        while True:
            now = (time.monotonic() - begin) * speed
            self.chain.advance(max(1, int((time.monotonic() - before) * speed)))
            before = time.monotonic()
            while posted < self.arguments.jobs and now >= posted * every:
                posted += 1
                self.order(posted)
            if self.look(now, posted) and now >= hours * HOUR:
                break
            if now > (hours + 12) * HOUR:
                break
            if now >= calm:  # a kill or an outage in every simulated half hour
                calm = now + HOUR / 2
                self.disturb(now)
            time.sleep(1.0)
        return self.report(now)

    def disturb(self, now: float) -> None:
        if self.dice.random() < 0.25:
            Endpoint.away = True
            time.sleep(min(8.0, 600 / self.arguments.speed))
            Endpoint.away = False
            self.outages += 1
            return
        alive = [life for life in self.lives.values() if life.mortal and life.role.process.poll() is None]
        if alive:
            self.dice.choice(alive).kill()

    def look(self, now: float, posted: int) -> bool:
        """Whether all posted jobs have ended; samples the memory of all roles."""
        for life in self.lives.values():
            life.revive()
            life.sample(now)
        for job in self.jobs:
            if job not in self.finished and self.game.job(job).phase in ENDED:
                self.finished[job] = now
                print(f"{now / HOUR:5.1f} h: job {len(self.finished)} of {posted} is {self.game.job(job).phase.name}",
                      file=sys.stderr)  # fmt: skip
        return posted == self.arguments.jobs == len(self.finished)

    def report(self, now: float) -> dict:
        phases = {job.hex()[:8]: (self.game.job(job).phase.name, wanted) for job, wanted in self.jobs.items()}
        memory = {name: _growth(life.memory) for name, life in self.lives.items() if _growth(life.memory)}
        held, burnt = self.chain.balance(self.game.address), self.game.burnt()
        owed = sum(self.game.credits(account) for account in self.accounts)
        right = [got == wanted for got, wanted in phases.values()]
        return {
            "command": " ".join(["python", *sys.argv]), "hours": round(now / HOUR, 1), "jobs": len(phases),
            "as they must end": sum(right), "kills": sum(life.kills for life in self.lives.values()),
            "outages": self.outages, "started again": sum(life.ended for life in self.lives.values()),
            "held in excess (wei)": held - burnt - owed, "memory": memory, "phases": phases,
        }  # fmt: skip


def _growth(memory: list[tuple[float, float]]) -> dict | None:
    """Median megabytes of a process in the second and in the last quarter of its life, if it lived long."""
    if not memory or memory[-1][0] - memory[0][0] < 6 * HOUR:
        return None
    first, last = memory[0][0], memory[-1][0]
    parts = [
        [m for t, m in memory if first + (last - first) * low <= t <= first + (last - first) * high]
        for low, high in ((0.25, 0.5), (0.75, 1.0))
    ]
    early, late = (statistics.median(part) for part in parts)
    return {"hours": round((last - first) / HOUR, 1), "MB": [round(early, 1), round(late, 1)],
            "ratio": round(late / early, 3)}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--speed", type=float, default=100, help="simulated seconds per second")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vgame-soak-")))
        chain = stack.enter_context(anvil())
        _, url = stack.enter_context(served(Endpoint, chain.url))
        found = Soak(folder, url, chain.url, arguments, stack).play()
    print(json.dumps(found, indent=1))
    flat = all(entry["ratio"] <= 1.1 for entry in found["memory"].values())
    return 0 if found["as they must end"] == found["jobs"] and flat and not found["held in excess (wei)"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
