"""A second machine that answers for a trainer, with the same run and a key of its own: an outage of the first forfeits
nothing.

The trainer has named its account (`setDelegate`). It never accepts, claims or withdraws: the money is the trainer's.
With a copy of the trainer's delivery folder (key and ciphertext) it also answers requests and reveals the key.
"""

from __future__ import annotations

from vgame.chain.records import IN_DELIVERY, Dispute, Job, Phase
from vgame.dispute.player import one_of
from vgame.dispute.trainer import Trainer
from vgame.errors import Abstain


class Delegate(Trainer):
    """Defends a claim that its own run agrees with."""

    windows = {}  # noqa: RUF012

    def step(self) -> bool:
        """One round of duties; True if anything was done."""
        job = self.look()
        self.check(job)
        if job.phase in IN_DELIVERY and self.seller:
            return one_of(self.seller.duties(self.game, job, self.attempt))
        if job.phase is not Phase.CLAIMED:
            return False
        self.check_delegate(job)
        return self.defend(job) or self.finish(job)

    def over(self, job: Job, now: int) -> str:
        """Why there will be nothing to defend; empty if there may be."""
        expired = job.phase is Phase.EXPIRED
        return f"job {self.id.hex()[:16]} expired before it had a claim: there is nothing to defend" if expired else ""

    def check_delegate(self, job: Job) -> None:
        """What a delegate posts binds the trainer, so it posts nothing for a claim that is not its own run's."""
        name, stop = f"job {self.id.hex()[:16]}", self.machine.stop
        if not self.game.is_delegate(self.id, self.address):
            raise Abstain(
                f"{self.address} is no delegate of {name}: its trainer names it with `vgame job delegate` and this "
                "address"
            )
        if (self.run_tree().root, stop.step if stop else 0) != (job.run_root, job.diverged_at):
            raise Abstain(f"{name} is not defended: its claim is not what this store's run gives")

    def plays(self, job: Job, d: Dispute) -> bool:
        return True
