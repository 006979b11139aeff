"""One bonus: an honest trainer that earns it, an honest payer that promises it, perhaps with an auditor, or both; a
cheat plays any other side. Other accounts may promise more bonuses for the same training.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from accuracy import ETHER, QUICK, bundle, installed, work
from award import Award
from branches import BLOCK, Block
from claimants import AMOUNT, TRAPS, Claimants, Giver, Worker
from endpoint import SimChain, SimGame
from evaluations import auditor_life, stakes
from seats import PACE
from story import AFTER, Cast, Story
from strangers import Hand
from tape import Tape
from users import User, payer_life, trainer_life
from world import LAG, Account, World

from vgame import Terms
from vgame.chain.connection import FINALITY
from vgame.chain.records import JobSpec, Phase
from vgame.job.terms import INCLUSION, KEPT_OUT, count_moves, needed_budgets, needed_slot

FEATURES = ("closings", "junk", "surges")
HIGHEST = 8  # times the least base fee
REWARD = ETHER // 2
PACES = (60, 300, 1_200)  # seconds between two commands of a payer


def terms(left: int) -> Terms:
    """Clocks that cover the possible faults here, and that `vgame trainer` accepts."""
    slot = 2 * PACE + 2 * BLOCK * (2 + LAG)
    budget = 40 * slot + left
    clocks = {"trainer_budget": budget, "auditor_budget": budget, "slot": slot}
    windows = {"accept_window": 1_800 + left, "claim_window": 1_800 + left, "challenge_window": 2_400 + left}
    return Terms(reward=REWARD, diverged_pay=REWARD // 3, trainer_bond=ETHER, auditor_bond=ETHER, **clocks, **windows)


def least_terms(short: bool = False) -> Terms:
    """The smallest clocks that `check` accepts; with them the allowance for faults is 0. `short`: a challenge window
    that leaves an auditor of the evaluation no time to prepare it; `check` refuses it."""
    of = (work().bundle, work().measured.bundle)
    slot = max(needed_slot(b, QUICK, INCLUSION) for b in of)
    moves = [count_moves(b) for b in of]
    needed = [needed_budgets(m, slot, INCLUSION) for m in moves]
    trainer, auditor = (max(budget[side] for budget in needed) + KEPT_OUT for side in (0, 1))
    dispute = max(m.auditor for m in moves) * INCLUSION + slot + 1
    challenge = max(dispute, 0 if short else -(-(FINALITY + dispute) // 2))
    clocks = {"trainer_budget": trainer, "auditor_budget": auditor, "slot": slot, "challenge_window": challenge}
    return terms(0).model_copy(update=clocks | {"claim_window": KEPT_OUT + 2})


class Street(World):
    """A world with a base fee that rises for a while."""

    def __init__(self, tape: Tape, inside: bool) -> None:
        super().__init__(tape, inside)
        self.enabled |= {name for name in FEATURES if tape.byte() & 1}
        self.high = 0.0

    def _base_fee(self, parent: Block) -> int:
        if self.on("surges", 0.8):
            self.high = self.now + BLOCK * self.tape.below(64)
        if self.high <= self.now:
            return min(super()._base_fee(parent), max(parent.base_fee * 7 // 8, 2 * self.least))
        return min(parent.base_fee * 9 // 8, HIGHEST * self.least)


class Bonuses(Story):
    """`patches`: (module, name, instead) of broken rules. Job 0 is the training."""

    player: type[User] = User

    def __init__(self, tape: Tape, inside: bool = True, patches: tuple[tuple[Any, str, Any], ...] = ()) -> None:
        self.world: Any = Street(tape, inside)
        world, self.patches, self.cast, self.until = self.world, patches, Cast(), 0.0
        self.roles = tape.pick((("trainer",), ("payer",), ("trainer", "payer"), ("payer", "auditor")))
        self.pace, self.poor = tape.pick(PACES), tape.chance(10)
        if sharp := tape.chance(25):
            world.left, world.enabled = 0, (world.enabled - {"lag", "balancer"}) | {"accusers", "idle"}
        self.sharp, self.short = sharp, sharp and tape.chance(20)
        self.training = bundle(least_terms(self.short) if sharp else terms(world.left))
        self.spec = world.spec = JobSpec(**self.training.order)
        self.least = work().total + tape.pick((0, -1, 1, -work().total))
        self.trap = tape.pick(TRAPS) if "payer" not in self.roles and tape.chance(40) else ""
        self.trap = "no time for an auditor" if self.short else self.trap
        self.stubborn, self.hasty, self.offered, self.cheats = tape.chance(50), tape.chance(30), None, 0
        self.lazy = "payer" not in self.roles and tape.chance(20)  # late; and no other account returns the bonus
        world.enabled -= {"closings", "junk"} if self.lazy else set()
        self.shown = ExitStack()
        self.shown.enter_context(installed())
        self.strangers: Any = Claimants(world, 12, self)
        self.players = {role: self.player(world, role, 2 + n) for n, role in enumerate(self.roles)}
        payer = self.players.get("payer")
        self.client = Hand(payer.account if payer else Account(world, 1))
        self.start = {role: self._wealth(role) for role in self.roles}
        self.granted = {hand.address: 1_000 * ETHER for hand in (self.client, *self.strangers.hands)}
        self.granted |= {player.account.address: self.start[role] for role, player in self.players.items()}
        world.begin(self.granted)
        self.strangers.begin()
        self.view = SimGame(SimChain(world, self.strangers.eth))
        self.jobs = [self.view.job_id(self.spec, self.client.address, n) for n in range(2)]
        world.strangers, world.deadline = self.strangers.act, self._deadline
        self.judge: Any = Award(self)

    def _wealth(self, role: str) -> int:
        """Enough money; or so little that a command has to refuse."""
        gas = 20_000_000 * 2 * HIGHEST * self.world.least
        if role == "auditor":
            self.rich = not self.world.tape.chance(20)
            return stakes(self.spec, self.world.least) // (1 if self.rich else 4)
        if role == "payer":
            return REWARD + (AMOUNT // 2 if self.poor else AMOUNT + gas // 10)
        return ETHER + gas if self.poor else 2 * AMOUNT + gas

    def play(self) -> list[str]:
        with self.shown as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module, name, instead in self.patches:
                stack.enter_context(patch.object(module, name, instead))
            return super().play()

    def _begin(self, folder: Path) -> None:
        self.strangers.jobs.append(self.jobs[0])
        if "payer" not in self.roles:
            self.strangers.actors.append(Giver(self.strangers, self.client))
        if "trainer" not in self.roles:
            self.strangers.actors.append(Worker(self.strangers, self.strangers.free.pop()))
        lives = {"trainer": trainer_life(self), "payer": payer_life(self), "auditor": auditor_life(self, folder)}
        for role, player in self.players.items():
            player.life = lives[role]
            player.sit()

    def _over(self) -> bool:
        """The players and the claims of evaluations have ended, and some time has passed in which a cheat could still
        be paid. The auditor never ends."""
        ended = all(player.ended for role, player in self.players.items() if role != "auditor")
        played = self.strangers.evaluations if "auditor" in self.roles else []
        if not ended or any(self.strangers.job(job).phase is Phase.CLAIMED for job in played):
            self.until = 0.0
            return False
        self.until = self.until or self.world.now + AFTER
        return self.world.now >= self.until

    def _deadline(self) -> float | None:
        """The end of a job's window; else of the bonus's window, unless a trainer may be waiting for a final block."""
        if (end := super()._deadline()) is not None:
            return end
        bonus = self.strangers.held()
        busy = [p for role, p in self.players.items() if role == "trainer" and not p.ended]
        if bonus is None or busy or not bonus.since or bonus.settled_at:
            return None
        end = bonus.since + bonus.window
        return float(end) if end + 8 * BLOCK >= self.world.tree.head.time else None


__all__ = ["Bonuses"]
