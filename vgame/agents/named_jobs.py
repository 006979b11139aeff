"""The jobs that an auditor plays: those that its owner names, and claims of the bundle that it hunts.

In: limits, a game. Out: the jobs, from the contract's state alone. Orders of other bundles cause no work. Claims are
hunted by the end of their challenge window, the earliest first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vgame.chain.game import JOBS, PAGE, Game
from vgame.chain.records import STANDING, Job, JobSpec, Phase
from vgame.errors import EndpointError

HUNTED = 8  # claims hunted at a time if no job and no client is named
CLAIMS = frozenset({Phase.CLAIMED, *STANDING})  # phases of a job with a claim that may be right


@dataclass(frozen=True)
class Limits:
    """Limits of an auditor's stakes: at most `bond` wei, by default at most the trainer's bond; `any_clocks`: also with
    clocks that are too short. The jobs that it plays: `jobs`, the bundle's orders of `clients`, and all claims of the
    bundle, `hunt` at a time (HUNTED if no job and no client is named)."""

    bond: int | None = None
    any_clocks: bool = False
    jobs: frozenset[bytes] = frozenset()
    clients: frozenset[str] = frozenset()
    hunt: int = 0

    @property
    def hunts(self) -> int:
        return self.hunt or (0 if self.jobs or self.clients else HUNTED)

    @property
    def played(self) -> str:
        """The jobs that are played, in words."""
        named = [f"job {job.hex()[:16]}" for job in sorted(self.jobs)]
        named += [f"orders of {client}" for client in sorted(self.clients)]
        if self.hunts:
            named.append(f"all claims of this bundle, {self.hunts} at a time")
        return ", ".join(named) + ("" if self.jobs or self.clients else " (--job and --client select jobs)")


class List:
    """A list on chain, and the last known state of its jobs with terms `spec`. `entries` returns the entries from a
    number on.

    The list is append-only, except in a reorganisation or in false replies. So its end is compared in every look, and
    all of it once in a while: no entry is missed for good.
    """

    TAIL, AGAIN = 64, 300.0  # entries compared in each look; seconds between two full comparisons

    def __init__(self, game: Game, spec: JobSpec, entries: Callable[[int], list[bytes]]) -> None:
        self.game, self.spec, self.entries = game, spec, entries
        self.known: list[bytes] = []
        self.states: dict[bytes, Job | None] = {}  # None: an order with other terms
        self.whole = -self.AGAIN  # time of the last full comparison

    @property
    def jobs(self) -> dict[bytes, Job]:
        """The jobs with the right terms, in the order of the list."""
        states = ((job, self.states.get(job)) for job in self.known)
        return {job: state for job, state in states if state is not None}

    def read(self) -> bool:
        """Read new entries, and at most one page of their orders; True if all are read. INVARIANT: an entry is skipped
        only if the shown order hashes to it."""
        now = time.monotonic()
        first = max(len(self.known) - self.TAIL, 0) if now - self.whole < self.AGAIN else 0
        found = self.entries(first)
        if first and found[: self.TAIL] != self.known[first:]:
            first, found = 0, self.entries(0)
        if first == 0:
            self.whole = now
        self.known[first:] = found
        unread = [job for job in self.known if job not in self.states]
        page = unread[:PAGE]
        orders = self.game.jobs(page)
        for job, order in zip(page, orders, strict=True):
            if self.game.job_id(order.spec, order.client, order.nonce) != job:
                raise EndpointError(
                    f"{self.game.chain.url} shows an order that does not hash to job {job.hex()[:16]}: the reply is "
                    "ignored; use another endpoint"
                )
        self.states |= {job: o if o.spec == self.spec else None for job, o in zip(page, orders, strict=True)}
        return len(unread) == len(page)


class NamedJobs:
    """The jobs of one bundle, with terms `spec`, that an auditor plays."""

    def __init__(self, game: Game, spec: JobSpec, limits: Limits) -> None:
        self.spec, self.limits = spec, limits
        self.orders = [List(game, spec, lambda n, c=client: game.orders_of(c, n)) for client in sorted(limits.clients)]
        self.claims = List(game, spec, lambda n: game.claims_of(spec.program_root, n))
        self.named = dict.fromkeys(sorted(limits.jobs))
        self.turns = dict[int, int]()  # by endpoint: index of the next hunted claim to read again
        self.whole = False  # True if all lists are read

    def read(self) -> None:
        """Read the new orders and claims from the contract's state."""
        self.whole = False
        whole = [one.read() for one in [*self.orders, *([self.claims] if self.limits.hunts else [])]]
        self.whole = all(whole)

    @property
    def owned(self) -> dict[bytes, None]:
        """The jobs that the owner names, by job or by client."""
        return self.named | dict.fromkeys(job for orders in self.orders for job in orders.jobs)

    @property
    def hunted(self) -> dict[bytes, Job]:
        """Claims of the bundle that the owner does not name, in their last known state."""
        owned = self.owned
        return {job: state for job, state in self.claims.jobs.items() if job not in owned}

    def waiting(self, reported: Mapping[bytes, tuple[bytes, bool]], now: int) -> list[bytes]:
        """Hunted claims to compare: first those that can still be disputed, by the end of their challenge window; then
        the others, only for the report. `reported`: by job, the compared run root and whether it was right."""
        ends = dict[bytes, tuple[bool, int]]()
        for job, state in self.hunted.items():
            end = state.since + state.spec.challenge_window
            late = state.phase is not Phase.CLAIMED or now > end
            root, right = reported.get(job, (b"", False))
            if state.phase in CLAIMS and (root != state.run_root or not (right or late)):
                ends[job] = late, end
        return sorted(ends, key=lambda job: ends[job])

    def others(self, played: Sequence[bytes]) -> list[bytes]:
        """Other hunted claims, in turn: as many as fit into one request together with the played ones. Each endpoint
        has its own position in the list: with a common one, a claim could be read at the same endpoint each time."""
        rest, endpoint = [job for job in self.hunted if job not in {*played}], self.claims.game.chain.endpoint
        count = min(max(JOBS - len(played), 1), len(rest))
        first = self.turns.get(endpoint, 0) % max(len(rest), 1)
        self.turns[endpoint] = first + count
        return (rest + rest)[first : first + count]

    def see(self, states: Mapping[bytes, Job]) -> None:
        """Update the state of the hunted claims."""
        self.claims.states |= {job: state for job, state in states.items() if self.claims.states.get(job)}
