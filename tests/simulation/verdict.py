"""The verdict on a sale: one sentence for each failure of an honest player, none if there is no failure.

In: a sale that has ended. docs/delivery.md defines the losses that are allowed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from branches import Block
from disk import FULL
from market import OVER
from provider import EVER
from revm_calls import SELECTORS, decode_log
from shelf import elements

from vgame.chain.records import Job, Phase
from vgame.delivery.rules import OWN_GAS
from vgame.delivery.sealed import Shape

SHORTLY = 120  # seconds between a look and its transactions, at most


class Verdict:
    """The verdict on a sale that has ended."""

    def __init__(self, sale: Any) -> None:
        self.sale, self.world = sale, sale.world

    def found(self) -> list[str]:
        sale, world = self.sale, self.world
        found = [text for p in sale.players.values() for text in p.reporter.unforeseen if FULL not in text]
        if not world.inside:
            return found
        job = sale.view.job(sale.jobs[0])
        self.events = [decode_log(log) for log in world.tree.logs(world.tree.head)]
        if job.phase not in OVER:
            found.append(f"the job does not end: it is {job.phase.name}")
        lasting = [role for role, p in sale.players.items() if not p.ended]
        found += [f"the {role} does not end" for role in lasting if role == "seller" or not self._unseen()]
        return found + [text for role in sale.roles for text in getattr(self, f"_{role}")(job)]

    def _blocks(self) -> list[Block]:
        return [block for block in self.world.tree.head.line if block.number <= self.world.tree.head.number]

    def _has(self, role: str) -> int:
        """A player's wei at the end, plus its wei spent on gas."""
        account, fees, block = self.sale.players[role].account.address, 0, self.world.tree.head.made
        while block is not None:
            fees += sum(r["fee"] for r in block.receipts or () if r["from"] == account.lower())
            block = block.parent and block.parent.made
        return self.world.tree.balance(account) + self.sale.view.credits(account) + fees

    def _paid(self) -> int:
        return sum(e.args["pay"] for e in self.events if e.name == "Answered")

    def _seller(self, job: Job) -> list[str]:
        """The trainer is paid, or the state was declined and the key is still secret."""
        sale, account = self.sale, self.sale.players["seller"].account.address
        if job.trainer != account:
            return []
        reward = sale.spec.reward
        earned = {Phase.FINAL: reward, Phase.DECLINED: reward // 4}.get(job.phase)
        if earned is None:
            return [f"the honest trainer ends {job.phase.name}"]
        lost = sale.start["seller"] + earned + self._paid() - self._has("seller")
        found = [f"the trainer has lost {lost} wei"] if lost > 0 else []
        if sale.view.credits(account):
            found.append("the trainer has ended and left wei in the contract")
        keys = [tx for tx in self.world.signed.values() if tx.data[:4] == bytes(SELECTORS["revealKey"])]
        if keys and job.phase is Phase.DECLINED:
            found.append("the key is out, and the state was declined")
        return found

    # ---- the client ----

    def _buyer(self, job: Job) -> list[str]:
        """The client has the state, or its money minus the cost of `decline`."""
        sale, reward = self.sale, self.sale.spec.reward
        spent = {Phase.FINAL: reward, Phase.DECLINED: reward - reward // 4}.get(job.phase, 0)
        lost = sale.start["buyer"] - spent - self._paid() - self._has("buyer")
        found = [f"the client has lost {lost} wei"] if lost > 0 else []
        if job.phase is Phase.FINAL and not sale.received and not self._unseen():
            found.append("the client has paid and has no state")
        possible = (sale.rich and not self._too_dear()) or "seller" in sale.roles
        if job.phase is Phase.DECLINED and possible and not self._offer_hidden():
            found.append("the client declined what it could have had")
        return found + self._answers()

    def _unseen(self) -> bool:
        """Whether the endpoint hid the paid data, which are on chain: for ever, or for as long as the client could
        decline or complain."""
        hidden, cheat = self.sale.hidden(self.sale.players["buyer"]), "seller" not in self.sale.roles
        exchange, spec = self.sale.view.exchange(self.sale.jobs[0]), self.sale.spec
        last = exchange.until - spec.confirm_window // 10
        if exchange.key_at:
            last = min(last, exchange.key_at + spec.complaint_window)
        return hidden >= EVER or (cheat and hidden > last)

    def _offer_hidden(self) -> bool:
        return self.sale.hidden(self.sale.players["buyer"], "Offered") > 0

    @property
    def _gas(self) -> dict[tuple[int, int], int]:
        """The most gas of each chunk's answer."""
        shape = Shape(elements())
        return {(t, c): shape.gas_of(t, c) for t, count in enumerate(shape.chunks) for c in range(count)}

    def _budget(self, decided: bool = False) -> int:
        """The client's loss without the answers."""
        reward = self.sale.spec.reward
        return reward if decided else reward - reward // 4

    def _too_dear(self) -> bool:
        """Whether answers to all chunks that are not on chain, and the client's own calls, could cost more than the
        budget at the highest base fee that occurred."""
        requests, gas = self.sale.view.requests(self.sale.jobs[0]), self._gas
        here = [r for r in requests if r.answered_at and not r.dropped]
        rest = [gas[place] for place in gas if place not in {(r.tensor, r.chunk) for r in here}]
        top = max(block.base_fee for block in self._blocks())
        own, budget = OWN_GAS * (top + self.world.tip), self._budget()
        paid = sum(gas[r.tensor, r.chunk] * r.price for r in here) + len(requests) * own
        return sum(rest) * top + len(rest) * own > min(budget, 2 * budget - paid)

    def _answers(self) -> list[str]:
        """No chunk is paid twice. Open requests keep to the budget, all requests to twice the budget; probes of a
        server that serves nothing keep to a quarter of it, or to one answer."""
        requests, gas = self.sale.view.requests(self.sale.jobs[0]), self._gas
        asked = [r for r in requests if not r.dropped]
        found = [
            f"chunk {chunk} of tensor {tensor} is requested {count} times"
            for (tensor, chunk), count in Counter((r.tensor, r.chunk) for r in asked).items()
            if count > 1
        ]
        least = min(block.base_fee for block in self._blocks())
        tested = not self.sale.shelf.served and "prices" not in self.world.enabled
        if tested and least * sum(gas.values()) > self._budget() and len(asked) > 1:
            cost = sum(gas[r.tensor, r.chunk] * r.price for r in asked)
            found += [f"tests cost {cost} wei of a budget of {self._budget()}"] if cost > self._budget() // 4 else []
        return found + self._bound()

    def _bound(self) -> list[str]:
        """The bound after each request and raise. The wei that end deferrals are not counted."""
        until, spare, confirmed = self.sale.view.exchange(self.sale.jobs[0]).until, 0, False
        price: dict[int, int] = {}
        gas: dict[int, int] = {}
        ended: dict[int, int] = {}  # the cost of answered requests
        for e in self.events:
            index = e.args.get("index")
            match e.name:
                case "Confirmed":
                    confirmed = True
                case "Requested":
                    price[index], gas[index] = e.args["price"], e.args["deposit"] // e.args["price"]
                case "Raised":
                    price[index], spare = e.args["price"], spare + gas[index]
                case "Answered":
                    ended[index] = price.pop(index) * gas[index]
                case "Dropped":
                    del price[index]
            time = self.world.tree.head.ancestor(e.block).time
            decided = confirmed or time > until - SHORTLY or "times" in self.world.enabled
            budget = self._budget(decided)
            open_ = sum(price[i] * gas[i] for i in price)
            if e.name in ("Requested", "Raised") and open_ > budget + spare:
                return [f"open requests cost {open_} wei of a budget of {budget}"]
            if e.name in ("Requested", "Raised") and open_ + sum(ended.values()) > 2 * budget + spare:
                return [f"all requests cost {open_ + sum(ended.values())} wei, more than twice a budget of {budget}"]
        return []


__all__ = ["Verdict"]
