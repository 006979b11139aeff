"""Sellers and clients with one rule of delivery broken: the simulator has to find every one of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import vgame.delivery.buyer as buying
import vgame.delivery.calls as calls
import vgame.delivery.rules as rules
import vgame.delivery.seller as selling
from vgame.delivery.rules import Duty, Snapshot

Patches = tuple[tuple[Any, str, Any], ...]


def never(call: str) -> Patches:
    """The trainer never sends it."""

    def duties(s: Snapshot) -> list[Duty]:
        return [duty for duty in rules.selling(s) if duty.call != call]

    return ((selling, "selling", duties),)


def first_only(s: Snapshot) -> list[Duty]:
    """Only the request that came first is looked at."""
    waiting = sorted((d for d in rules.selling(s) if d.request), key=lambda duty: duty.request.index)
    return waiting[:1] or rules.selling(s)


def newest_block(s: Snapshot) -> list[Duty]:
    """The key goes out as soon as the newest block shows the confirmation."""
    return rules.selling(replace(s, final=s.now, held=inf))


def final_only(s: Snapshot) -> list[Duty]:
    """The key never goes out before its time is over."""
    return [duty for duty in rules.selling(s) if duty.call != "revealKey" or s.now > s.key_by]


def no_call(*_: Any, **__: Any) -> None:
    return None


def nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def unseen(s: Snapshot, offer: bytes | None) -> Duty:
    """Confirmed when a ciphertext is here, whatever offer it belongs to."""
    return rules.confirming(s, offer and s.exchange.offer)


def too_early(s: Snapshot, lacking: bool, waits: bool = False) -> Duty:
    """Declined as soon as anything is missing."""
    return replace(rules.declining(s, lacking, waits), due=rules.undecided(s) and lacking)


def not_declined(s: Snapshot, lacking: bool, waits: bool = False) -> Duty:
    return replace(rules.declining(s, lacking, waits), due=False)


class Silent(buying.Buyer):
    """It sees what is wrong, and does not complain."""

    def _complain(self, name: str, text: str, *args: object) -> None:
        return None


class Endless(buying.Buyer):
    """It fetches as long as something is served."""

    def _get(self, name: str, first: int, size: int) -> bytes:
        return self.get(name, first, size)


class Once(buying.Buyer):
    """What it has fetched once is for every offer."""

    def fetch(self) -> Any:
        return self._fetched[1] if self._fetched else FETCH(self)


class Empty(buying.Buyer):
    """It spends all on requests."""

    def _check_funds(self, cost: int, what: str) -> None:
        return None


FETCH = buying.Buyer.fetch
BROKEN: dict[str, Patches] = {
    **{f"never {call}": never(call) for call in ("answer", "defer", "revealKey", "closeDelivery")},
    "answers the first request only": ((selling, "selling", first_only),),
    "trusts the newest block": ((selling, "selling", newest_block),),
    "reveals too late": ((selling, "selling", final_only),),
    "never calls what is overdue": ((buying, "overdue", no_call), (calls, "overdue", no_call)),
    "confirms unseen": ((buying, "confirming", unseen), (buying.Buyer, "fetch", Once.fetch)),
    "declines too early": ((calls, "declining", too_early),),
    "never declines": ((calls, "declining", not_declined),),
    "never requests": ((buying.Buyer, "_wanted", nothing),),
    "never raises": ((calls, "raising", nothing),),
    "never complains": ((buying.Buyer, "_complain", Silent._complain),),
    "fetches without end": ((buying.Buyer, "_get", Endless._get),),
    "keeps nothing to decline": ((buying.Buyer, "_check_funds", Empty._check_funds),),
}
