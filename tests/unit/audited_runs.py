"""Small runs for audits by several workers, honest and not."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

import vgame


def loss(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def bundle(rate: str = "0.1", steps: int = 24) -> vgame.Bundle:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(30, 4)
    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), {"x": x, "y": x[:, :3].argmax(1)}, 10)
    return vgame.prepare(vgame.Job(task, steps=steps, interval=4, seed=1, schedule=vgame.Constant(lr=rate)))


def cheat(folder: Path, checkpoints: Sequence[int]) -> None:
    """Replace these checkpoints, states and roots, by those of another run."""
    other = vgame.train(bundle("0.2"), folder.parent / "other").folder
    mine, theirs = bytearray((folder / "roots.bin").read_bytes()), (other / "roots.bin").read_bytes()
    for c in checkpoints:
        shutil.copy(other / f"states/{c * 4:010}.safetensors", folder / f"states/{c * 4:010}.safetensors")
        mine[(c - 1) * 32 : c * 32] = theirs[(c - 1) * 32 : c * 32]
    (folder / "roots.bin").write_bytes(mine)
    renew_checks(folder)


def renew_checks(folder: Path) -> None:
    roots, check, checks = (folder / "roots.bin").read_bytes(), b"", b""
    for i in range(0, len(roots), 32):
        check = hashlib.sha256(check + roots[i : i + 32]).digest()
        checks += check
    (folder / "checks.bin").write_bytes(checks)


def executing(run: Path) -> list[int]:
    """The processes that work on a run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"vgame.runs.audit_worker" in words and bytes(run) in words:
            found.append(int(place.name))
    return found
