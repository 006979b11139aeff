"""A delegate: a second machine that defends a trainer's claim, with the same run and its own key. So an outage of the
first machine loses no bond.

The trainer registers the delegate's account (`setDelegate`). A delegate never accepts, claims or withdraws: the money
belongs to the trainer. With a copy of the trainer's delivery folder (key and ciphertext) it also answers requests and
reveals the key.
"""

from __future__ import annotations

from vgame.chain.records import IN_DELIVERY, Dispute, Job, Phase
from vgame.dispute.player import one_of
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain


class Delegate(Trainer):
    """Defends a claim that equals its own run."""

    windows = {}  # noqa: RUF012

    def step(self) -> bool:
        """One round of duties; True if anything was done."""
        self.game.chain.turn()
        job = self.look()
        self.check(job)
        if job.phase in IN_DELIVERY and self.seller:
            return one_of(self.seller.duties(self.game, job, self.attempt))
        if job.phase is not Phase.CLAIMED:
            return False
        self.check_delegate(job)
        return self.defend(job) or self.finish(job)

    def over(self, job: Job, now: int) -> str:
        """The reason why no claim can follow; empty if one is possible."""
        expired = job.phase is Phase.EXPIRED
        return f"job {self.id.hex()[:16]} expired without a claim: there is nothing to defend" if expired else ""

    def check_delegate(self, job: Job) -> None:
        """Raises Abstain unless the account is a delegate and the claim equals the own run: a delegate's posts bind
        the trainer."""
        name, stop = f"job {self.id.hex()[:16]}", self.machine.stop
        if not self.game.is_delegate(self.id, self.address):
            raise Abstain(
                f"{self.address} is no delegate of {name}: its trainer names it with `vgame job delegate` and this "
                "address"
            )
        if (self.run_tree().root, stop.step if stop else 0) != (job.run_root, job.diverged_at):
            raise Abstain(f"{name} is not defended: its claim differs from the run in this store")

    def plays(self, job: Job, d: Dispute) -> bool:
        return True
