"""A player's endpoint while a state is delivered: two nodes behind one address, one of which is stalled or lags; blocks
with a false time or base fee; and, for the client, logs that are hidden, altered or late, or errors in their place.

In: a world, the phase of the job. Out: replies. False replies last for a moment, wrong logs for any time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import requests
from branches import BLOCK, Block
from eth_abi import decode, encode
from revm_calls import DATA, TOPICS
from seats import AGAIN, Mortal, Player
from web3.exceptions import Web3RPCError
from world import Killed, World

from vgame.chain.records import Phase

KINDS = ("none", "hidden", "stalls", "backend", "behind", "times", "prices", "restarts")
DELIVERED = {Phase.DELIVERING, Phase.REVEALED}
STALL = 60  # seconds of a reply, at most
MOMENT = 20  # seconds of false replies, at most: a reply has to last longer to decide anything
GAP = 300  # seconds between two such moments
BEHIND = 10  # blocks that a backend lags, at most
EVER = 10**11  # seconds: longer than any sale
AHEAD = (BLOCK, 600, 5_100, 20_000, 2**40)  # seconds that a false time lies in the future
FACTORS = ((2, 1), (1, 2), (8, 1), (0, 1), (100, 1))  # factors of a false base fee
TURNS = (0, BLOCK, 2 * BLOCK)  # seconds of each node's turn; 0: the node is drawn for each reply
EVENTS = (frozenset({"Answered"}), frozenset({"Answered", "KeyRevealed"}), frozenset({"Offered", "Answered"}))
WRONGS = ("absent", "altered", "500", "429", "400", "refused", "error")


@dataclass
class Logs:
    """Faults in the logs of some events, each with its end."""

    until: float = 0.0
    events: frozenset[str] = frozenset()
    wrong: str = "absent"
    stall: float = 0.0
    stalls: float = 0.0  # the end of slow replies
    long: dict[str, float] = field(default_factory=dict)  # by event: the end of a fault that no allowance covers


class Provider(Mortal):
    """`stands`: the phase of the job. `reads`: whether its player reads logs, so that they may be wrong."""

    def __init__(self, world: World, stands: Callable[[], Phase], reads: bool) -> None:
        super().__init__(world)
        self.stands, self.reads, self.logs, self.begun = stands, reads, Logs(), False
        self.other, self.frozen, self.behind = 0.0, None, 0  # the second node: end, block, seconds behind
        self.share, self.turn = 0, 0  # the second node's replies of 8; or seconds of a turn
        self.false, self.calm, self.ahead, self.factor = 0.0, 0.0, 0, (1, 1)  # a moment of false replies
        self.killed = False

    # ---- faults ----

    def trouble(self) -> None:
        """Draw faults at each block; for the trainer only during a delivery, because the clocks of disputes do not
        cover them."""
        world, tape = self.world, self.world.tape
        if self.stands() not in (DELIVERED | {Phase.CLAIMED} if self.reads else DELIVERED):
            self.other = 0.0
            return
        if not self.begun:
            self.begun = True
            if world.on("hidden", 30) and self.reads:
                self._hide_long()
            if world.on("backend", 30):
                self._backend(EVER)
        kind = tape.below(64)
        if kind and kind < len(KINDS) and KINDS[kind] in world.enabled | {"behind"}:
            getattr(self, f"_{KINDS[kind]}")()

    def _hidden(self) -> None:
        """Hide logs for a time that the allowance covers."""
        seconds = 1 + self.world.tape.below(120)
        if self.reads and self.logs.until <= self.world.now and self.world.allows(seconds):
            self._hide(seconds)

    def _hide_long(self) -> None:
        """Hide logs for a part of the windows, or for ever."""
        spec, share = self.world.spec, self.world.tape.below(64)
        windows = spec.confirm_window + spec.key_window + spec.complaint_window
        self._hide(EVER if share > 48 else 1 + windows * share // 32)
        self.logs.long = dict.fromkeys(self.logs.events, self.logs.until)

    def _hide(self, seconds: int) -> None:
        logs, tape = self.logs, self.world.tape
        logs.until, logs.events, logs.wrong = self.world.now + seconds, tape.pick(EVENTS), tape.pick(WRONGS)
        self.world.log(f"logs of {'/'.join(sorted(logs.events))} are {logs.wrong} for {seconds} s")

    def _stalls(self) -> None:
        """Each query of logs takes long. Not in a story with a second node, where every look would fail."""
        tape, logs = self.world.tape, self.logs
        if self.reads and "backend" not in self.world.enabled:
            logs.stall = 1 + tape.below(STALL)
            logs.stalls = self.world.now + 600 * (1 + tape.below(16))
            self.world.log(f"queries of logs take {logs.stall:.0f} s until {logs.stalls:.0f}")

    def _backend(self, seconds: int = 0) -> None:
        """A second node that is stalled."""
        tape = self.world.tape
        self.other = self.world.now + (seconds or 600 * (1 + tape.below(16)))
        self.frozen, self.share, self.turn = self.world.tree.head, 1 + tape.below(3), tape.pick(TURNS)
        often = f"turns of {self.turn} s" if self.turn else f"{self.share} of 8 replies"
        self.world.log(f"a second node stands still at block {self.frozen.number}, {often}")

    def _behind(self) -> None:
        """A second node that is many blocks behind."""
        tape, blocks = self.world.tape, 3 + self.world.tape.below(BEHIND - 2)
        if "backend" in self.world.enabled and self.world.allows(BLOCK * blocks):
            self.other, self.frozen = self.world.now + 600 * (1 + tape.below(16)), None
            self.behind, self.share, self.turn = blocks * BLOCK, 1 + tape.below(3), tape.pick(TURNS)
            self.world.log(
                f"a second node is {blocks} blocks behind, {self.share} of 8 replies, turns of {self.turn} s"
            )

    def _times(self) -> None:
        self.ahead = self.world.tape.pick(AHEAD) if self._moment() else 0

    def _prices(self) -> None:
        self.factor = self.world.tape.pick(FACTORS) if self._moment() else (1, 1)

    def _moment(self) -> bool:
        """Begin a period of false replies, if the last one ended at least GAP ago."""
        now = self.world.now
        if now < self.calm:
            return False
        self.ahead, self.factor = 0, (1, 1)
        self.false = now + 1 + self.world.tape.below(MOMENT)
        self.calm = self.false + GAP
        self.world.log(f"times or fees are false for {self.false - now:.0f} s")
        return True

    def _restarts(self) -> None:
        if self.world.allows(AGAIN + 10):
            self.world.wait_again(AGAIN)
            self.killed = True

    # ---- which node replies ----

    def asked(self) -> Block:
        if self.killed:
            self.killed = False
            self.world.log("a process is killed while it looks")
            raise Killed
        tip = super().asked()
        if self.other <= self.world.now or not self._second():
            return tip
        if self.frozen:
            return self.frozen if tip.has(self.frozen) else tip
        oldest = tip
        while oldest.parent and oldest.parent.time >= self.world.now - self.behind:
            oldest = oldest.parent
        return oldest

    def _second(self) -> bool:
        """Whether the second node replies. If the nodes take turns, the phase of the turns changes now and then, so
        that a player with constant pauses does not always reach the same node."""
        if self.turn:
            now = int(self.world.now)
            return (now // self.turn + chance(now // (10 * self.turn))) % 2 > 0
        return chance(self.count) % 8 < self.share

    # ---- times and fees ----

    def get_block(self, which: Any, full_transactions: bool = False) -> dict[str, Any]:
        found = super().get_block(which, full_transactions)
        if self.false > self.world.now and which == "latest":
            times, by = self.factor
            fee = found["baseFeePerGas"] * times // by
            found = found | {"timestamp": found["timestamp"] + self.ahead, "baseFeePerGas": fee}
        return found

    # ---- logs ----

    def get_logs(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        self._late()
        return self._seen(super().get_logs(query))

    def get_block_receipts(self, which: Any) -> list[dict[str, Any]]:
        self._late()
        return [receipt | {"logs": self._seen(receipt["logs"])} for receipt in super().get_block_receipts(which)]

    def _late(self) -> None:
        if self.logs.stalls > self.world.now:
            self.world.clock.sleep(self.logs.stall)

    def _seen(self, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Logs as this endpoint shows them."""
        mine = [log for log in found if TOPICS.get(log["topics"][0]) in self.logs.events]
        if self.logs.until <= self.world.now or not mine:
            return found
        match self.logs.wrong:
            case "absent":
                return [log for log in found if log not in mine]
            case "altered":
                return [resized(log) if log in mine else log for log in found]
            case "refused":
                raise requests.ConnectionError("refused")
            case "error":
                raise Web3RPCError("query returned more than 0 results")
            case status:
                response = SimpleNamespace(status_code=int(status))
                raise requests.HTTPError(f"{status} for logs", response=response)


def chance(number: int) -> int:
    """A pseudo-random number in 0..255, a function of `number`."""
    return sha256(number.to_bytes(8)).digest()[0]


def resized(log: dict[str, Any]) -> dict[str, Any]:
    """The log with its byte strings and lists shorter or longer; a value of fixed size has other content."""
    kinds = DATA[TOPICS[log["topics"][0]]]
    values = list(decode(kinds, bytes.fromhex(log["data"][2:])))
    for place, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        if kind == "bytes":
            values[place] = value[512:] if len(value) > 512 else value + value
        elif kind.endswith("[]"):
            values[place] = value[1:] if len(value) > 1 else [*value, *value]
        elif kind == "bytes32":
            values[place] = bytes([value[0] ^ 1]) + value[1:]
    return log | {"data": "0x" + encode(kinds, values).hex()}


class Party(Player):
    """A player with such an endpoint."""

    stands: Callable[[], Phase]

    def sit(self) -> None:
        super().sit()
        self.world.eths.remove(self.eth)
        self.eth = Provider(self.world, self.stands, reads=self.name == "buyer")
        self.world.eths.append(self.eth)


__all__ = ["Party", "Provider"]
