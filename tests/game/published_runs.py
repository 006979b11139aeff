"""Runs that a trainer publishes, whole or damaged, and an auditor that follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from vgame.agents.config import AgentConfig
from vgame.agents.followed_run import FollowedRun
from vgame.agents.local_run import LocalRun
from vgame.attacks.cheat import Cheat
from vgame.runs.local import copy_bundle
from vgame.system.progress import Reporter

REPORTER = Reporter(json_lines=True)


def computed(folder: Path, store: Path, cheat: Cheat | None = None, keep: int = 1) -> LocalRun:
    """A trainer's run, published as its folder."""
    run = LocalRun(AgentConfig("", "", folder, store, keep=keep), "cpu", REPORTER, cheat)
    run.run()
    copy_bundle(run.bundle, run.store.folder)
    return run


def follow(seat: AgentConfig, *places: object, workers: int = 1) -> FollowedRun:
    run = FollowedRun(replace(seat, published=tuple(map(str, places)), workers=workers), "cpu", REPORTER)
    run.run()
    return run


def publish(copy: Path, roots: Sequence[bytes]) -> None:
    (copy / "roots.bin").write_bytes(b"".join(roots))
    (copy / "checks.bin").unlink(missing_ok=True)


def damage(name: str, at: int = -1) -> Callable[[Path], None]:
    def damaged(copy: Path) -> None:
        data = bytearray((copy / name).read_bytes())
        data[at] ^= 1
        (copy / name).write_bytes(data)

    return damaged


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda copy: (copy / name).write_bytes((copy / name).read_bytes()[:size])
