"""Players with a rule of mode `logged` broken: the simulator has to find every one."""

from __future__ import annotations

from typing import Any

from logged import LoggedTable

from vgame.commit.merkle import Kind, Tree
from vgame.commit.trees import run_leaf
from vgame.dispute.claim_view import ClaimView, Entry
from vgame.dispute.trainer import Trainer

Broken = tuple[Any, str, Any]


def without_logs(self: ClaimView) -> Tree:
    """It compares states only, so every right claim differs from its own run."""
    return self.known(Kind.RUN, list(map(run_leaf, self.machine.checkpoints)), self.checkpoints)


def basis_without_log(self: ClaimView, entry: Entry) -> tuple[int, bytes, bytes]:
    """Its challenge of a claim "diverged" does not name the log."""
    stop, segment, _ = BASIS(self, entry)
    return stop, segment, bytes(32)


BASIS = ClaimView.basis
BROKEN: dict[str, Broken] = {
    "posts no log": (Trainer, "log_root", lambda *_: bytes(32)),
    "posts sums without the log's entry": (LoggedTable, "witness", lambda *_: []),
    "compares claims without their logs": (ClaimView, "own_run", property(without_logs)),
    "disputes without the log": (ClaimView, "basis", basis_without_log),
}
