"""Turns an honest computation into a false one, for the own run of a cheat (vgame/agents/local_run.py)."""

from __future__ import annotations

from dataclasses import dataclass

from vgame.attacks import computation
from vgame.attacks.adversaries import ATTACKS
from vgame.attacks.tampered_log import steer
from vgame.runs.history import History


@dataclass(frozen=True, slots=True)
class Cheat:
    """The attack with a name, from `step` on."""

    attack: str
    step: int

    def falsify(self, honest: History) -> computation.CheatingHistory:
        """A history with a copy of the store up to the attack, and the false stepper that continues from there."""
        store, patch = honest.store, getattr(computation, ATTACKS[self.attack].patch)(honest.bundle, self.step)
        forked = store.fork(store.folder.parent / self.attack, (patch.first - 1) // store.bundle.interval)
        return computation.CheatingHistory(forked, computation.PatchedExecutor(honest.stepper, patch))


@dataclass(frozen=True, slots=True)
class LogCheat:
    """The attack "tampered log", in one step."""

    step: int

    def falsify(self, honest: History) -> History:
        """The same history, whose stepper steers values by their entries."""
        steer(honest.stepper, self.step)
        return honest
