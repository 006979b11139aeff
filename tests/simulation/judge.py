"""The verdict on a story: one sentence for each failure of an honest player, none if there is no failure."""

from __future__ import annotations

from typing import Any

from branches import BLOCK
from revm_calls import decode_log
from seats import table

from vgame.chain.records import LOST, STANDING, Phase, Status
from vgame.commit.trees import run_tree

PAYING = {"Convicted", "Dismissed", "Refunded", "Finalized"}
PROMPT = 20 * BLOCK  # the time that an honest player has for a due call


class Judge:
    """The verdict on a story that has ended."""

    def __init__(self, story: Any) -> None:
        self.story, self.world = story, story.world

    def found(self) -> list[str]:
        story, world = self.story, self.world
        found = [text for player in story.players.values() for text in player.reporter.unforeseen]
        events = [decode_log(log) for log in world.tree.logs(world.tree.head)]
        if "auditor" in story.roles:
            found += self._stakes(events)
        if world.inside:
            for role in story.roles:
                found += self._loss(role) + (self._trainer(events) if role == "trainer" else self._auditor())
            if "auditor" in story.roles:
                found += self._left(events)
        return found

    def _loss(self, role: str) -> list[str]:
        """An honest player ends with at least its initial money, minus its gas, plus an earned reward."""
        story, account = self.story, self.story.players[role].account.address
        owned, owed = self.world.tree.balance(account), story.view.credits(account)
        job = story.view.job(story.jobs[0])
        won = role == "trainer" and job.trainer == account and job.phase is Phase.FINAL
        lost = story.start[role] + won * story.spec.reward - owned - owed - self._fees(account)
        found = [f"the {role} has lost {lost} wei"] if lost > 0 else []
        if owed and won:
            found.append(f"the {role} has ended and left {owed} wei in the contract")
        return found

    def _left(self, events: list[Any]) -> list[str]:
        """The auditor never ends; it withdraws its credits soon after the last event that pays."""
        owed = self.story.view.credits(self.story.players["auditor"].account.address)
        paid = max((self._time(e) for e in events if e.name in PAYING), default=0)
        late = self.world.tree.head.time - paid - PROMPT - self.world.left
        return [f"the auditor has left {owed} wei in the contract"] if owed and late > 0 else []

    def _fees(self, account: str) -> int:
        block, fees = self.world.tree.head.made, 0
        while block is not None:
            fees += sum(r["fee"] for r in block.receipts or () if r["from"] == account.lower())
            block = block.parent and block.parent.made
        return fees

    # ---- the trainer ----

    def _trainer(self, events: list[Any]) -> list[str]:
        """A right claim becomes final soon after its window and the last dispute."""
        story, name = self.story, self.story.jobs[0]
        job = story.view.job(name)
        if job.trainer != story.players["trainer"].account.address:
            return []
        mine = [e for e in events if e.args.get("job") == name]
        if job.phase is not Phase.FINAL:
            ends = [(e.name, e.args["dispute"], e.args["cause"]) for e in mine if "cause" in e.args][-3:]
            return [f"the right claim of the trainer is {job.phase.name} {ends}"]
        times = {e.name: self._time(e) for e in mine}
        ended = [self._time(e) for e in mine if e.name == "Dismissed"]
        due = max([times["ClaimPosted"] + story.spec.challenge_window, *ended])
        late = times["Finalized"] - due - PROMPT - self.world.left
        return [f"final {late} s too late"] if late > 0 else []

    def _time(self, event: Any) -> int:
        return self.world.tree.head.ancestor(event.block).time

    # ---- the auditor ----

    def _stakes(self, events: list[Any]) -> list[str]:
        """The auditor never has two open disputes about one claim."""
        account, found = self.story.players["auditor"].account.address, []
        for job in self.story.jobs:
            open_: set[int] = set()
            for e in (e for e in events if e.args.get("job") == job):
                if e.name == "Challenged" and e.args["auditor"] == account:
                    open_.add(e.args["dispute"])
                    if len(open_) > 1:
                        found.append(f"two stakes on one claim: disputes {sorted(open_)}")
                if e.name in ("Dismissed", "Convicted", "Refunded"):
                    open_.discard(e.args["dispute"])
        return found

    def _auditor(self) -> list[str]:
        """Each false claim is convicted, no right run is disputed, no dispute is lost, no bond is left behind, and all
        jobs end. A lie that no checkpoint shows may become final, or be convicted."""
        story, found = self.story, []
        account, right = story.players["auditor"].account.address, honest_root()
        for number, name in enumerate(story.jobs):
            job = story.view.job(name)
            if job.phase is Phase.NONE or not job.claimed_at:
                continue
            false = job.run_root != right or job.diverged_at > 0
            mine = [s.dispute for s in story.view.all_disputes(name) if s.dispute.auditor == account]
            found += [
                f"job {number}: a dispute ended {d.status.name} at {d.level.name}" for d in mine if d.status in LOST
            ]
            if mine and story.strangers.lies.get(name, -1) == -1:
                found.append(f"job {number}: the right claim was disputed")
            if job.phase in (Phase.ACCEPTED, Phase.CLAIMED):
                found.append(f"job {number} does not end")
            if false and story.rich and job.phase in STANDING:
                found.append(f"job {number}: the false claim is final")
            if job.phase is Phase.CONVICTED and any(d.status is Status.OPEN for d in mine):
                found.append(f"job {number}: a bond was left after the conviction")
        return found


def honest_root() -> bytes:
    machine = table()
    return run_tree(machine.checkpoints, len(machine.checkpoints), None).root


__all__ = ["Judge"]
