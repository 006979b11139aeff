"""The client's calls that cost money: requests for missing chunks, higher prices for them, and `decline` instead.

In: a snapshot, the missing chunks. Out: transactions. The rules (rules.py) decide which calls are due, and at which
price.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import Any

from vgame.chain.game import Game
from vgame.chain.records import Phase, Request
from vgame.delivery.fetch import Missing
from vgame.delivery.looks import Looks
from vgame.delivery.rules import (
    STEADY,
    Duty,
    Place,
    Snapshot,
    Unaffordable,
    declining,
    may_pass,
    overdue,
    patience,
    price_of,
    prices_of,
    probing,
    raise_in_time,
    raising,
    requesting,
    undecided,
    unrequested,
)
from vgame.delivery.sealed import Shape
from vgame.errors import ChainError, ContractError, NotYet, Paused, VgameError

HARMLESS = frozenset(
    {
        "AlreadyConfirmed",
        "NotRequested",
        "PriceExceeded",
        "RequestsOpen",
        "TooEarly",
        "TooLate",
        "WrongIndex",
        "WrongPhase",
    }
)
INCLUSION = 15  # seconds until a transaction is in a block
CALL_GAS = 200_000  # more than the limit of a `request` or a `decline` (docs/gas.json)


def call_of(job: bytes, duty: Duty | None) -> tuple[Any, ...] | None:
    """The call of a duty that any account may send, with its arguments."""
    if duty is None:
        return None
    return duty.call, job, duty.request.index if duty.request else int(Phase.DELIVERING)


class Calls:
    """The client's calls for one job. `record`: the source record of a tensor with its path, as the contract expects
    it."""

    def __init__(self, game: Game, job: bytes, shape: Shape, record: Callable[[int], Any]) -> None:
        self.game, self.job, self.shape, self.record = game, job, shape, record
        self.looks = Looks()
        self._since: dict[str, float] = {}  # by reason to decline: the monotonic clock at the first look that showed it
        self._failed: Mapping[int, VgameError] = {}  # requests whose price the last look did not raise
        self._lacking: dict[Place, float] = {}  # by chunk: the monotonic clock at the first look without it

    def _read(self) -> Snapshot:
        return self.looks.read(self.game, self.job)

    def _press(
        self, s: Snapshot, missing: Missing, failed: Mapping[int, VgameError] = MappingProxyType({}),
        hidden: Exception | None = None, unsent: VgameError | None = None,
    ) -> None:  # fmt: skip
        """Send requests in time; `decline` if they cannot help any more, or cannot be paid. `failed`: errors of the
        requests whose price was not raised, which the trainer may drop. `hidden`: the error that prevented fetching.
        `unsent`: the error of the call that returns the whole reward."""
        if not undecided(s):
            return
        wanted = unrequested(s, missing.chunks)
        fresh = self._fresh_among(s, wanted, missing)
        wanted = [place for place in wanted if place not in fresh]
        s = self._priced(s) if wanted else s
        problem: VgameError | None = hidden if isinstance(hidden, ChainError | NotYet) else None
        asked = False
        try:
            for index, (place, price) in enumerate(self._wanted(s, missing, wanted), len(s.requests)):
                if not requesting(s, self._now(s)):
                    break
                asked = True
                self._request(s, index, *place, price)
                wanted.remove(place)
        except VgameError as error:
            problem = error
        if asked:  # each request has taken a block, or more
            s = self._read()
        late = call_of(self.job, overdue(s))
        raises = [failed[r.index] for d in raising(s) if (r := d.request) and r.index in failed]
        problems = [problem, unsent, *raises]
        waits = any(isinstance(p, Paused) for p in [problem, *raises]) or unsent is not None
        waits = waits or (late is not None and self.game.was_sent(*late))
        lacking = bool(wanted or fresh) or not missing.all_known
        shown = {
            "hidden": hidden is not None,
            "unaffordable": isinstance(problem, Unaffordable),
            "failed": problem is not None and problem is not hidden and not isinstance(problem, Unaffordable),
            "missing": lacking and problem is None and hidden is None,
            "raises": bool(raises),
            "unsent": unsent is not None,
        }
        held = self._held(s, {reason for reason, so in shown.items() if so})
        lacking = lacking or bool(raises) or unsent is not None
        s = replace(s, held=min(s.held, held))
        if declining(s, lacking, waits).due and not (may_pass(problems) and requesting(s, s.now)):
            self._attempt("decline", self.job, s.exchange.offer)
        elif problem:
            raise problem

    def _fresh_among(self, s: Snapshot, wanted: Collection[Place], missing: Missing) -> set[Place]:
        """The chunks that have been missing only for a moment: such a short failure of the server is no reason to pay.
        Empty if a later request would be too late."""
        now = time.monotonic()
        lacking = {place: self._lacking.get(place, now) for place in missing.chunks}
        self._lacking = lacking if missing.all_known else self._lacking | lacking  # a failed look shows only a part
        needed = 2 * patience(s) + len(wanted) * min(INCLUSION, s.margin // 16)
        if self.game.chain.is_development or not requesting(s, int(s.now + needed)):
            return set()
        return {place for place in wanted if now - self._lacking[place] < patience(s)}

    def _held(self, s: Snapshot, shown: Collection[str] = ()) -> float:
        """Seconds for which each look has shown the same reason to decline; after the time for requests, any reason. No
        endpoint is asked here, because its error must not reset these times."""
        now = time.monotonic()
        reasons = [*shown, "any"] if shown else []
        self._since = {reason: self._since.get(reason, now) for reason in reasons}
        if self.game.chain.is_development:
            return inf if shown else 0.0
        begun = [since for reason, since in self._since.items() if (reason == "any") != requesting(s, s.now)]
        return now - min(begun, default=now)

    def _now(self, s: Snapshot) -> int:
        """The later of two times, the snapshot's and the newest block's, because a node may lag."""
        return max(s.now, self.game.chain.now())

    def _wanted(self, s: Snapshot, missing: Missing, wanted: list[Place]) -> list[tuple[Place, int]]:
        """The chunks to request now, and their price."""
        if s.left >= s.pressing or not wanted:
            return []
        if missing.all_known and (price := price_of(s, wanted, self.shape.gas_of)) is not None:
            return [(place, price) for place in wanted]
        place = secrets.choice(wanted)
        price = probing(s, place, self.shape.gas_of)
        return [] if price is None else [(place, price)]

    def _priced(self, s: Snapshot) -> Snapshot:
        """The snapshot with the median fees of several endpoints: with one endpoint's false fees, prices would use up
        the budget."""
        if not self.game.chain.turns:
            return s
        base, tip = self.game.chain.fees(of_all=True)
        return replace(s, base=base, tip=tip)

    def _request(self, s: Snapshot, index: int, tensor: int, chunk: int, price: int) -> None:
        """Request a chunk; Unaffordable if it cannot be paid. A request that was sent counts as made until a later look
        shows otherwise."""
        cost = price * self.game.answer_gas(self.job, self.shape.elements[tensor], chunk)
        self._check_funds(s, cost, f"request chunk {chunk} of tensor {tensor}")
        call = ("request", self.job, s.exchange.offer, index, tensor, chunk, price, self.record(tensor))
        try:
            self._attempt(*call, value=cost)
        except VgameError:
            if not self.game.was_sent(*call):
                raise

    def _raise_prices(self, s: Snapshot) -> dict[int, VgameError]:
        """Raise the prices that are due. Returns the errors of requests that were not raised; they stop nothing else.
        While the client can decline, no price is raised unless all can be paid. A later look shows whether a raise had
        an effect."""
        duties = raising(s)
        dear = ChainError("a higher price could make the answers cost more than what the client loses without them")
        failed: dict[int, VgameError] = {d.request.index: dear for d in duties if d.request}
        raises, unpaid = self._affordable(s, duties) if duties else ([], None)
        if unpaid and undecided(s):
            return failed | {r.index: unpaid for r, *_ in raises}
        for r, price, cost in raises:
            try:
                if not raise_in_time(s, self._now(s)):  # no reason to decline, unless it failed before
                    failed.pop(r.index)
                    if r.index in self._failed:
                        failed[r.index] = self._failed[r.index]
                    continue
                self._check_funds(s, cost, f"raise the price of request {r.index}")
                call = ("raise", self.job, r.index, r.tensor, r.chunk, price)
                if self._send(*call, value=cost):
                    del failed[r.index]
                else:
                    failed[r.index] = NotYet(f"the price of request {r.index} was not raised")
            except VgameError as problem:
                failed[r.index] = problem
        self._failed = failed
        return failed

    def _affordable(
        self, s: Snapshot, duties: Sequence[Duty]
    ) -> tuple[list[tuple[Request, int, int]], VgameError | None]:
        """The requests to raise, each with price and cost; and the error if the account cannot pay for all. If it
        cannot pay otherwise, a price for which one wei more suffices is raised only by that."""
        priced, unpaid = self._priced(s), None
        for times in (STEADY, 1):
            prices = prices_of(priced, duties, self.shape.gas_of, times)
            raises = [
                (r, price, (price - r.price) * self.game.answer_gas(self.job, r.elements, r.chunk))
                for d in duties
                if (r := d.request) and (price := prices.get(r.index))
            ]
            try:
                self._check_funds(s, sum(cost for *_, cost in raises), f"raise the price of {len(raises)} requests")
                return raises, None
            except VgameError as problem:
                unpaid = problem
        return raises, unpaid

    def _check_funds(self, s: Snapshot, cost: int, what: str) -> None:
        """Unaffordable if the account cannot pay `cost` and then still decline. Credits in the contract are withdrawn
        first; Paused if the withdrawal has to wait."""
        base, tip = self.game.chain.fees(of_all=True)
        calls, also = (2, " and still decline") if undecided(s) else (1, "")
        needed, address = cost + calls * CALL_GAS * (2 * base + tip), self.game.wallet.address
        if self.game.chain.balance(address) < needed and self.game.credits(address):
            self._send("withdraw", address)
        if (owned := self.game.chain.balance(address)) < needed:
            risk = "is declined for three quarters of the reward" if also else "may end without it, and be paid"
            raise Unaffordable(
                f"{address} has {owned} wei; {needed} are needed to {what}{also}: send it some ether, or the delivery "
                f"{risk}"
            )

    def _attempt(self, name: str, *args: object, value: int = 0) -> bool:
        """Send a call; False if it is no longer needed, or if its pause is not over."""
        with suppress(Paused):
            return self._send(name, *args, value=value)
        return False

    def _send(self, name: str, *args: object, value: int = 0) -> bool:
        """Send a call; False if it is no longer needed."""
        try:
            self.game.move(name, *args, value=value)
        except ContractError as error:
            if error.name not in HARMLESS:
                raise
            return False
        return True
