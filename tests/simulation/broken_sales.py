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
    """A trainer that never makes this call."""

    def duties(s: Snapshot) -> list[Duty]:
        return [duty for duty in rules.selling(s) if duty.call != call]

    return ((selling, "selling", duties),)


def first_only(s: Snapshot) -> list[Duty]:
    """Only the first request is answered."""
    waiting = sorted((d for d in rules.selling(s) if d.request), key=lambda duty: duty.request.index)
    return waiting[:1] or rules.selling(s)


def newest_block(s: Snapshot) -> list[Duty]:
    """The key is revealed as soon as the newest block shows the confirmation."""
    return rules.selling(replace(s, final=s.now, held=inf))


def final_only(s: Snapshot) -> list[Duty]:
    """The key is revealed only after its deadline."""
    return [duty for duty in rules.selling(s) if duty.call != "revealKey" or s.now > s.key_by]


def no_call(*_: Any, **__: Any) -> None:
    return None


def nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def unseen(s: Snapshot, offer: bytes | None) -> Duty:
    """The client confirms with any stored ciphertext, even of another offer."""
    return rules.confirming(s, offer and s.exchange.offer)


def too_early(s: Snapshot, lacking: bool, waits: bool = False) -> Duty:
    """The client declines as soon as any data are missing."""
    return replace(rules.declining(s, lacking, waits), due=rules.undecided(s) and lacking)


def not_declined(s: Snapshot, lacking: bool, waits: bool = False) -> Duty:
    return replace(rules.declining(s, lacking, waits), due=False)


class Silent(buying.Buyer):
    """It never complains, even about a wrong node or leaf."""

    def _complain(self, name: str, text: str, *args: object) -> None:
        return None


class Endless(buying.Buyer):
    """It fetches without a time limit."""

    def _get(self, name: str, first: int, size: int) -> bytes:
        return self.get(name, first, size)


class Once(buying.Buyer):
    """It uses data that it fetched once for every offer."""

    def fetch(self) -> Any:
        return self._fetched[1] if self._fetched else FETCH(self)

    def _verified_now(self) -> bool:
        return True


class Empty(buying.Buyer):
    """It reserves no money for `decline`."""

    def _check_funds(self, *_: object) -> None:
        return None


# ---- the cost of answers ----


def without_bound(s: Snapshot, gas: rules.Gas) -> int:
    return 10**30


def any_probe(s: Snapshot, place: rules.Place, gas: rules.Gas) -> int | None:
    """A single probe may use the whole budget."""
    if s.left <= s.margin or s.exchange.open:
        return None
    return rules.price_of(s, [place], gas)


def any_raise(s: Snapshot, duties: Any, gas: rules.Gas) -> dict[int, int]:
    return {d.request.index: rules.STEADY * s.base for d in duties if d.request}


def asked_again(s: Snapshot, missing: Any) -> list[rules.Place]:
    """An answered chunk that is missing is requested again."""
    asked = {(r.tensor, r.chunk) for r in s.open}
    return [place for place in missing if place not in asked]


def outgrown_only(s: Snapshot) -> list[Duty]:
    """A deferral is not ended while the base fee is below the price."""
    return [duty for duty in rules.raising(s) if duty.request and s.base > duty.request.price]


FETCH = buying.Buyer.fetch
BROKEN: dict[str, Patches] = {
    **{f"never {call}": never(call) for call in ("answer", "defer", "revealKey", "closeDelivery")},
    "answers the first request only": ((selling, "selling", first_only),),
    "trusts the newest block": ((selling, "selling", newest_block),),
    "reveals too late": ((selling, "selling", final_only),),
    "never calls what is overdue": ((buying, "overdue", no_call), (calls, "overdue", no_call)),
    "confirms unseen": (
        (buying, "confirming", unseen),
        (buying.Buyer, "fetch", Once.fetch),
        (buying.Buyer, "_verified_now", Once._verified_now),
    ),
    "declines too early": ((calls, "declining", too_early),),
    "never declines": ((calls, "declining", not_declined),),
    "never requests": ((buying.Buyer, "_wanted", nothing),),
    "never raises": ((calls, "raising", nothing),),
    "never complains": ((buying.Buyer, "_complain", Silent._complain),),
    "fetches without end": ((buying.Buyer, "_get", Endless._get),),
    "keeps nothing to decline": ((buying.Buyer, "_check_funds", Empty._check_funds),),
    "pays for answers without a bound": ((rules, "room", without_bound), (calls, "probing", any_probe)),
    "raises without a bound": ((calls, "prices_of", any_raise),),
    "requests answered chunks again": ((calls, "unrequested", asked_again),),
    "ends no deferral": ((calls, "raising", outgrown_only),),
}
