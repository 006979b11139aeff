"""Which jobs an auditor plays: those that its owner names, and no others.

In: limits, a game. Out: the jobs, by state alone. Strangers' orders make no work; to be hunted, a claim needs one of
the largest bonds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vgame.chain.game import PAGE, Game
from vgame.chain.records import JobSpec
from vgame.errors import EndpointError

HUNTED = 8  # claims that are played where nothing is named


@dataclass(frozen=True)
class Limits:
    """What an auditor stakes: `bond` wei at most, by default never more than the trainer does; `any_clocks`: also on
    short ones. What it plays: `jobs`, the bundle's orders of `clients`, and the `hunt` largest claimed bonds of the
    bundle; HUNTED of these where nothing is named."""

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
        """The same in words."""
        named = [f"job {job.hex()[:16]}" for job in sorted(self.jobs)]
        named += [f"orders of {client}" for client in sorted(self.clients)]
        if self.hunts:
            named.append(f"the {self.hunts} claims of this bundle with the largest bonds")
        return ", ".join(named) + ("" if self.jobs or self.clients else " (--job and --client name some)")


class List:
    """A list on chain that only grows, except in a reorganisation. `entries` gives those from a number on."""

    def __init__(self, game: Game, entries: Callable[[int], list[bytes]]) -> None:
        self.game, self.entries, self.count, self.last = game, entries, 0, b""
        self.unread: list[bytes] = []  # entries whose order was not read

    def new(self) -> dict[bytes, JobSpec]:
        """Orders that were not there before, a page at most. INVARIANT: an entry is passed over only if what is shown
        hashes to it; else the list is read again from its beginning."""
        found = self.entries(max(self.count - 1, 0))
        if self.count and found[:1] != [self.last]:
            self.count, found = 0, self.entries(0)
        fresh = found[1:] if self.count else found
        self.unread += fresh
        self.count, self.last = self.count + len(fresh), (fresh or [self.last])[-1]
        page = self.unread[:PAGE]
        orders = dict(zip(page, self.game.jobs(page), strict=True))
        for job, order in orders.items():
            if self.game.job_id(order.spec, order.client, order.nonce) != job:
                self.count, self.unread = 0, []
                raise EndpointError(
                    f"{self.game.chain.url} shows an order that does not hash to job {job.hex()[:16]}: nothing is done "
                    "on its word; use another endpoint"
                )
        del self.unread[:PAGE]
        return {job: order.spec for job, order in orders.items()}


class NamedJobs:
    """The jobs of a bundle, with terms `spec`, that an auditor plays."""

    def __init__(self, game: Game, spec: JobSpec, limits: Limits) -> None:
        self.spec, self.limits = spec, limits
        self.orders = [List(game, lambda n, c=client: game.orders_of(c, n)) for client in sorted(limits.clients)]
        self.claims = List(game, lambda n: game.claims_of(spec.program_root, n))
        self.named = dict.fromkeys(sorted(limits.jobs))
        self.hunted: dict[bytes, int] = {}  # bonds of claims
        self.dropped = 0

    def read(self) -> None:
        """Orders and claims that are new in the state."""
        for orders in self.orders:
            self.named |= dict.fromkeys(job for job, spec in orders.new().items() if spec == self.spec)
        if self.limits.hunts:
            claims = {job: spec.trainer_bond for job, spec in self.claims.new().items() if spec == self.spec}
            self.hunted |= {job: bond for job, bond in claims.items() if job not in self.named}

    def jobs(self) -> list[bytes]:
        largest = sorted(self.hunted, key=lambda job: -self.hunted[job])  # of equal bonds the first one
        return [*self.named, *largest[: self.limits.hunts]]

    def drop(self, job: bytes) -> None:
        """A claim that has ended for good makes room for the next one."""
        self.dropped += self.hunted.pop(job, None) is not None
