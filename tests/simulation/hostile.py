"""A node that is honest until it becomes hostile for ever; and the player that uses it.

In: a tape. Out: a manner, from some request or transaction on: the node refuses, is stalled, alters a field, hides
disputes or logs, shifts the time or the base fee, invents estimates, or publishes transactions at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import requests
from branches import START, Tx
from endpoint import Eth, Faults, Function, SimChain, SimGame
from seats import Mortal, Player, SimWallet
from world import Seat, World

from vgame.chain import http
from vgame.chain.pauses import LONGEST

MANNERS = ("fair", "away", "still", "state", "lie", "undisputed", "time", "fees", "slow")
BESIDE = ("logs", "estimates", "keeps")  # each of these may be added to a manner
ESTIMATE = 300_000  # gas estimate of any call
SHIFTS = (600, 3_600, 100_000, -600)  # seconds
FEES = (0.001, 0.5, 3.0, 100.0)  # times the base fee
SLOW = (1, 9, 59)  # seconds of each reply, below the time limit of one
OFTEN = 10  # transactions of one call within OFTEN pauses, at most: after 0, 12, 36, 84, 180 seconds, ...


class Hostile(Mortal):
    """A node that becomes hostile after a number of requests and of transactions. `ready`: whether it may become
    hostile now."""

    def __init__(self, world: World, ready: Callable[[], bool]) -> None:
        super().__init__(world)
        tape = world.tape
        self.drawn, self.ready, self.taken = tape.pick(MANNERS), ready, 0
        if self.drawn == "slow" not in world.enabled:
            self.drawn = "away"
        self.turns, self.after = 4 * tape.below(256) * tape.below(2), tape.below(6) * tape.below(2)
        self.beside = {name for name in BESIDE if tape.below(2)}
        self.manner, self.since, self.shift, self.dear = "fair", inf, 0, 1.0
        self.seconds = 0
        self.kept: list[Tx] = []
        self.sent: dict[tuple[int, bytes], dict[int, float]] = {}  # by process and call: times, by nonce

    def asked(self) -> Any:
        if self.drawn != self.manner and self.count >= self.turns and self.taken >= self.after and self.ready():
            self.turn()
        if self.kept and self.world.tape.chance(2):
            self.publish(self.kept.pop())
        if self.manner == "slow":
            left = http._LAST.get() - self.world.now  # the limit of `replies_until`
            self.world.clock.sleep(min(self.seconds, max(left, 0)))
            if self.seconds > left:
                raise requests.Timeout("no reply in time")
        return super().asked()

    def turn(self) -> None:
        """Become hostile, from now on and for ever."""
        world, tape = self.world, self.world.tape
        self.manner, self.since, self.faults = self.drawn, world.now, Faults()
        if self in world.eths:
            world.eths.remove(self)
        head, f = world.tree.head, self.faults
        match self.manner:
            case "away":
                f.away, f.status = inf, tape.pick((0, 429, 500, 400))
            case "still":
                f.branch = inf
            case "state":
                f.state, f.frozen = inf, head.ancestor(head.number - tape.pick((0, 1, 3, 19)))
            case "lie":
                f.lie, f.field = inf, tape.byte() << 8 | tape.byte()
            case "time":
                self.shift = tape.pick(SHIFTS)
            case "fees":
                self.dear = tape.pick(FEES)
            case "slow":
                self.seconds = tape.pick(SLOW)
        if "logs" in self.beside:
            f.logs, f.frozen = inf, f.frozen or head
        world.log(f"a node is hostile from now on: {self.manner} {' '.join(sorted(self.beside))}")

    def does(self, name: str) -> bool:
        return self.manner != "fair" and name in self.beside

    def publish(self, tx: Tx) -> None:
        if not self.world.tree.refusal(tx, self.world.tree.head):
            self.world.submit(tx)

    def get_block(self, which: Any, full_transactions: bool = False) -> dict[str, Any]:
        found = super().get_block(which, full_transactions)
        base = int(found["baseFeePerGas"] * self.dear)
        return found | {"timestamp": max(found["timestamp"] + self.shift, START), "baseFeePerGas": base}

    @property
    def max_priority_fee(self) -> int:
        return int(super().max_priority_fee * self.dear)

    def get_block_receipts(self, which: Any) -> list[dict[str, Any]]:
        return [] if self.does("logs") else super().get_block_receipts(which)

    def get_transaction_count(self, account: str, block: Any = None) -> int:
        """The true count beside an old state, so that transactions with new nonces are sent in vain."""
        if self.manner != "state":
            return super().get_transaction_count(account, block)
        return self.asked().nonces.get(account.lower(), 0)

    def send_raw_transaction(self, raw: bytes) -> bytes:
        self.taken += 1
        if self.manner == "fair":
            return super().send_raw_transaction(raw)
        tx = self.world.signed[bytes(raw)]
        if not self.does("keeps"):
            Eth.send_raw_transaction(self, raw)
        else:
            self.asked()
            self.kept.append(tx)
        return tx.digest


class HostileFunction(Function):
    """A hostile node's reply to a call."""

    eth: Hostile

    def call(self, tx: dict[str, Any] | None = None, block_identifier: Any = None) -> Any:
        found = super().call(tx, block_identifier)
        if self.eth.manner != "undisputed" or self.name not in ("getJob", "getDisputes"):
            return found
        return (*found[:5], 0, 0, *found[7:]) if self.name == "getJob" else []

    def estimate_gas(self, tx: dict[str, Any]) -> int:
        return ESTIMATE if self.eth.does("estimates") else super().estimate_gas(tx)


class HostileGame(SimGame):
    def _function(self, name: str, args: Any) -> HostileFunction:
        return HostileFunction(self.chain.web3.eth, name, args)


class Noted(SimWallet):
    """A wallet that records its transactions to a hostile node."""

    life = 0

    def announce(self, number: int, digest: bytes) -> None:
        super().announce(number, digest)
        eth: Hostile = self.chain.web3.eth
        if eth.manner != "fair":
            eth.sent.setdefault((self.life, self.chain.world.signed[digest].data), {}).setdefault(
                number, self.chain.world.now
            )


class Guest(Player):
    """A player whose node may become hostile. `ready`: whether it may become hostile now."""

    ready: Callable[[], bool] = staticmethod(lambda: True)

    def sit(self) -> None:
        self.eth: Hostile = Hostile(self.world, self.ready)
        self.world.eths.append(self.eth)
        self.world.seats.append(Seat(self.world, self.name, self._body))

    def game(self) -> SimGame:
        chain = SimChain(self.world, self.eth)
        wallet = Noted(chain, self.account)
        wallet.life = self.lives
        return HostileGame(chain, wallet)

    def vain(self) -> list[str]:
        """Calls that were repeated without sufficient pauses, one sentence each."""
        found = []
        for (_, data), numbers in self.eth.sent.items():
            times = sorted(numbers.values())
            if any(late - early < OFTEN * LONGEST / 2 for early, late in zip(times, times[OFTEN:], strict=False)):
                found.append(f"the {self.name} sends {data[:4].hex()} {len(times)} times")
        return found
