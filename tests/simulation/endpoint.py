"""The web3 object of a player in the simulator: a node of its own, with faults.

In: a world. Out: replies to vgame's requests, in the state of the block that this node takes for the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import requests
from branches import Block, Replica, Reverted, Tx, contracts
from revm_calls import calldata, decode_log, decode_output, topic
from revm_chain import RevmContents
from revm_node import CHAIN_ID, RICH
from web3 import Web3
from web3.exceptions import ContractCustomError, ContractLogicError, Web3RPCError

from vgame.chain.block_ids import RpcError, block_id
from vgame.chain.connection import Chain
from vgame.chain.contents import Contents
from vgame.chain.events import Events
from vgame.chain.game import Game

#: Views that depend on the state alone, not on the time.
TIMELESS = {
    "getJob", "getDispute", "credits", "isDelegate", "getPosts", "opened", "ordersOf", "claimsOf", "getVerdict",
}  # fmt: skip
#: Views in which a time is compared with deadlines, which they return.
CLOCKED: dict[str, Callable[[Any], list[int]]] = {
    "getDisputes": lambda standings: [deadline for _, _, deadline, _ in standings if deadline],
    "turn": lambda found: [found[1]],
}
FOREVER = 2**64
Output = tuple[bytes, int]  # output of a call, and its gas
NONE = bytes(32)
CODEC = Web3().codec


@dataclass(slots=True)
class Faults:
    """The faults of a node, each with its end (in seconds of the world; 0: no fault)."""

    lag: int = 0  # blocks
    away: float = 0.0  # no answers
    state: float = 0.0  # states are those of `frozen`, headers are not
    logs: float = 0.0  # logs too
    frozen: Block | None = None
    branch: float = 0.0  # the node stays at its block, also on an abandoned branch
    lie: float = 0.0  # one field of a job is altered
    field: int = 0
    status: int = 0  # HTTP status while it is away; 0: the connection is refused
    slow: float = 0.0  # seconds that one request in eight takes
    other: int = 0  # a load balancer: a node this many blocks behind answers every other request


class Eth:
    """web3.eth of one node."""

    accounts: list[str] = []  # noqa: RUF012
    chain_id = CHAIN_ID

    def __init__(self, world: Any, direct: bool = False) -> None:
        self.world, self.direct, self.faults = world, direct, Faults()
        self.replica = world.tree.replica if direct else Replica()
        self.default_block: Any = "latest"
        self.held: Block = world.tree.head
        self.count = 0

    # ---- manners ----

    def asked(self) -> Block:
        """A request arrives; returns the block that is the newest at this node."""
        if self.direct:
            return self.world.tree.head
        now, faults = self.world.now, self.faults
        self.count += 1
        if faults.slow and self.count % 8 == 0:
            self.world.clock.sleep(faults.slow)
        if faults.away > now:
            if not faults.status:
                raise requests.ConnectionError("refused")
            response = SimpleNamespace(status_code=faults.status)
            raise requests.HTTPError(f"{faults.status} for a request", response=response)
        if faults.branch <= now:
            head = self.world.tree.head
            behind = faults.lag + (faults.other if self.count % 2 else 0)
            tip = head.ancestor(head.number - behind)
            if behind or not tip.has(self.held) or tip.number >= self.held.number:
                self.held = tip
        return self.held

    def block_of(self, which: Any) -> Block:
        """The named block of this node's branch."""
        tip = self.asked()
        if isinstance(which, dict):
            which = which["blockHash"]
        match _named(which):
            case "latest" | "pending" | "safe":
                return tip
            case "finalized":
                return tip.ancestor(tip.number - 64)
            case "earliest":
                return tip.ancestor(0)
            case int(number) if number <= tip.number:
                return tip.ancestor(number)
            case str(digest) if (block := self.world.tree.known.get(bytes.fromhex(digest[2:]))) and tip.has(block):
                return block
        raise Web3RPCError("header not found")

    def state_of(self, which: Any) -> Block:
        block = self.block_of(which)
        if self.faults.state > self.world.now and self.faults.frozen and block.has(self.faults.frozen):
            return self.faults.frozen
        return block

    # ---- requests ----

    @property
    def block_number(self) -> int:
        return self.asked().number

    @property
    def max_priority_fee(self) -> int:
        self.asked()
        return self.world.tip

    def get_block(self, which: Any, full_transactions: bool = False) -> dict[str, Any]:
        block = self.block_of(which)
        return self.cached((block, full_transactions), lambda: header(block, full_transactions))

    def get_balance(self, account: str, block: Any = None) -> int:
        made = self.state_of(self.default_block if block is None else block).made
        return self.cached((made, account.lower()), lambda: self.replica_at(made).at(made).get_balance(account))

    def get_transaction_count(self, account: str, block: Any = None) -> int:
        which = self.default_block if block is None else block
        count = self.state_of(which).nonces.get(account.lower(), 0)
        while which == "pending" and (account.lower(), count) in self.world.tree.pool:
            count += 1
        return count

    def get_code(self, account: str, block: Any = None) -> bytes:
        self.block_of(self.default_block if block is None else block)
        return contracts()[1].get(account, b"")

    def send_raw_transaction(self, raw: bytes) -> bytes:
        tip, tx = self.asked(), self.world.signed[bytes(raw)]
        if refusal := self.world.tree.refusal(tx, tip):
            raise Web3RPCError(refusal, rpc_response={"error": {"code": -32_000, "message": refusal}})
        if not self.world.tree.refusal(tx, self.world.tree.head):  # else this node alone accepts it
            self.world.submit(tx)
        return tx.digest

    def get_transaction_receipt(self, digest: bytes) -> Any:
        return self.world.tree.receipt(bytes(digest), self.asked())

    def get_block_receipts(self, which: Any) -> list[dict[str, Any]]:
        return self.block_of(which).receipts or []

    def get_logs(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        tip = self.asked()
        if (digest := query.get("blockHash")) is not None:
            block = self.block_of(digest)
            first, last = block.number, block.number
        else:
            first, last = (int(query[key], 16) if query.get(key) else 0 for key in ("fromBlock", "toBlock"))
        if self.faults.logs > self.world.now and self.faults.frozen:
            last = min(last, self.faults.frozen.number)
        wanted = [topic and topic.lower() for topic in query.get("topics") or []]
        logs = self.cached((tip.made, "logs"), lambda: self.world.tree.logs(tip))
        return [
            log for log in logs
            if first <= int(log["blockNumber"], 16) <= last
            and all(w is None or (n < len(log["topics"]) and log["topics"][n] == w) for n, w in enumerate(wanted))
        ]  # fmt: skip

    # ---- calls ----

    def cached(self, key: Any, find: Any) -> Any:
        views = self.world.tree.views
        if key not in views:
            views[key] = find()
        return views[key]

    def clocked(self, block: Block, name: str, data: str, find: Callable[[], Output | Reverted]) -> Output | Reverted:
        """A cached view of clocks: its result stays the same until the next of its deadlines."""
        spans = self.cached((block.made, data), list)
        for begin, end, found in spans:
            if begin < block.time <= end:
                return found
        found = find()
        ends = [] if isinstance(found, Reverted) else CLOCKED[name](_values(name, found[0]))
        begin = max((end for end in ends if end < block.time), default=0)
        spans.append((begin, min((end for end in ends if end >= block.time), default=FOREVER), found))
        return found

    def replica_at(self, block: Block) -> Replica:
        """The replica of the newest block, if it has the same state; only for a lagging node a block is executed
        again."""
        newest = self.world.tree.replica
        return newest if newest.path[-1][0].made is block.made else self.replica

    def view(self, name: str, data: str, which: Any, sender: str = RICH[0], value: int = 0) -> Any:
        """Output of a call, and its gas; each call is executed once per state."""
        block = self.state_of(which)

        def call() -> Output | Reverted:
            try:
                replica = self.replica_at(block)
                return replica.call(block, sender, contracts()[0], bytes.fromhex(data[2:]), value)
            except Reverted as reverted:
                return reverted

        if name in CLOCKED:
            found = self.clocked(block, name, data, call)
        elif name in TIMELESS:
            found = self.cached((block.made, data), call)
        else:
            found = self.cached((block, data, sender, value), call)
        if isinstance(found, Reverted):
            text = found.args[0]
            raise ContractCustomError(text, data=text) if len(text) > 9 else ContractLogicError("reverted", data=text)
        return found


@lru_cache(10_000)
def _named(which: Any) -> int | str:
    """The block id of a request: a tag, a number or a hash."""
    if isinstance(which, int):
        return which
    return block_id("0x" + which.hex() if isinstance(which, bytes) else which).which


def header(block: Block, full: bool) -> dict[str, Any]:
    """The JSON form of a block; `full`: with its transactions."""
    parent = block.parent.digest if block.parent else NONE
    txs = [{"from": t.sender, "to": t.to, "nonce": t.nonce} if full else t.digest for t in block.txs]
    return {
        "number": block.number, "hash": block.digest, "parentHash": parent, "timestamp": block.time,
        "baseFeePerGas": block.base_fee, "transactions": txs, "gasLimit": 10**9,
    }  # fmt: skip


@lru_cache(10_000)
def _values(name: str, output: bytes) -> Any:
    """The decoded values of a view."""
    values = decode_output(name, "0x" + output.hex())
    return values[0] if len(values) == 1 else values


class Function:
    """A function of the game with its arguments."""

    def __init__(self, eth: Eth, name: str, args: Any) -> None:
        self.eth, self.name, self.data = eth, name, calldata(name, args)

    def call(self, tx: dict[str, Any] | None = None, block_identifier: Any = None) -> Any:
        which = self.eth.default_block if block_identifier is None else block_identifier
        tx = tx or {}
        output, _ = self.eth.view(self.name, self.data, which, tx.get("from", RICH[0]), tx.get("value", 0))
        values = _values(self.name, output)
        if self.name == "getJob" and self.eth.faults.lie > self.eth.world.now:
            return altered(values, self.eth.faults.field)
        return values

    def estimate_gas(self, tx: dict[str, Any]) -> int:
        return self.eth.view(f"estimate {self.name}", self.data, "latest", tx["from"], tx.get("value", 0))[1]

    def _encode_transaction_data(self) -> str:
        return self.data


def altered(record: tuple[Any, ...], field: int) -> tuple[Any, ...]:
    """The record with one field changed."""
    place = field % (len(record) - 1)
    old = record[place]
    match old:
        case bool():
            new: Any = not old
        case int():
            new = (old + 1, 0, old * 2, max(old - 1, 0))[field // len(record) % 4]
        case bytes():
            new = bytes([old[0] ^ 1]) + old[1:] if old else old
        case _:
            new = RICH[1]
    return (*record[:place], new, *record[place + 1 :])


class SimChain(Chain):
    """vgame's chain over such a node."""

    def __init__(self, world: Any, eth: Eth) -> None:
        self.world, self.checks = world, []
        self.url = self.secret = "a node"
        self.web3 = SimpleNamespace(eth=eth, codec=CODEC)
        self.chain_id = CHAIN_ID

    def use(self, node: Any) -> None:
        self.web3.eth = node

    def polls(self, seconds: float) -> Iterator[None]:
        """Polls now, and at each block."""
        end = self.world.now + seconds
        yield
        while self.world.now < end:
            self.world.clock.until_block(end)
            yield

    def pause(self, seconds: float, *_: float) -> None:
        """Wait until the next block, at most for ten times these seconds."""
        self.world.clock.until_block(self.world.now + 10 * seconds)


class SimContents(RevmContents):
    """Contents of the player's own node."""

    logs, receipts = Contents.logs, Contents.receipts


class SimGame(Game):
    """vgame's game over such a chain, without web3's contract objects, which cost ten times as much as the EVM."""

    def __init__(self, chain: SimChain, wallet: Any = None) -> None:
        self.chain, self.wallet, self.address = chain, wallet, contracts()[0]
        self._events = Events(chain, self.address, decode_log)
        self.contents = SimContents(chain, self.address, decode_log)
        self.begun, self.ranges = {}, None

    def _function(self, name: str, args: Any) -> Function:
        return Function(self.chain.web3.eth, name, args)

    def _topic(self, name: str) -> bytes:
        return bytes.fromhex(topic(name)[2:])


__all__ = ["Eth", "Faults", "Function", "RpcError", "SimChain", "SimGame", "Tx"]
