"""One sale: an honest trainer that delivers, an honest client that receives, or both; a cheat plays any other side.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from branches import Tx
from disk import FULL, Disk
from endpoint import SimChain, SimGame
from frauds import SETUP
from market import ORDER_GAS, OVER, Crowd, Market, Taker, reward, windows
from provider import EVER, Party
from revm_calls import calldata
from scene import ETHER, NAME
from seats import Life, Player, table, trainer_life
from shelf import Shelf, Wire, elements, seller, words
from shown_fee import fee_shown
from story import AFTER, SEEN, Cast, Story, terms
from strangers import Hand
from tape import Tape
from verdict import Verdict
from world import FINAL, Account

import vgame.agents.delivery as delivery
import vgame.agents.roles as roles
import vgame.delivery.calls as calls
from vgame.chain.records import Phase
from vgame.delivery.rules import WORST_INCLUSION, Snapshot

BLIND = 3_600  # seconds after the end of a sale in which a client looks for hidden logs


class Received:
    """Twin: StateFile. The deciphered data are compared with the right state."""

    def __init__(self, sale: Sale) -> None:
        self.sale, self.parts = sale, {t: [] for t in range(len(elements()))}

    def __enter__(self) -> Received:
        return self

    def write(self, piece: Any, leaves: Any) -> None:
        if self.sale.disk.is_full:
            raise OSError(28, FULL)
        self.parts[piece.tensor].append(leaves.tobytes())

    def __exit__(self, kind: type | None, *_: object) -> None:
        found = [b"".join(self.parts[t])[: 4 * n] for t, n in enumerate(elements())]
        if kind is None:
            self.sale.received = found == [w.tobytes() for w in words()]


class Sale(Story):
    """`patches`: (module, name, instead) of broken rules."""

    player: type[Party] = Party

    def __init__(self, tape: Tape, inside: bool = True, patches: tuple[tuple[Any, str, Any], ...] = ()) -> None:
        self.world: Any = Market(tape, inside)
        world, self.patches, self.cast, self.until = self.world, patches, Cast(), 0.0
        self.roles = tape.pick((("buyer",), ("seller",), ("seller", "buyer")))
        self.cheats, self.received = 0, False
        pay = reward(world)
        self.spec = world.spec = replace(
            terms(world, 1, self.looks), reward=pay, diverged_pay=pay // 3, **windows(world)
        )
        self.strangers: Any = Crowd(world, 24)
        self.players = {role: self.player(world, role, 2 + n) for n, role in enumerate(self.roles)}
        for player in self.players.values():
            player.stands = lambda: self.strangers.job(self.jobs[0]).phase
        buyer = self.players.get("buyer")
        self.client = Hand(buyer.account if buyer else Account(world, 1))
        self.start = {role: self._wealth(role) for role in self.roles}
        rich = {hand.address: 1000 * ETHER for hand in (self.client, *self.strangers.hands)}
        self.shown = ExitStack()
        self.shown.enter_context(fee_shown())
        world.begin(rich | {player.account.address: self.start[role] for role, player in self.players.items()})
        self.strangers.begin()
        self.view = SimGame(SimChain(world, self.strangers.eth))
        self.jobs = [self.view.job_id(self.spec, self.client.address, 0)]
        world.strangers, world.deadline, world.squeezed = self.strangers.act, self._deadline, self._waits
        self.judge: Any = Verdict(self)

    def _wealth(self, role: str) -> int:
        """A client may have no more than `vgame job post` requires."""
        price = 2 * self.world.top * self.world.least + self.world.tip
        if role == "seller":
            return self.spec.trainer_bond + ETHER
        self.rich = not self.world.tape.chance(40)
        return self.spec.reward + (100 * ETHER if self.rich else (ORDER_GAS + calls.CALL_GAS) * price)

    def play(self) -> list[str]:
        dice = SimpleNamespace(choice=self._choice, token_bytes=lambda n: bytes(range(n)))
        record = lambda _, tensor: table().source_record(tensor).as_tuple()  # noqa: E731
        patches = (
            (roles, "seller_of", lambda *_: seller(self.folder / "seller", self.jobs[0])),
            (delivery, "source_record", record),
            (calls, "secrets", dice),
            *self.patches,
        )
        with self.shown as stack:
            for module, name, instead in patches:
                stack.enter_context(patch.object(module, name, instead))
            stack.enter_context(patch("vgame.delivery.seller.secrets", dice))
            stack.enter_context(patch("vgame.delivery.fetch.Source", lambda _: Wire(self.shelf)))
            stack.enter_context(patch("vgame.delivery.received.StateFile", lambda *_: Received(self)))
            return super().play()

    def _choice(self, options: Any) -> Any:
        return options[self.world.tape.below(len(options))]

    def _begin(self, folder: Path) -> None:
        self.folder, job = folder, self.jobs[0]
        self.disk = Disk(self.world, folder / "state.sealed", self._renewed)
        self.shown.enter_context(self.disk.installed())
        self.strangers.jobs += self.jobs
        args, price = (astuple(self.spec), 0, NAME, SETUP.program.header), 2 * self.world.least + self.world.tip
        data, sender = bytes.fromhex(calldata("createJob", args)[2:]), self.client.address.lower()
        order = Tx(sender, self.view.address, self.spec.reward, ORDER_GAS, 0, data, self.world.tip, price)
        self.world.tree.pool[sender, 0] = order
        if "seller" in self.roles:
            self.shelf = Shelf(self.world, folder / "seller" / "public")
        else:
            self.shelf = self.strangers.sell(job, folder / "vendor")
        if "buyer" not in self.roles:
            self.strangers.puppets.append(Taker(self.strangers, self.client, job))
        lives = {"seller": trainer_life(job), "buyer": buyer_life(job, folder, self.disk)}
        for role, player in self.players.items():
            player.life = lives[role]
            player.sit()

    def _renewed(self) -> bool:
        """Whether data that the client's disk loses can still be served or requested in time."""
        job, x = self.strangers.job(self.jobs[0]), self.view.exchange(self.jobs[0])
        early = x.until - self.world.now > self.spec.confirm_window // 2 and not x.confirmed_at
        return "seller" in self.roles or job.phase is Phase.CLAIMED or (job.phase is Phase.DELIVERING and early)

    def _over(self) -> bool:
        """The sale waits until hidden logs are shown, or for a while if they never are."""
        left = [p for p in self.players.values() if not p.ended]
        hidden = [self.hidden(p) for p in left]
        if self.strangers.job(self.jobs[0]).phase not in OVER or not all(hidden):
            self.until = 0.0
            return False
        shown = max([self.world.now, *(until for until in hidden if until < EVER)])
        self.until = self.until or shown + (BLIND if left else AFTER)
        return self.world.now >= self.until

    @staticmethod
    def hidden(player: Party, *events: str) -> float:
        """The time until which these events (by default any event) are hidden, for longer than the allowance covers."""
        found = player.eth.logs.long
        return max((found.get(name, 0.0) for name in events or found), default=0.0)

    def _waits(self) -> bool:
        """Whether a request is still within its time."""
        if self.strangers.job(self.jobs[0]).phase is not Phase.DELIVERING:
            return False
        first = self.world.tree.head.time - self.spec.key_window
        return any(r.open and r.since >= first for r in self.view.requests(self.jobs[0]))

    def _deadline(self) -> float | None:
        """The next second at which the decision of a delivery rule may change; None: play every block."""
        job, world = self.strangers.job(self.jobs[0]), self.world
        if any(p.eth.other > world.now for p in self.players.values() if not p.ended):
            return None  # new blocks matter beside a stalled node
        if job.phase not in (Phase.DELIVERING, Phase.REVEALED):
            return super()._deadline()
        x, spec, now = self.view.exchange(self.jobs[0]), job.spec, world.tree.head.time
        if job.phase is Phase.REVEALED:
            ends = [x.key_at + spec.complaint_window]
        elif not x.open and now > x.key_from and now <= x.key_from + FINAL:
            return None  # a decision becomes final
        elif x.open and "squeeze" in world.enabled:
            return None  # the base fee moves
        else:
            s = Snapshot(0, now, 0, job, x, ())
            ends = [s.key_by - WORST_INCLUSION, s.key_by]
            before = (s.pressing, s.margin, s.margin // 2, min(s.margin // 2, WORST_INCLUSION), 0)
            ends += [] if x.confirmed_at else [x.until - left for left in before]
            for r in self.view.requests(self.jobs[0]):
                if r.open:
                    ends += [r.since + k * spec.key_window // 2 for k in (1, 2, 4)]
                    ends += [r.deferred_at + k * spec.key_window // 2 for k in (1, 2) if r.deferred_at]
        ends += [world.spike] if world.spikes else []
        later = [float(end) for end in ends if end + SEEN >= now]
        return min(later) if later else None


def buyer_life(job: bytes, folder: Path, disk: Disk) -> Life:
    """`vgame receive`, until it has the state or a final state without a delivery."""

    def life(player: Player) -> None:
        sources = [SimpleNamespace(elements=n) for n in elements()]
        bundle: Any = SimpleNamespace(order=asdict(player.world.spec), program=SimpleNamespace(sources=sources))
        disk.begin()
        delivery.receive(player.game(), bundle, job, "a shelf", folder / "state", player.reporter, 1.0)

    return life


__all__ = ["Sale"]
