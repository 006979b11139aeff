"""Turns an honest computation into a false one, for the own run of a cheat (vgame/agents/local_run.py)."""

from __future__ import annotations

from dataclasses import dataclass

from vgame.attacks import computation
from vgame.attacks.adversaries import ATTACKS
from vgame.attacks.tampered_log import steer
from vgame.execute.executor import Executor
from vgame.logged.kernels import LoggedExecutor
from vgame.runs.store import Store


@dataclass(frozen=True, slots=True)
class Cheat:
    """The attack with a name, from `step` on."""

    attack: str
    step: int

    def falsify(
        self, store: Store, executor: Executor
    ) -> tuple[Store, computation.PatchedExecutor, computation.CheatingHistory]:
        """A copy of the store up to the attack, and the false stepper and history that continue from there."""
        patch = getattr(computation, ATTACKS[self.attack].patch)(store.bundle, self.step)
        forked = store.fork(store.folder.parent / self.attack, (patch.first - 1) // store.bundle.interval)
        stepper = computation.PatchedExecutor(executor, patch)
        return forked, stepper, computation.CheatingHistory(forked, stepper)

    def falsify_log(self, executor: LoggedExecutor) -> None:
        """Mode `logged`: steer values by their entries."""
        steer(executor, self.step)
