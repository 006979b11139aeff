"""One story: an order, an honest trainer, strangers, and what went wrong; and the judgement at its end.

In: a tape. Out: what the honest lost that they should not have, in sentences; none where all is well.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Any

from branches import BLOCK
from endpoint import SimChain, SimGame
from frauds import SETUP
from revm_calls import decode_log
from scene import ETHER, NAME, Call
from seats import PACE, Player, trainer_life
from strangers import Hand, Strangers
from tape import Tape
from world import LAG, Account, World

import vgame.agents.roles as roles
from vgame.chain.records import JobSpec, Phase
from vgame.dispute.trainer import Trainer

MOVES = 9  # of a side, at most
PROMPT = 20 * BLOCK  # for an honest player to do what is due
WINDOWS = {"accept_window": 600, "claim_window": 1200, "challenge_window": 1800}
AFTER = 10 * BLOCK  # for reorganisations of the end
END = 60_000  # seconds after which nothing may be open


@dataclass(frozen=True)
class Cast:
    """The classes that play the honest."""

    trainer: type[Trainer] = Trainer


def terms(world: World) -> JobSpec:
    """The smallest clocks that cover what may go wrong here (vgame.job.terms): a block until a move is included, one
    more until it is seen; that much again where nodes lag."""
    lag = LAG if world.enabled & {"lag", "balancer"} else 0
    inclusion = 2 * BLOCK * (1 + lag)
    slot = 2 * PACE + inclusion
    budgets = 2 * MOVES * slot + MOVES * inclusion, MOVES * slot + 2 * MOVES * inclusion
    clocks = {"slot": slot, "trainer_budget": budgets[0] + world.left, "auditor_budget": budgets[1] + world.left}
    return replace(SETUP.spec, **WINDOWS, **clocks)


class Story:
    """`inside`: what goes wrong is covered by the clocks."""

    def __init__(self, tape: Tape, inside: bool = True, cast: Cast = Cast()) -> None:
        self.world = world = World(tape, inside)
        self.spec = world.spec = terms(world)
        self.cast, self.faults = cast, []
        self.client = Hand(Account(world, 1))
        self.strangers = Strangers(world, 24)
        self.trainer = Player(world, "trainer", 2)
        self.until = 0.0
        gas = tape.pick((8_450_000, 4_600_000, 4_460_000, 300_000, 3_000_000))
        self.start = self.spec.trainer_bond + gas * (5 * world.least + world.tip)
        rich = {hand.address: 1000 * ETHER for hand in (self.client, *self.strangers.hands)}
        world.begin(rich | {self.trainer.account.address: self.start})
        self.strangers.begin()
        self.view = SimGame(SimChain(world, self.strangers.eth))
        self.job = self.view.job_id(self.spec, self.client.address, 1)
        self.trainer.life = trainer_life(self.job)
        world.strangers, world.deadline = self.strangers.act, self._deadline

    def order(self, client: Hand, nonce: int) -> None:
        args = (astuple(self.spec), nonce, NAME, SETUP.program.header)
        self.strangers.send(client, Call("createJob", args, self.spec.reward))

    def play(self) -> list[str]:
        """To its end; what went wrong."""
        world, usual = self.world, roles.Trainer
        roles.Trainer = self.cast.trainer
        try:
            with world.clock.installed():
                self.order(self.client, 1)
                self.strangers.jobs.append(self.job)
                self.trainer.sit()
                world.run(world.now + END, self._over)
            return self.judge()
        finally:
            roles.Trainer = usual
            world.end()

    def _over(self) -> bool:
        """A player that ended has time to be proven wrong."""
        if not self.trainer.ended:
            return False
        self.until = self.until or self.world.now + AFTER
        return self.world.now >= self.until

    def _deadline(self) -> float | None:
        """The next second in which anything may be over."""
        ends, now = [], self.world.tree.head.time
        for job in self.strangers.jobs:
            state = self.strangers.job(job)
            window = {Phase.CREATED: "accept_window", Phase.ACCEPTED: "claim_window", Phase.CLAIMED: "challenge_window"}
            if state.phase in window:
                ends.append(state.since + getattr(state.spec, window[state.phase]))
            if state.phase is Phase.CLAIMED and state.open:
                ends += [s.deadline for s in self.view.disputes(job) if s.turn is not None]
        later = [end for end in ends if end >= now]
        return min(later) if later else None

    # ---- judgement ----

    def judge(self) -> list[str]:
        found = list(self.trainer.reporter.unforeseen)
        if self.world.inside:
            found += self._trainer_loss()
        return found

    def _trainer_loss(self) -> list[str]:
        """The trainer has its bond, and its reward where it claimed; less gas."""
        found, job, account = [], self.view.job(self.job), self.trainer.account.address
        mine = job.trainer == account
        paid = self._fees(account)
        owned, owed = self.world.tree.balance(account), self.view.credits(account)
        if mine and job.phase is not Phase.FINAL:
            found.append(f"the right claim of the trainer is {job.phase.name}; {self._verdicts()}")
        earned = self.spec.reward if mine and job.phase is Phase.FINAL else 0
        if owned + owed + paid < self.start + earned:
            found.append(f"the trainer has lost {self.start + earned - owned - owed - paid} wei")
        if owed and mine and job.phase is Phase.FINAL:
            found.append(f"the trainer has ended and left {owed} wei in the contract")
        return found + self._late()

    def _late(self) -> list[str]:
        """Nothing is locked longer than others make it."""
        events = [(e, self._time(e)) for e in self._events()]
        final = next((t for e, t in events if e.name == "Finalized"), None)
        claimed = next((t for e, t in events if e.name == "ClaimPosted"), None)
        if final is None or claimed is None:
            return []
        ended = [t for e, t in events if e.name == "Dismissed"]
        due = max([claimed + self.spec.challenge_window, *ended])
        return [f"final {final - due} s after it was due"] if final > due + PROMPT + self.world.left else []

    def _events(self) -> list[Any]:
        return [e for e in map(decode_log, self.world.tree.logs(self.world.tree.head)) if e.args.get("job") == self.job]

    def _time(self, event: Any) -> int:
        return self.world.tree.head.ancestor(event.block).time

    def _verdicts(self) -> str:
        return str([(e.name, e.args.get("dispute"), e.args.get("cause")) for e in self._events() if "cause" in e.args])

    def _fees(self, account: str) -> int:
        block, fees = self.world.tree.head.made, 0
        while block is not None:
            fees += sum(r["fee"] for r in block.receipts or () if r["from"] == account.lower())
            block = block.parent and block.parent.made
        return fees


__all__ = ["Cast", "Story"]
