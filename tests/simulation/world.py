"""Virtual time: players on stacks of their own, one of which runs at a time, blocks, faults, and reorganisations.

In: a tape. Out: a world that runs to an end. Its faults are charged to an allowance of seconds, which the clocks cover.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from branches import BLOCK, GWEI, START, Block, Tree, Tx
from endpoint import Eth
from greenlet import getcurrent, greenlet
from tape import Tape

from vgame.chain.records import checksummed

FEATURES = (
    "lag", "balancer", "away", "state", "logs", "branch", "lie", "slow", "reorganise", "censor", "drop", "order",
    "fees", "kill", "accusers", "idle", "copies", "openings", "endings", "orders", "acceptor", "withhold", "mixture",
    "variants", "refuse",
)  # fmt: skip
#: The limits of faults.
DEEPEST = 4  # blocks of a reorganisation, skipped quiet blocks included
LAG = 2  # blocks that a node is behind
ALLOWANCES = (400, 200, 100, 0)  # seconds of all faults together
LONGEST = 120  # seconds of a fault
FINAL = 70 * BLOCK  # until a node's reply about a transaction is final


class Killed(BaseException):
    """The process ends here."""


class Endless(BaseException):
    """The process never waits."""


class Stopped(BaseException):
    """The world ends."""


@lru_cache(1)
def _timed(_: int) -> list[Any]:
    """The loaded modules of vgame that use `time`. The argument, the number of loaded modules, is the key of the
    cache."""
    ours = [module for name, module in list(sys.modules.items()) if name.startswith("vgame.")]
    return [module for module in ours if vars(module).get("time") is time]


class Clock:
    """Twin: the module `time`."""

    def __init__(self, world: World) -> None:
        self.world = world

    def monotonic(self) -> float:
        return self.world.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self._wait(self.world.now + max(seconds, 0.0), False)

    def until_block(self, end: float) -> None:
        """Wait until the next block, or until a time."""
        self._wait(end, True)

    def _wait(self, end: float, block: bool) -> None:
        if seat := self.world.running:
            seat.wait(end, block)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within this context it is the clock of all modules of vgame."""
        changed = _timed(len(sys.modules))
        for module in changed:
            module.time = self
        try:
            yield
        finally:
            for module in changed:
                module.time = time


class Seat:
    """A player's own stack, which runs while the world waits for it."""

    def __init__(self, world: World, name: str, body: Callable[[], None]) -> None:
        self.stack = greenlet(self._main)
        self.world, self.name, self.body = world, name, body
        self.wake, self.block, self.done, self.stopped = world.now, False, False, False

    def _main(self) -> None:
        try:
            if not self.stopped:
                self.body()
        except Stopped:
            pass
        finally:
            self.done = True

    def run(self) -> None:
        """Run until the player waits."""
        self.world.running, self.stack.parent = self, getcurrent()
        try:
            self.stack.switch()
        finally:
            self.world.running = None

    def wait(self, end: float, block: bool) -> None:
        self.wake, self.block = end, block
        self.stack.parent.switch()
        if self.stopped:
            raise Stopped

    def stop(self) -> None:
        self.stopped = True
        while not self.done:
            self.run()


class Account:
    """Twin: eth_account's LocalAccount. Its signature is a number under which the world finds the transaction."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.key = world, number.to_bytes(32, "big")
        self.address = str(checksummed(f"0x{0xC0DE0000 + number:040x}"))

    def sign_transaction(self, tx: dict[str, Any]) -> SimpleNamespace:
        fees = tx["maxPriorityFeePerGas"], tx["maxFeePerGas"]
        made = Tx(self.address.lower(), tx["to"], tx["value"], tx["gas"], tx["nonce"], bytes(tx["data"]), *fees)
        raw = made.digest
        self.world.signed[raw] = made
        return SimpleNamespace(raw_transaction=raw, hash=raw)


class World:
    """`inside`: faults take no more seconds than the allowance `left`."""

    def __init__(self, tape: Tape, inside: bool = True) -> None:
        self.tape, self.inside = tape, inside
        self.spent = 0.0
        self.now, self.running = float(START + BLOCK), None
        self.clock, self.seats = Clock(self), []
        self.enabled = {name for name in FEATURES if tape.byte() & 1}
        self.left = tape.pick(ALLOWANCES)
        self.least = tape.pick((1, 10, 40)) * GWEI
        self.tip = self.least // 10
        self.signed: dict[bytes, Tx] = {}
        self.honest: dict[str, str] = {}  # names of honest players, by account
        self.eths: list[Eth] = []
        self.story: list[str] = []
        self.hash = hashlib.sha256()
        self.deadline: Callable[[], float | None] = lambda: None
        self.strangers: Callable[[], None] = lambda: None
        self.quiet, self.moved, self.branch, self.unsettled = 0, False, 0, 0.0
        self.reorganised: Callable[[Block, Block], list[Tx]] = lambda old, to: []

    def begin(self, grants: dict[str, int]) -> None:
        self.tree = Tree(self.least, grants)
        self.next = self.now + BLOCK

    def log(self, text: str) -> None:
        line = f"{self.now - START:8.1f} {text}"
        self.story.append(line)
        self.hash.update(line.encode())

    def on(self, feature: str, percent: float) -> bool:
        """Whether the fault happens now."""
        return feature in self.enabled and self.tape.chance(percent)

    def allows(self, seconds: float) -> bool:
        """Whether the allowance covers this many more seconds; charges them if so."""
        if self.inside and self.spent + seconds > self.left:
            return False
        self.spent += seconds
        return True

    # ---- transactions ----

    def submit(self, tx: Tx) -> None:
        """A node has accepted the transaction."""
        self.moved, self.next = True, min(self.next, self.now + BLOCK)
        name = self.honest.get(tx.sender)
        if name and self.on("drop", 4) and self.allows(75):
            self.log(f"{name}'s transaction {tx.nonce} is dropped")
            return
        self.tree.pool[tx.sender, tx.nonce] = tx
        blocks = 1 + self.tape.below(5)
        if name and self.on("censor", 6) and self.allows(BLOCK * blocks):
            self.log(f"{name}'s transaction {tx.nonce} is held for {blocks} blocks")
            self.tree.held[tx.digest] = self.tree.head.number + 1 + blocks

    # ---- time ----

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Run until a time, or until `over`."""
        while self.now < until and not over():
            seat = min((s for s in self.seats if not s.done), key=lambda s: s.wake, default=None)
            if seat is not None and seat.wake < self.next:
                self.now = max(self.now, seat.wake)
                seat.run()
            else:
                self.now = self.next
                self._block()

    def _block(self) -> None:
        self.strangers()
        self._faults()
        head = self.tree.head
        seconds = BLOCK * (1 + self.tape.below(DEEPEST)) if self.on("reorganise", 3) else 0
        root = self._before(seconds)
        if root is not head and self.allows(seconds):
            self.reorganise(root)
        else:
            self.tree.stand(self.built(head, int(self.now), self._base_fee(head), self._order(head)))
        head = self.tree.head
        idle = not (head.txs or self.tree.pool or self.moved)
        self.quiet, self.moved = self.quiet + 1 if idle else 0, False
        self.next = self.now + BLOCK
        if self.quiet >= 3 and self.now > self.unsettled and (end := self.deadline()) is not None:
            self.next = max(self.next, end - 2 * BLOCK)
        for n, seat in enumerate(s for s in self.seats if s.block and not s.done):
            seat.wake = min(seat.wake, self.now + 0.5 + n)

    def built(self, parent: Block, time: int, base_fee: int, candidates: list[Tx]) -> Block:
        block = self.tree.append(parent, time, base_fee, candidates, self.branch)
        for receipt in block.receipts or ():
            tx = receipt["tx"]
            if name := self.honest.get(tx.sender):
                state = "" if receipt["status"] else f" REVERTED {receipt['output'][:10]}"
                self.log(f"  block {block.number}: {name}'s transaction {tx.nonce}{state}")
                if not receipt["status"] or self._replaces(tx):
                    self.unsettled = self.now + FINAL
        return block

    def wait_again(self, seconds: float) -> None:
        """A player that waits for finality, and is down for some seconds, starts its wait again."""
        if self.unsettled > self.now:
            self.unsettled = max(self.unsettled, self.now + seconds + FINAL)

    def _replaces(self, tx: Tx) -> bool:
        """Whether another call was signed with its nonce; then its sender waits for finality, and no block is
        skipped."""
        same = (other for other in self.signed.values() if (other.sender, other.nonce) == (tx.sender, tx.nonce))
        return any(other.data != tx.data for other in same)

    def _base_fee(self, parent: Block) -> int:
        """Between the minimum and twice the minimum, in steps of an eighth."""
        if "fees" not in self.enabled:
            return self.least
        step = self.tape.pick((-parent.base_fee // 8, 0, parent.base_fee // 8, parent.base_fee // 8))
        return min(max(parent.base_fee + step, self.least), 2 * self.least)

    def _order(self, parent: Block) -> list[Tx]:
        """The candidates of the next block; strangers' transactions may come first, or last."""
        found = self.tree.candidates(parent.number + 1, 0)
        if self.on("order", 30):
            first = self.tape.below(2)
            found.sort(key=lambda tx: ((tx.sender in self.honest) == first, -tx.tip, tx.nonce))
        return found

    def _before(self, seconds: int) -> Block:
        """The newest block that is older than `seconds`, counting the time of skipped quiet blocks."""
        block = self.tree.head
        while block.number > 1 and block.time >= self.now - seconds:
            block = block.ancestor(block.number - 1)
        return block

    def reorganise(self, root: Block) -> None:
        """Another branch, one block longer: the same transactions in another order, some of them later."""
        old = self.tree.head
        self.branch += 1
        waiting = [tx for n in range(root.number + 1, old.number + 1) for tx in old.ancestor(n).txs]
        self.log(f"blocks {root.number + 1} to {old.number} are replaced")
        waiting = [tx for tx in waiting if tx.sender in self.honest or not self.on("variants", 50)]
        waiting += self.reorganised(old, root)
        waiting += [tx for tx in self.tree.candidates(root.number + 1, 0) if tx not in waiting]
        if self.tape.below(2):
            waiting.reverse()
        head = root
        for number in range(root.number + 1, old.number + 2):
            time = int(self.now) if number > old.number else old.ancestor(number).time
            later = 0 if number > old.number else self.tape.below(2)
            head = self.built(head, time, old.base_fee, waiting[: len(waiting) // 2] if later else waiting)
            waiting = [tx for tx in waiting if tx not in head.txs]
        self.tree.stand(head)
        self.moved = True

    # ---- faults of nodes ----

    def _faults(self) -> None:
        for eth in self.eths:
            self._fault(eth)

    def _fault(self, eth: Eth) -> None:
        kind = self.tape.below(64)  # most often none
        names = ("none", "lag", "balancer", "away", "state", "logs", "branch", "lie", "slow")
        if kind >= len(names) or names[kind] not in self.enabled:
            return
        f, name, seconds = eth.faults, names[kind], 1 + self.tape.below(LONGEST)
        if name in ("lag", "balancer"):
            f.lag, f.other = (self.tape.below(LAG + 1), 0) if name == "lag" else (0, self.tape.below(LAG + 1))
            self.log(f"a node: {name} {f.lag} {f.other}")
        elif self.allows(seconds):
            self.log(f"a node: {name} for {seconds} s")
            until = self.now + seconds
            match name:
                case "away":
                    f.away, f.status = until, self.tape.pick((0, 429, 500, 400))
                case "state" | "logs":
                    setattr(f, name, until)
                    f.frozen = self.tree.head.ancestor(self.tree.head.number - self.tape.below(20))
                case "branch":
                    f.branch = until
                case "lie":
                    f.lie, f.field = until, self.tape.byte() << 8 | self.tape.byte()
                case "slow":
                    f.slow = 1.0 + self.tape.below(6)

    def end(self) -> None:
        for seat in self.seats:
            seat.stop()
