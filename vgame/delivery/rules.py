"""The duties of seller and client in a delivery, decided on one block.

In: a snapshot of the job. Out: duties, each with its deadline and its reason. The rules are pure: no chain, no clock,
no files; only `read` asks the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from vgame.chain.connection import FINALITY
from vgame.chain.final import MOMENT
from vgame.chain.game import Game
from vgame.chain.pauses import PAUSE
from vgame.chain.records import MOST_REQUESTS, Exchange, Job, Phase, Request
from vgame.errors import ChainError, Paused, VgameError

WORST_INCLUSION = 600  # seconds before its deadline at which the key is sent at the latest
STEADY = 4  # a request's price holds up to this multiple of the base fee
OWN_GAS = 120_000  # of a `request`, at most (docs/gas.json); a `raise` counts the same
Place = tuple[int, int]  # tensor, chunk
Gas = Callable[[int, int], int]  # (tensor, chunk) -> maximum gas of the answer


class Unaffordable(ChainError):
    """The account cannot pay a call and still decline."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job in delivery after one block. `base`, `tip`: wei per gas. `final`: time of the last final block, 0 if no
    duty depends on it. `held`: seconds for which each look has shown the conditions of an irreversible call: for the
    seller, the client's decision; for the client, the time to decline and a reason for it."""

    number: int
    now: int
    base: int
    job: Job
    exchange: Exchange
    requests: tuple[Request, ...]
    final: int = 0
    held: float = inf
    tip: int = 0

    @property
    def own(self) -> int:
        """Wei that a call of the client costs it, for a request or a higher price."""
        return OWN_GAS * (self.base + self.tip)

    @property
    def open(self) -> list[Request]:
        """The requests that are not answered; first the one whose time began first."""
        return sorted((r for r in self.requests if r.open), key=lambda r: r.since)

    @property
    def left(self) -> int:
        """Seconds left of the confirm window."""
        return self.exchange.until - self.now

    @property
    def key_by(self) -> int:
        """The deadline of the key."""
        return self.exchange.key_from + self.job.spec.key_window

    @property
    def margin(self) -> int:
        """Seconds before the end of the confirm window from which on `decline` may be due."""
        return self.job.spec.confirm_window // 10

    @property
    def pressing(self) -> int:
        """Seconds before the end of the confirm window from which on chunks are requested."""
        return max(self.job.spec.confirm_window // 2, self.job.spec.key_window + 2 * self.margin)

    def decided(self, time: int) -> bool:
        """By this time, had the client confirmed, or had the window ended?"""
        exchange = self.exchange
        return exchange.key_from <= time if exchange.confirmed_at else exchange.until < time

    @property
    def late(self) -> bool:
        """Must the key be sent now, even if the confirmation is not final? Otherwise reward and bond are lost."""
        return self.now >= self.late_from

    @property
    def late_from(self) -> int:
        """The time from which on the key must be sent."""
        return self.key_by - min(WORST_INCLUSION, self.job.spec.key_window // 2)


@dataclass(frozen=True, slots=True)
class Duty:
    """A call that a role owes. `due`: it is sent now; `by`: its deadline, None if it has none; `begun`: the start of
    the time for it."""

    call: str
    due: bool
    why: str
    by: int | None = None
    begun: int = 0
    request: Request | None = None


def read(game: Game, job: bytes) -> Snapshot:
    """A snapshot of a delivery, all of it after one block."""
    with game.chain.pinned() as block:
        exchange, (base, tip) = game.exchange(job), game.chain.fees()
        found = Snapshot(block.number, block.time, base, game.job(job), exchange, tuple(game.requests(job)), tip=tip)
        waits = found.job.phase is Phase.DELIVERING and not exchange.open and found.decided(found.now)
        if not waits or found.late:
            return found
        return replace(found, final=game.chain.final_time(found.job.spec.key_window // 2))


# ---- the seller ----


def selling(s: Snapshot) -> list[Duty]:
    """The duties of the account with the key, by deadline."""
    if s.job.phase is Phase.REVEALED:
        end = s.exchange.key_at + s.job.spec.complaint_window
        why = "no complaint came in time" if s.now > end else "the client may complain still"
        return [Duty("closeDelivery", s.now > end, why)]
    if s.job.phase is not Phase.DELIVERING:
        return []
    return [*(_answering(s, request) for request in s.open), _revealing(s)]


def _answering(s: Snapshot, request: Request) -> Duty:
    """While the base fee is above a request's price: its time is restarted (`defer`) when half of it is over, and then
    the request is dropped if the client does not raise the price for a key window. A request whose time is over can
    only be answered."""
    window = s.job.spec.key_window
    by, price = request.since + window, request.price
    if s.base <= price:
        return Duty("answer", True, f"request {request.index} holds its price", by, request.since, request)
    if s.now >= by:
        return Duty("answer", True, f"request {request.index} cannot be deferred any more", by, request.since, request)
    dropped = bool(request.deferred_at) and s.now > request.deferred_at + window
    due = dropped or s.now > request.since + window // 2
    why = f"the base fee of {s.base} is above the price of request {request.index}, {price}"
    return Duty("defer", due, why, by, request.since, request)


def _revealing(s: Snapshot) -> Duty:
    """The key is revealed when the confirmation, or the end of the window without one, is final, because a key cannot
    be taken back. If that takes too long, it is revealed when the newest block shows it and the key must be sent."""

    def duty(due: bool, why: str) -> Duty:
        return Duty("revealKey", due, why, s.key_by, s.exchange.key_from)

    if s.exchange.open:
        return duty(False, f"{s.exchange.open} requests are open")
    if not s.decided(s.now):
        return duty(False, "the client may decline still")
    if s.late:
        return duty(s.held >= min(MOMENT, s.job.spec.key_window // 20), "it is due, final or not")
    final = s.decided(s.final) and s.held >= min(FINALITY, s.job.spec.key_window // 2)
    return duty(final, f"the confirmation is {'final' if final else 'not final yet'}")


# ---- the client ----


def overdue(s: Snapshot) -> Duty | None:
    """The call that returns the reward if the trainer has not answered, or not revealed the key, in time; None if there
    is none."""
    if s.job.phase is not Phase.DELIVERING:
        return None
    for request in s.open:
        if s.now > request.since + s.job.spec.key_window and s.base <= request.price:
            return Duty("refused", True, f"request {request.index} was not answered in time", request=request)
    if not s.exchange.open and s.now > s.key_by:
        return Duty("closeDelivery", True, "the key did not come in time")
    return None


def raising(s: Snapshot) -> list[Duty]:
    """Requests that need a higher price. A deferred one before the trainer may drop it, even if the base fee is not
    above its price, because a raise ends the deferral. One below the base fee after twice the time for an answer,
    because `refused` needs a price that holds; and in the last tenth of the confirm window, because a request that is
    dropped later cannot be made again."""
    window, last, found = s.job.spec.key_window, undecided(s) and s.left <= s.margin, []
    for r in s.open:
        outgrown = s.base > r.price
        if r.deferred_at:
            in_time = outgrown or s.now <= r.since + window  # otherwise `refused` is due
            due = (last and outgrown) or (in_time and s.now > r.deferred_at + window // 2)
            duty = Duty("raise", True, f"request {r.index} is deferred", r.deferred_at + window, r.deferred_at, r)
        else:
            due = outgrown and (last or s.now > r.since + 2 * window)
            duty = Duty("raise", True, f"request {r.index} is late", None, r.since, r)
        if due:
            found.append(duty)
    return found


def raise_in_time(s: Snapshot, now: int) -> bool:
    """Is there time to raise a price? Before the end of the confirm window time is left for `decline`; after it, prices
    can be raised too."""
    before = s.exchange.until - min(s.margin // 2, WORST_INCLUSION)
    return not undecided(s) or now < before or now > s.exchange.until


def short_look(s: Snapshot) -> int:
    """Seconds: a twentieth of the confirm window, which leaves several looks to a process that is restarted; never
    longer than a quarter of the complaint window, which may begin meanwhile."""
    return max(1, min(s.job.spec.confirm_window // 20, s.job.spec.complaint_window // 4))


def look_end(s: Snapshot) -> int:
    """The time at which fetching ends: when requests become due; later, after a short look or half of the remaining
    time, and at the latest when `decline` becomes due, so that time is left for calls. While a request is open,
    fetching lasts at most an eighth of a key window, so that its price is compared with the base fee several times in
    each half."""
    longest = short_look(s)
    if s.open:
        longest = min(longest, s.job.spec.key_window // 8)
    if s.left >= s.pressing:
        end = s.exchange.until - s.pressing + 1
        return min(end, s.now + longest) if s.open else end
    if s.left > 0:
        longest = max(1, min(s.left // 2, longest))
    return min(s.now + longest, s.exchange.until - s.margin) if s.left > s.margin else s.now + longest


def requesting(s: Snapshot, now: int) -> bool:
    """Is there time for another request? The second half of the last tenth is for `decline`."""
    return now < s.exchange.until - s.margin // 2


def patience(s: Snapshot) -> float:
    """Seconds for which a reason must have lasted, to request chunks or to decline."""
    return min(MOMENT, s.margin // 8)


def unrequested(s: Snapshot, missing: Sequence[Place]) -> list[Place]:
    """Missing chunks without an open or answered request. An answered chunk is on chain, even if its log is not shown;
    a dropped one is not."""
    asked = {(r.tensor, r.chunk) for r in s.requests if not r.dropped}
    return [place for place in missing if place not in asked]


def undecided(s: Snapshot) -> bool:
    """Can the client still confirm or decline?"""
    return s.job.phase is Phase.DELIVERING and not s.exchange.confirmed_at and s.left > 0


def declining(s: Snapshot, lacking: bool, waits: bool = False) -> Duty:
    """`lacking`: more chunks are missing than are requested or answered, or can be paid. `waits`: a withdrawal, or the
    call that returns the whole reward, waits for the end of its pause, and may make declining unnecessary; so it is due
    as late as possible."""
    begun = s.exchange.until - (min(2 * int(PAUSE), s.margin) if waits else s.margin)
    due = undecided(s) and s.now >= begun and lacking and s.held >= patience(s)
    return Duty("decline", due, "more is missing than is requested", s.exchange.until, begun)


def may_pass(problems: Iterable[VgameError | None]) -> bool:
    """Is one of the problems neither a lack of money nor a pause? An endpoint's error is no reason to decline at
    once."""
    return any(problem is not None and not isinstance(problem, Unaffordable | Paused) for problem in problems)


def confirming(s: Snapshot, offer: bytes | None) -> Duty:
    """`offer`: the hash of the offer whose whole ciphertext is here. INVARIANT: only that offer is confirmed."""
    due = undecided(s) and not s.exchange.open and offer == s.exchange.offer
    why = "the state is here" if offer == s.exchange.offer else "the state is not here"
    return Duty("confirm", due, why, s.exchange.until, s.job.since)


# ---- the cost of answers ----


def budget(s: Snapshot) -> int:
    """Wei that open requests may cost: what the client loses without their answers, the reward less what `decline`
    returns while it is possible."""
    reward = s.job.spec.reward
    return reward - reward // 4 if undecided(s) else reward


def bound(requests: Iterable[Request], gas: Gas, own: int = 0) -> int:
    """Wei that requests can cost, answered ones included: their answers, and `own` for each call. The answer to a
    dropped one costs nothing."""
    return sum(own + (0 if r.dropped else gas(r.tensor, r.chunk) * r.price) for r in requests)


def room(s: Snapshot, gas: Gas) -> int:
    """Wei to which the client may still commit itself. INVARIANT: open requests cost no more than the budget, so chunks
    that were paid for do not prevent the last ones; and all requests no more than twice the budget. The exception is a
    raise by one wei per gas that ends a deferral, with the cost of its call."""
    most = budget(s)
    return min(most - bound(s.open, gas, s.own), 2 * most - bound(s.requests, gas, s.own))


def price_of(s: Snapshot, places: Sequence[Place], gas: Gas) -> int | None:
    """The price at which these chunks are requested, all of them: STEADY times the base fee, or what the room allows.
    None if that is below the base fee, or if the contract does not accept that many requests."""
    if len(s.requests) + len(places) > MOST_REQUESTS:
        return None
    fits = (room(s, gas) - len(places) * s.own) // sum(gas(*place) for place in places)
    return min(STEADY * s.base, fits) if fits >= s.base else None


def prices_of(s: Snapshot, duties: Sequence[Duty], gas: Gas, times: int = STEADY) -> dict[int, int]:
    """The new prices, by request. Requests with a price below the base fee: all of them or, while the client can
    decline, none; later as many as the room allows, because a request that stays open delays the key. Open requests
    with a price below the base fee that are not due yet keep their share of the room. The other requests get one wei
    more. After the confirm window, when no request can be added, they get `times` their price if there are no other
    requests to raise, as far as all open requests can have that price. The trainer can defer a request again only in a
    block whose base fee is above its price; and an answer is paid at the base fee of its block, so the rest of the
    deposit comes back."""
    requests = [duty.request for duty in duties if duty.request is not None]
    outgrown = [r for r in requests if s.base > r.price]
    later = [r for r in s.open if s.base > r.price and r not in outgrown]
    kept = [r for r in requests if s.base <= r.price]

    def gas_of(some: Iterable[Request]) -> int:
        return sum(gas(r.tensor, r.chunk) for r in some)

    def level(some: Sequence[Request]) -> int:
        return (room(s, gas) + bound(some, gas) - len(some) * s.own) // gas_of(some)

    found = {r.index: r.price + 1 for r in kept}
    if kept and not outgrown and not undecided(s):
        more = (room(s, gas) - len(kept) * s.own) // gas_of(kept)
        found = {r.index: max(r.price + 1, min(times * r.price, level(s.open), r.price + more)) for r in kept}
    while outgrown:
        if level(outgrown) >= s.base:
            price = max(s.base, min(STEADY * s.base, level([*outgrown, *later])))
            return found | {r.index: price for r in outgrown}
        outgrown = [] if undecided(s) else outgrown[:-1]
    return found


def probing(s: Snapshot, place: Place, gas: Gas) -> int | None:
    """The price for one chunk, chosen at random, to test whether the trainer answers; None if it is not requested. Such
    requests use at most a quarter of the budget, and of the number of requests; the first one is always made if the
    budget suffices."""
    if s.left <= s.margin or s.exchange.open or len(s.requests) >= MOST_REQUESTS // 4:
        return None
    fits = (budget(s) // 4 - bound(s.requests, gas, s.own) - s.own) // gas(*place)
    if fits >= s.base:
        return min(STEADY * s.base, fits)
    return s.base if not s.requests and s.base * gas(*place) + s.own <= budget(s) else None
