"""All other accounts of a sale: cheats that sell, cheats that buy; and an adversary of the base fee and the branches.

In: a world, a job. Out: transactions in its mempool, and the server of the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from branches import BLOCK, Block, Tx
from endpoint import Eth
from eth_abi import decode
from frauds import SETUP
from provider import Provider
from revm_calls import INPUTS, SELECTORS, calldata
from scene import Call
from seats import table
from shelf import MANNERS, Shelf, elements, flawed, words
from strangers import COPIED, QUIET, Hand, Puppet, Strangers
from tape import Tape
from world import FINAL, World

from vgame.attacks.adversaries import CheatingTrainer
from vgame.chain.game import Game
from vgame.chain.records import ENDED, Job, Phase
from vgame.delivery.rules import MOST_REQUESTS, read, selling
from vgame.delivery.sealed import Offer, Shape, read_offer
from vgame.delivery.seller import Attempt, Seller
from vgame.errors import Abstain

MARKET = ("shelf", "manners", "flaws", "silence", "patience", "asking", "closings", "squeeze", "offers")
MARKET += (
    "hidden",
    "stalls",
    "backend",
    "times",
    "prices",
    "restarts",
    "files",
    "room",
    "replies",
    "spikes",
    "rewards",
)
HIGHEST = 8  # times the least base fee, if an adversary moves it
OVER = {Phase.CONVICTED, *ENDED}
DECIDED = {bytes(SELECTORS[name]) for name in ("confirm", "answer", "defer")}
UNDONE, TEMPTED = {bytes(SELECTORS[name]) for name in ("confirm", "postClaim")}, "reorganise"
CALLS = ("answer", "revealKey", "defer", "closeDelivery")  # calls that a cheat may never send
ORDER_GAS = 600_000  # gas of an order: the toy referee reads more than the real one
KEYS = 5100  # seconds: the shortest key window that `vgame trainer` accepts
#: Rewards, as multiples of the cost of answers to all chunks at the least base fee.
REWARDS = (24, 1, 1, 2, 4, 8)
SPIKES = 5  # single blocks with the highest base fee, at most


def windows(world: World) -> dict[str, int]:
    """The smallest windows that cover the possible faults: a twentieth of the confirm window is left to decline."""
    spare = int(world.left) + 20 * BLOCK
    return {"confirm_window": 20 * spare, "key_window": KEYS, "complaint_window": 2 * spare}


def reward(world: World) -> int:
    """The reward of most tests, or one of the size of the answers' cost."""
    if "rewards" not in world.enabled:
        return int(SETUP.spec.reward)
    shape = Shape(elements())
    every = sum(shape.gas_of(t, c) for t, count in enumerate(shape.chunks) for c in range(count))
    return world.tape.pick(REWARDS) * every * world.least


class Market(World):
    """The world of a sale: no block is skipped while a decision becomes final."""

    def __init__(self, tape: Tape, inside: bool) -> None:
        super().__init__(tape, inside)
        self.enabled |= {name for name in MARKET if tape.byte() & 1}
        self.top = HIGHEST if self.enabled & {"squeeze", "spikes"} else 2
        self.squeezed: Callable[[], bool] = lambda: False
        self.spikes, self.spike, self.period = 0, inf, 0  # number left, time of the next, seconds between two
        self.spiked: set[int] = set()  # numbers of their blocks, whose base fees do not affect later ones

    def _fault(self, eth: Eth) -> None:
        super()._fault(eth)
        if isinstance(eth, Provider):
            eth.trouble()

    def on(self, feature: str, percent: float) -> bool:
        """A reorganisation is most likely if it undoes a cheat's claim or confirmation."""
        recent = [self.tree.head.ancestor(self.tree.head.number - n) for n in range(3)] if feature == TEMPTED else []
        tempted = any(tx.data[:4] in UNDONE and tx.sender not in self.honest for b in recent for tx in b.txs)
        return super().on(feature, 40 if tempted else percent)

    def plan_spikes(self) -> None:
        """While a request waits, a few of the next blocks, at equal distances, have the highest base fee. Only once in
        a sale: with endless spikes a request would be neither late nor dropped."""
        if self.spike < inf or not self.tape.chance(40):
            return
        self.spikes, self.period = 1 + self.tape.below(SPIKES), BLOCK + KEYS * (1 + self.tape.below(16)) // 16
        self.spike = self.now + KEYS * self.tape.below(16) // 16
        self.log(f"{self.spikes} spikes of the base fee, one each {self.period} s")

    @property
    def spiking(self) -> bool:
        """Whether the next block is a spike."""
        return self.spikes > 0 and self.now >= self.spike

    def _base_fee(self, parent: Block) -> int:
        """An adversary raises it while a request waits within its time, and lets it fall afterwards; or raises it in
        single blocks."""
        if self.spiking:
            self.spikes, self.spike = self.spikes - 1, self.spike + self.period
            self.spiked.add(parent.number + 1)
            return self.top * self.least
        while parent.number in self.spiked and parent.parent:
            parent = parent.parent
        return self._moved(parent)

    def _moved(self, parent: Block) -> int:
        if "squeeze" not in self.enabled:
            return super()._base_fee(parent)
        rising = self.squeezed() != self.tape.chance(1)
        step = parent.base_fee // 8 if rising else -parent.base_fee // 8
        return min(max(parent.base_fee + step, self.least), self.top * self.least)

    def built(self, parent: Block, time: int, base_fee: int, candidates: list[Tx]) -> Block:
        block = super().built(parent, time, base_fee, candidates)
        if any(tx.data[:4] in DECIDED for tx in block.txs):
            self.unsettled = max(self.unsettled, self.now + FINAL)
        return block


class Crook(Seller):
    """A cheat's delivery: it answers as late as `patience` allows, reveals the key as soon as it can, and never makes
    the calls in `silent`."""

    silent: frozenset[str] = frozenset()
    patience = 10**9  # seconds before a deadline at which it acts
    other: Path | None = None  # a folder with another offer, for a claim on another branch

    def committed(self, game: Game, s: Any) -> Offer:
        try:
            return super().committed(game, s)
        except Abstain:
            if self.other is None:
                raise
            self.folder, self.other = self.other, self.folder
            return super().committed(game, s)

    def duties(self, game: Game, job: Job, attempt: Attempt) -> list[Callable[[], bool]]:
        s = read(game, self.job)
        s = replace(s, final=s.now)
        offer = self.committed(game, s) if s.job.phase is Phase.DELIVERING else None
        due = [d for d in selling(s) if d.due and d.call not in self.silent]
        due = [d for d in due if d.by is None or d.by - s.now <= self.patience]
        return [partial(self._do, duty, offer, attempt) for duty in due]


class Vendor(Puppet):
    """A cheat that sells. It is asked for its call in every block, since the passage of time can make one due."""

    def act(self) -> None:
        self.still = None
        super().act()


class Taker:
    """A cheat that buys: it requests, raises, confirms and declines at arbitrary times."""

    def __init__(self, crowd: Crowd, hand: Hand, job: bytes) -> None:
        tape = crowd.world.tape
        self.crowd, self.hand, self.id = crowd, hand, job
        self.decision = tape.pick(("", "confirm", "decline"))
        self.share, self.asks, self.pace = tape.below(17) / 16, tape.below(9), tape.pick((20, 60, 5))
        self.raises, self.most = tape.chance(30), 4  # requests at one time
        if tape.chance(4):
            self.asks = self.most = MOST_REQUESTS

    def act(self) -> None:
        crowd, world = self.crowd, self.crowd.world
        job = crowd.job(self.id)
        if job.phase is not Phase.DELIVERING or self.hand.address.lower() in crowd.waiting:
            return
        head, exchange = world.tree.head, crowd.view.exchange(self.id)
        begun = head.time >= exchange.until - job.spec.confirm_window * (1 - self.share)
        possible = not exchange.confirmed_at and not (exchange.open and self.decision == "confirm")
        if self.decision and begun and possible:
            crowd.send(self.hand, Call(self.decision, (self.id, exchange.offer)))
            return
        if "asking" in world.enabled and world.tape.chance(self.pace):
            self._ask(head, exchange.offer)

    def _ask(self, head: Block, offer: bytes) -> None:
        tape, view = self.crowd.world.tape, self.crowd.view
        all_ = view.requests(self.id)
        open_ = [r for r in all_ if r.open]
        price = head.base_fee * tape.pick((4, 2, 1, 1))
        if open_ and self.raises and tape.chance(30):
            r = tape.pick(open_)
            price = max(r.price + 1, price)
            value = (price - r.price) * view.answer_gas(self.id, r.elements, r.chunk)
            self.crowd.send(self.hand, Call("raise", (self.id, r.index, r.tensor, r.chunk, price), value))
        elif self.asks > 0 and (head.base_fee <= 2 * self.crowd.world.least or tape.chance(20)):
            for index in range(
                len(all_), len(all_) + 1 + tape.below(self.most)
            ):  # a block has at most one answer of a trainer
                self.asks -= 1
                self._request(index, offer, head.base_fee * tape.pick((4, 1, 1, 2)))

    def _request(self, index: int, offer: bytes, price: int) -> None:
        crowd, tensor = self.crowd, self.crowd.world.tape.below(len(elements()))
        value = price * crowd.view.answer_gas(self.id, elements()[tensor], 0)
        args = (self.id, offer, index, tensor, 0, price, table().source_record(tensor).as_tuple())
        crowd.send(self.hand, Call("request", args, value))


class Crowd(Strangers):
    """All other accounts of a sale. `instead`: by a call's name, its arguments on another branch."""

    def begin(self) -> None:
        super().begin()
        self.instead: dict[str, Callable[[Any], Any]] = {"confirm": lambda args: args}
        self.world.reorganised = self.reorganised

    def sell(self, job: bytes, folder: Path) -> Shelf:
        """A cheat accepts the job, claims the right run, and delivers a right or a flawed state, in any manner."""
        world, tape, hand = self.world, self.world.tape, self.free.pop()
        flaw = tape.pick(("", "", "leaf", "node")) if "flaws" in world.enabled else ""
        quiet = tape.pick(QUIET) if "withhold" in world.enabled else frozenset()
        crook = Crook(folder, job, elements(), words)
        if "silence" in world.enabled:
            crook.silent = frozenset(call for call in CALLS if tape.chance(40))
        if "patience" in world.enabled:
            late = [BLOCK * blocks for blocks in (4, 2, 1, 0, -1, -3)]  # seconds before the deadline
            crook.patience = tape.pick([world.spec.key_window * n // 12 for n in range(12)] + late)
        flawed(crook.public, job, crook.make_key(), flaw, tape.byte())
        if "offers" in world.enabled:
            crook.other = folder / "other"
            self._other_offer(crook, job)
        player = CheatingTrainer(self.game(hand), job, table(), quiet)
        player.terms, player.seller = world.spec, crook
        self.lies[job] = -1
        name = " ".join(["vendor", flaw, *sorted(crook.silent)])
        self.puppets.append(Vendor(self, name, player, tape.pick((100, 60, 25))))
        manner = tape.pick(MANNERS) if "manners" in world.enabled else MANNERS[0]
        return Shelf(world, crook.public, manner, lambda: (self.job(job).phase, self.view.exchange(job).until))

    def _other_offer(self, crook: Crook, job: bytes) -> None:
        """Make another offer: the same state, enciphered with another key."""
        assert crook.other is not None
        crook.other.mkdir()
        key = bytes(reversed(crook.key()))
        (crook.other / "key").write_bytes(key)
        flawed(crook.other / "public", job, key, "", 0)
        made = read_offer(crook.other / "public")[1]
        self.instead["postClaim"] = lambda args: (*args[:4], made.cipher_root, made.key_hash)

    def reorganised(self, old: Block, root: Block) -> list[Tx]:
        """Transactions by which senders replace calls that a reorganisation has undone."""
        found, block = [], old
        while block is not root:
            for tx in block.txs:
                name = COPIED.get(tx.data[:4])
                if name in self.instead and tx.sender not in self.world.honest:
                    found.append(replace(tx, data=self._changed(name, tx.data)))
            block = block.parent
        return found if self.world.on("offers", 60) else []

    def _changed(self, name: str, data: bytes) -> bytes:
        args = self.instead[name](decode(INPUTS[name], data[4:]))
        return bytes.fromhex(calldata("decline" if name == "confirm" else name, args)[2:])

    def act(self) -> None:
        super().act()
        for job in self.jobs:
            state, phase = self.job(job), self.job(job).phase
            if state.accepted_at and state.trainer.lower() not in self.world.honest:
                self.lies.setdefault(job, -1)  # a stranger has accepted it
            if phase in (Phase.DELIVERING, Phase.REVEALED) and self.world.on("closings", 10):
                self.send(self.hands[0], Call("closeDelivery", (job, int(phase))))
            if phase is Phase.DELIVERING and "closings" in self.world.enabled:
                self._refuse(job, state.spec.key_window)
            if phase is Phase.DELIVERING and "spikes" in self.world.enabled:
                self._defer(job)

    def _defer(self, job: bytes) -> None:
        """Defer requests below the base fee of the next block, if a spike makes this fee predictable."""
        world, hand = self.world, self.hands[0]
        open_ = [r for r in self.view.requests(job) if r.open]
        if open_:
            world.plan_spikes()
        if world.spiking and hand.address.lower() not in self.waiting and world.tape.chance(80):
            for r in open_:
                self.send(hand, Call("defer", (job, r.index)), tip=9 * world.tip)

    def _refuse(self, job: bytes, window: int) -> None:
        """Call `refused` for a request whose time will be over in the next block, before its answer."""
        head, account = self.world.tree.head, self.hands[0].address.lower()
        late = [r for r in self.view.requests(job) if r.open and head.time + BLOCK > r.since + window]
        if late and account not in self.waiting and head.base_fee * 7 // 8 <= late[0].price:
            self.send(self.hands[0], Call("refused", (job, late[0].index)), tip=9 * self.world.tip)

    def end(self, job: bytes) -> None:
        """End a cheat's sale; an honest client's money is left to the client."""
        super().end(job)
        state, hand = self.job(job), self.hands[0]
        if state.phase is Phase.CREATED and self.world.tree.head.time > state.since + state.spec.accept_window:
            self.send(hand, Call("expire", (job,)))
        if state.phase is Phase.REVEALED and hand.address.lower() not in self.waiting:
            end = self.view.exchange(job).key_at + state.spec.complaint_window
            if self.world.tree.head.time > end:
                self.send(hand, Call("closeDelivery", (job, int(Phase.REVEALED))))


__all__ = ["ORDER_GAS", "OVER", "Crowd", "Market", "Taker", "reward", "windows"]
