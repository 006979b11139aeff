"""Data of the page outside the chain: own runs, own accounts, and alarms.

In: folders of runs, addresses, health endpoints of roles. Out: records of the state. A folder that cannot be read, or a
role that does not answer, becomes an alarm.
"""

from __future__ import annotations

import math
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vgame.agents.status import alarms
from vgame.chain.game import Game
from vgame.dispute.player import DISPUTE_GAS
from vgame.errors import VgameError
from vgame.job.bundle import Bundle
from vgame.runs.folder import open_run, store_of
from vgame.system.endpoints import hide_secrets, without_secrets
from vgame.system.files import parse_json
from vgame.watch.differences import State, shown

POINTS = 400  # of a loss curve
MOST_HEALTH = 2**16  # bytes of a health endpoint's answer
SECONDS = 2.0  # time limit for the whole answer
LOW_DISK = 2 * 10**9  # bytes
SAME = ("program_root", "data_root", "initial_root", "scalar_root", "steps", "interval")


@dataclass
class OwnRun:
    """A run's folder; `bundle`: given for an agent's store, which does not contain it."""

    folder: Path
    bundle: Bundle | None = None

    def record(self, jobs: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Progress, losses, and the jobs of this run."""
        store = store_of(self.folder, self.bundle, writable=False) if self.bundle else open_run(self.folder)
        self.bundle = bundle = store.bundle
        losses, done = store.losses(), store.step
        mine = [job for job, record in jobs.items() if _orders(record, bundle)]
        root = store.run_tree.root.hex() if done >= bundle.steps or store.divergence else ""
        agree = {job: jobs[job]["root"] == root for job in mine if root and jobs[job]["root"]}
        return {
            "name": shown(self.folder.name),
            "folder": shown(self.folder),
            "steps": bundle.steps,
            "done": done,
            "checkpoints": len(store.roots),
            "root": root,
            "losses": sampled([float(x) for x in losses]),
            "jobs": mine,
            "jobs_agree": agree,
        }


def _orders(job: dict[str, Any], bundle: Bundle) -> bool:
    order = {k: v.hex() if isinstance(v, bytes) else v for k, v in bundle.order.items()}
    return all(job["spec"][key] == order[key] for key in SAME) and job["spec"]["seed"] == str(order["seed"])


def answer_of(url: str) -> bytes:
    """The answer of a health endpoint, whole within SECONDS, at most MOST_HEALTH bytes, without redirects. OSError,
    HTTPException or ValueError if it fails."""
    at = urlsplit(url)
    kind = HTTPSConnection if at.scheme == "https" else HTTPConnection
    connection = kind(str(at.hostname), at.port, timeout=SECONDS)
    connection.connect()
    # the library's timeout applies to each piece
    late = threading.Timer(SECONDS, connection.sock.shutdown, [socket.SHUT_RDWR])
    late.daemon = True
    late.start()
    try:
        connection.request("GET", (at.path or "/") + (f"?{at.query}" if at.query else ""))
        with connection.getresponse() as answer:
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            return answer.read(MOST_HEALTH)
    finally:
        late.cancel()
        connection.close()


def _count(number: object) -> int | None:
    """A number of a progress record, checked: JSON allows infinite numbers and text."""
    if number is not None and (type(number) is not int or not 0 <= number < 2**53):
        raise ValueError(f"{number!r:.40} is no count")
    return number


def sampled(losses: Sequence[float]) -> list[list[float]]:
    """[step, loss], at most POINTS of them, with the first and the last; values that are not finite are omitted."""
    count = len(losses)
    spread = (round(i * (count - 1) / (POINTS - 1)) for i in range(POINTS))
    chosen = range(count) if count <= POINTS else sorted(set(spread))
    return [[i + 1, losses[i]] for i in chosen if math.isfinite(losses[i])]


@dataclass
class Own:
    """Runs, accounts and roles that the page's options name."""

    game: Game
    runs: list[OwnRun] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)  # URLs of health endpoints
    roles_seen: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> record of a role, set by the caller

    def records(self, state: State) -> State:
        """The records outside the chain."""
        jobs = {key.removeprefix("job/"): record for key, record in state.items() if key.startswith("job/")}
        found: State = {}
        troubles: list[dict[str, Any]] = []
        for i, run in enumerate(self.runs):
            try:
                found[f"run/{i}"] = run.record(jobs)
            except VgameError as error:
                troubles.append({"kind": "run", "text": shown(error)})
        forecast = {job: run["root"] for run in found.values() for job in run["jobs"] if run["root"]}
        for i, account in enumerate(self.accounts):
            found[f"role/account {i}"] = self._account(account)
            troubles += [
                {"kind": a.kind, "text": shown(a.text), "job": a.job, "dispute": a.dispute}
                for a in alarms(self.game, account, forecast)
            ]
        for i, url in enumerate(self.roles):
            found[f"role/{i}"] = self._health(url, troubles)
        found |= {f"role/{name}": record for name, record in self.roles_seen.items()}
        troubles += self._disks()
        return found | {f"alarm/{i}": trouble for i, trouble in enumerate(troubles)}

    def _account(self, account: str) -> dict[str, Any]:
        balance, each = self.game.chain.balance(account), DISPUTE_GAS * sum(self.game.chain.fees())
        reserve = {"disputes": min(balance // each, 10**6), "each": str(each)} if each else None
        disk = min((shutil.disk_usage(run.folder).free for run in self.runs if run.folder.exists()), default=None)
        return {
            "name": "Own account",
            "doing": "",
            "address": account,
            "balance": str(balance),
            "reserve": reserve,
            "disk": disk,
            "credits": str(self.game.credits(account)),
        }

    @staticmethod
    def _health(url: str, troubles: list[dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = parse_json(answer_of(url))
            who, doing = shown(answer["role"]), shown(answer["doing"])
            done, total = (_count(answer.get(k)) for k in ("done", "total"))
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
            name = without_secrets(url)
            why = f"{name} does not answer as a role: {hide_secrets(str(error), url)}"
            troubles.append({"kind": "silent", "text": shown(why)})
            return {"name": shown(name), "doing": "does not answer"}
        return {"name": who, "doing": doing, "done": done, "total": total}

    def _disks(self) -> Iterator[dict[str, Any]]:
        for run in self.runs:
            if run.folder.exists() and (free := shutil.disk_usage(run.folder).free) < LOW_DISK:
                yield {
                    "kind": "disk",
                    "text": f"{shown(run.folder)} has {free / 1e9:.1f} GB left; a checkpoint that is not written "
                    "stops the run",
                }
