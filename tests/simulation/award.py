"""The verdict on a story of a bonus: one sentence for each failure of an honest player, none if there is no failure.

In: a story that has ended. docs/bonus.md defines the losses that are allowed.
"""

from __future__ import annotations

from typing import Any

from accuracy import NAMES, deployed, work
from branches import SINK
from evaluations import failures
from judge import PROMPT

from vgame.chain.records import ENDED, Phase

MOST_CALLS = 20  # of the escrow, by one account


class Award:
    """The verdict on a story that has ended."""

    def __init__(self, story: Any) -> None:
        self.story, self.world = story, story.world

    def found(self) -> list[str]:
        story = self.story
        found = [text for p in story.players.values() for text in p.reporter.unforeseen] + self._money()
        self.bonus, self.events = story.strangers.held(), story.strangers.events()
        self.job = story.view.job(story.jobs[0])
        found += self._promises()
        if not self.world.inside:
            return found
        found += [f"the {role} does not end" for role, p in story.players.items() if not p.ended and role != "auditor"]
        return found + [text for role in story.roles for text in getattr(self, f"_{role}")()]

    # ---- money ----

    def _money(self) -> list[str]:
        """No wei is made or lost, and the escrow's balance equals its obligations."""
        story, tree = self.story, self.world.tree
        has = sum(tree.balance(a) for a in {*story.granted, SINK, story.view.address, deployed()[2]})
        found = [] if has == sum(story.granted.values()) else [f"{sum(story.granted.values()) - has} wei are lost"]
        escrow, owned = story.strangers.escrow, tree.balance(deployed()[2])
        bonuses = [escrow.held(bytes(e.args["id"])) for e in story.strangers.events() if e.name == "Promised"]
        owed = sum(escrow.credits(account) for account in story.granted)
        owed += sum(bonus.amount for bonus in bonuses if not bonus.settled_at)
        return found if owned == owed else [*found, f"the escrow has {owned} wei and owes {owed}"]

    def _has(self, role: str) -> int:
        """A player's wei at the end, plus its wei spent on gas."""
        account, fees, block = self.story.players[role].account.address, 0, self.world.tree.head.made
        while block is not None:
            fees += sum(r["fee"] for r in block.receipts or () if r["from"] == account.lower())
            block = block.parent and block.parent.made
        return self.world.tree.balance(account) + self._owed(role) + fees

    def _owed(self, role: str) -> int:
        account, story = self.story.players[role].account.address, self.story
        return story.view.credits(account) + story.strangers.escrow.credits(account)

    @property
    def _paid(self) -> bool:
        return bool(self.bonus and self.bonus.paid)

    def _promises(self) -> list[str]:
        """An honest payer promises once; no total below the mark is paid."""
        found = []
        if "payer" in self.story.roles:
            count = sum(e.name == "Promised" and e.args["payer"] == self._account("payer") for e in self.events)
            found += [f"the payer has promised {count} times"] if count > 1 else []
        right = work().total
        low = [e for e in self.events if e.name == "Paid" and (right < self.story.least or e.args["total"] != right)]
        return found + [f"{e.args['total']} is paid" for e in low if self.world.inside and self._is_audited]

    @property
    def _is_audited(self) -> bool:
        """Whether a false evaluation would be disputed: by an auditor with enough money."""
        return "auditor" not in self.story.roles or self.story.rich

    @property
    def _more(self) -> int:
        """Wei that other bonuses have paid to the trainer of the training."""
        held = (self.story.strangers.escrow.held(bytes(e.args["id"])) for e in self.events if e.name == "Promised")
        return sum(b.amount for b in held if b.paid and b.payer != (self.bonus and self.bonus.payer))

    def _account(self, role: str) -> str:
        return str(self.story.players[role].account.address)

    # ---- players ----

    def _trainer(self) -> list[str]:
        """The trainer is paid everything that it earned, and sends no call that costs it the bonus."""
        story, mine = self.story, self.job.trainer == self._account("trainer")
        notes = story.players["trainer"].notes
        trained = mine and self.job.phase is Phase.FINAL
        won = trained * story.spec.reward + (self.bonus.amount if mine and self._paid else 0) + mine * self._more
        lost = story.start["trainer"] + won - self._has("trainer")
        found = [f"the trainer has lost {lost} wei"] if lost > 0 else []
        if mine and not trained:
            found.append(f"the right claim of the trainer is {self.job.phase.name}")
        if trained and notes.get("checked") and not self._paid and work().total >= story.least and not story.poor:
            found.append("the trainer has earned the bonus and is not paid")
        if notes.get("checked") and story.trap:
            found.append(f"the trainer believes a promise with a trap: {story.trap}")
        if notes.get("refused") and not story.trap and not story.poor and "lie" not in self.world.enabled:
            found.append(f"the trainer refuses a sound bonus: {notes['refused']}")
        if notes.get("nonce"):
            found.append(f"the trainer has evaluated {notes['nonce']} times in vain")
        if (left := self._owed("trainer")) > self._more:  # the trainer does not know of other bonuses
            found.append(f"the trainer has ended and left {left} wei")
        if mine and self.bonus and self.bonus.since and "giveBack" in self._calls("trainer"):
            found.append("the trainer has given its bonus back")
        return found + self._few("trainer")

    def _payer(self) -> list[str]:
        """The payer gets the money that was not earned back, and soon."""
        story, paid = self.story, self._paid
        spent = (self.job.phase is Phase.FINAL) * story.spec.reward + (self.bonus.amount if paid else 0)
        lost = story.start["payer"] - spent - self._has("payer")
        found = [f"the payer has lost {lost} wei"] if lost > 0 else []
        if self.bonus and not self.bonus.settled_at:
            found.append("the bonus is stuck")
        if self.job.phase not in (Phase.NONE, Phase.CONVICTED, *ENDED):
            found.append(f"the payer's training is {self.job.phase.name} for ever")
        if self.bonus and self.bonus.settled_at and not paid and self.bonus.since:
            late = self.bonus.settled_at - self.bonus.since - self.bonus.window - PROMPT - story.pace - self.world.left
            found += [f"the bonus is given back {late} s too late"] if late > 0 else []
        if self._owed("payer"):
            found.append(f"the payer has ended and left {self._owed('payer')} wei")
        return found + self._few("payer")

    def _auditor(self) -> list[str]:
        """The auditor loses no stake, and no false evaluation is paid."""
        lost = self.story.start["auditor"] - self._has("auditor")
        return failures(self.story) + [f"the auditor has lost {lost} wei"] * (lost > 0)

    def _calls(self, role: str) -> list[str]:
        """The role's successful calls of the escrow, from the blocks."""
        block, found, account = self.world.tree.head.made, list[str](), self._account(role).lower()
        while block is not None:
            mine = [r for r in block.receipts or () if r["from"] == account and r["status"]]
            found += [NAMES[r["tx"].data[:4]] for r in mine if r["tx"].to == deployed()[2]]
            block = block.parent and block.parent.made
        return found

    def _few(self, role: str) -> list[str]:
        """The gas for a bonus is bounded."""
        account = self._account(role).lower()
        sent = {(tx.nonce, tx.data) for tx in self.world.signed.values() if tx.sender == account}
        mine = [data for _, data in sent if data[:4] in NAMES]
        return [f"the {role} has made {len(mine)} calls of the escrow"] if len(mine) > MOST_CALLS else []


__all__ = ["Award"]
