"""A chain of blocks with branches, its mempool, and states on the Rust EVM.

In: signed transactions, and choices of a tape. Out: blocks; the state after any of them. Gas costs money here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyrevm
from revm_chain import RevmChain, Unsigned
from revm_node import REVERT, RICH, Env, Reverted, RevmNode, new_evm
from scene import deploy_code, toy_contracts

from vgame.chain.wallet import Wallet, deploy_game

GWEI = 10**9
START = 1_700_000_000
BLOCK = 12  # seconds between two blocks
DEPLOYER = "0x" + 32 * "01"
SINK = f"0x{0xFEE:040x}"  # receives all fees
BUMP = 1.1  # the least factor of a replacement's fee


@dataclass(frozen=True, slots=True)
class Tx:
    """A signed transaction."""

    sender: str
    to: str
    value: int
    gas: int
    nonce: int
    data: bytes
    tip: int
    most: int
    digest: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(repr(self).encode()).digest())


@dataclass(slots=True, eq=False)
class Block:
    """`nonces`: after this block. `made`: the last block up to this one that changed the state. `receipts`: None until
    the block is executed."""

    parent: Block | None
    number: int
    time: int
    base_fee: int
    branch: int = 0  # counts reorganisations
    txs: tuple[Tx, ...] = ()
    grants: tuple[tuple[str, int], ...] = ()  # balances that are set before its transactions
    digest: bytes = b""
    nonces: dict[str, int] = field(default_factory=dict)
    made: Block | None = None
    receipts: list[dict[str, Any]] | None = None
    line: list[Block] = field(default_factory=list)  # all blocks up to this one, by number; shared with its descendants

    def __post_init__(self) -> None:
        before = self.parent.digest if self.parent else b""
        parts = (before, self.number, self.time, self.base_fee, self.branch, [tx.digest for tx in self.txs])
        self.digest = hashlib.sha256(repr(parts).encode()).digest()
        changed = self.txs or self.grants or not self.parent
        self.made = self if changed else self.parent.made
        self.nonces = (
            dict(self.parent.nonces) if self.parent and self.txs else self.parent.nonces if self.parent else {}
        )
        for tx in self.txs:
            self.nonces[tx.sender] = tx.nonce + 1
        line = self.parent.line if self.parent else []
        self.line = line if len(line) == self.number else line[: self.number]
        self.line.append(self)

    def ancestor(self, number: int) -> Block:
        return self.line[min(max(number, 0), self.number)]

    def has(self, other: Block) -> bool:
        """Whether the branch that ends with this block contains the other block."""
        return other.number <= self.number and self.line[other.number] is other


@cache
def contracts() -> tuple[str, dict[str, bytes]]:
    """The game's address, and the code of all its parts over the toy machine."""
    chain = RevmChain(RevmNode())
    wallet = Wallet(chain, DEPLOYER)
    wallet.account = Unsigned(wallet.account)
    chain.node.set_balance(wallet.address, 10**20)
    address = deploy_game(wallet, deploy_code(chain, toy_contracts()["ToyReferee"]["bytecode"]))
    made = [r["contractAddress"] for r in chain.node.receipts.values() if r["contractAddress"]]
    return address, {part: bytes.fromhex(chain.node.code(part)[2:]) for part in made}


@cache
def accounts() -> dict[str, pyrevm.AccountInfo]:
    """The same contracts as an EVM's account records: deployed code is analysed once, other code at every call."""
    evm, copy = new_evm(), "61{:04x}80600c6000396000f3"  # returns the code behind these twelve bytes
    made = {part: evm.deploy(RICH[0], bytes.fromhex(copy.format(len(code))) + code)
            for part, code in contracts()[1].items()}  # fmt: skip
    evm.commit()
    return {part: evm.basic(at) for part, at in made.items()}


class Replica:
    """An EVM in the state after one block, which can move to any other block."""

    def __init__(self) -> None:
        self.evm = new_evm()
        for address, account in accounts().items():
            self.evm.insert_account_info(address, account)
        self.path: list[tuple[Block, Any]] = []

    def _back(self, length: int) -> None:
        while len(self.path) > length:
            point = self.path.pop()[1]
            if point is not None:
                self.evm.revert(point)

    def at(self, block: Block) -> pyrevm.EVM:
        """The state after a block."""
        missing, here = [], block
        while here is not None and not (here.number < len(self.path) and self.path[here.number][0] is here):
            missing.append(here)
            here = here.parent
        self._back(here.number + 1 if here else 0)
        for new in reversed(missing):
            self._apply(new)
        return self.evm

    def _apply(self, block: Block) -> None:
        changes = block.txs or block.grants
        self.path.append((block, self.evm.snapshot() if changes else None))
        for account, wei in block.grants:
            self.evm.set_balance(account, wei)
        receipts = [self._include(block, tx, index) for index, tx in enumerate(block.txs)]
        if block.receipts is None:
            block.receipts = receipts

    def _include(self, block: Block, tx: Tx, index: int) -> dict[str, Any]:
        Env(block.number, block.time, 0).enter(self.evm)
        point, status, logs, output = self.evm.snapshot(), 1, [], ""
        try:
            self.evm.message_call(tx.sender, tx.to, calldata=tx.data, value=tx.value, gas=tx.gas)
            used, logs = self.evm.result.gas_used, list(self.evm.result.logs)
            self.evm.commit()
        except RuntimeError as error:
            self.evm.revert(point)
            found = REVERT.match(str(error))
            status, output = 0, found[1] if found else str(error)[:60]
            used = int(str(error).split("gas_used: ")[1].split(",")[0]) if found else tx.gas
        if block.receipts is not None:  # gas depends on the accounts that an EVM has touched before
            used = block.receipts[index]["gasUsed"]
        fee = used * min(tx.most, block.base_fee + tx.tip)
        self.evm.snapshot()
        self.evm.message_call(tx.sender, SINK, value=fee)  # set_balance would not be undone by a revert
        self.evm.commit()
        place = {"blockNumber": block.number, "blockHash": block.digest, "transactionHash": tx.digest}
        place |= {"transactionIndex": index, "from": tx.sender, "to": tx.to, "status": status, "gasUsed": used}
        return place | {
            "fee": fee,
            "output": output,
            "tx": tx,
            "logs": [_log(place, n, log) for n, log in enumerate(logs)],
        }

    def call(
        self, block: Block, sender: str, to: str, data: bytes, value: int = 0, gas: int = 10**9
    ) -> tuple[bytes, int]:
        """Output and gas of a call whose effects are undone; raises Reverted if it reverts."""
        evm = self.at(block)
        Env(block.number, block.time, 0).enter(evm)
        point = evm.snapshot()
        try:
            output = bytes(evm.message_call(sender, to, calldata=data, value=value, gas=gas))
            return output, evm.result.gas_used
        except RuntimeError as error:
            found = REVERT.match(str(error))
            raise Reverted(found[1] if found else "0x", "" if found else str(error)[:60]) from None
        finally:
            evm.revert(point)


def _log(place: dict[str, Any], index: int, log: Any) -> dict[str, Any]:
    data = log.data[1] if isinstance(log.data, tuple) else log.data
    where = {key: place[key] for key in ("blockHash", "transactionIndex")}
    return where | {
        "blockNumber": hex(place["blockNumber"]), "transactionHash": place["transactionHash"].hex(),
        "address": log.address, "topics": list(log.topics), "data": "0x" + bytes(data).hex(), "logIndex": hex(index),
    }  # fmt: skip


class Tree:
    """All blocks ever made, the newest block of the canonical branch, and the transactions that wait to be included."""

    def __init__(self, base_fee: int, grants: dict[str, int]) -> None:
        first = Block(None, 0, START, base_fee)
        self.replica = Replica()
        self.head = Block(first, 1, START + BLOCK, base_fee, grants=tuple(grants.items()))
        self.pool: dict[tuple[str, int], Tx] = {}
        self.held: dict[bytes, int] = {}  # the block before which a transaction is not included, by its hash
        self.known: dict[bytes, Block] = {first.digest: first, self.head.digest: self.head}
        self.places: dict[bytes, list[Block]] = {}  # blocks with a transaction, by its hash
        self.views: dict[Any, Any] = {}
        self.replica.at(self.head)

    def balance(self, account: str, block: Block | None = None) -> int:
        return self.replica.at((block or self.head).made).get_balance(account)

    def nonce(self, account: str, block: Block | None = None) -> int:
        return (block or self.head).nonces.get(account, 0)

    def refusal(self, tx: Tx, block: Block) -> str:
        """The error with which a node at a block refuses a transaction; empty if it accepts it."""
        waiting = self.pool.get((tx.sender, tx.nonce))
        if tx.nonce < self.nonce(tx.sender, block):
            return "nonce too low"
        if waiting == tx:
            return "already known"
        if waiting and tx.most < BUMP * waiting.most:
            return "replacement transaction underpriced"
        if self.balance(tx.sender, block) < tx.value + tx.gas * tx.most:
            return "insufficient funds for gas * price + value"
        return ""

    def candidates(self, number: int, base_fee: int) -> list[Tx]:
        """The transactions that a block may include, the highest tip first; those of one account stay in their
        order."""
        ready = [tx for tx in self.pool.values() if self.held.get(tx.digest, 0) <= number and tx.most >= base_fee]
        return sorted(ready, key=lambda tx: (-tx.tip, tx.sender, tx.nonce))

    def append(self, parent: Block, time: int, base_fee: int, candidates: list[Tx], branch: int) -> Block:
        """A block of those candidates that can be paid for and have the next nonce."""
        nonces, txs, rest = dict(parent.nonces), [], list(candidates)
        money: dict[str, int] = {}
        while (tx := next((tx for tx in rest if nonces.get(tx.sender, 0) == tx.nonce), None)) is not None:
            rest.remove(tx)
            owned = money.get(tx.sender)
            owned = self.replica.at(parent.made).get_balance(tx.sender) if owned is None else owned
            if owned >= (needed := tx.value + tx.gas * min(tx.most, base_fee + tx.tip)):
                nonces[tx.sender], money[tx.sender] = tx.nonce + 1, owned - needed
                txs.append(tx)
        block = Block(parent, parent.number + 1, time, base_fee, branch, tuple(txs))
        self.known[block.digest] = block
        for tx in txs:
            self.places.setdefault(tx.digest, []).append(block)
        self.replica.at(block.made)
        return block

    def stand(self, head: Block) -> list[Tx]:
        """Set the newest block; transactions that its branch omits wait again. Returns these transactions."""
        old, back = self.head, []
        while not head.has(old):
            back += old.txs
            old = old.parent
        self.head = head
        for tx in back:
            self.pool.setdefault((tx.sender, tx.nonce), tx)
        self.pool = {key: tx for key, tx in self.pool.items() if tx.nonce >= self.nonce(tx.sender)}
        return [tx for tx in back if (tx.sender, tx.nonce) in self.pool]

    def receipt(self, digest: bytes, tip: Block) -> dict[str, Any] | None:
        """The receipt of a transaction in the branch that ends with `tip`."""
        for block in self.places.get(digest, ()):
            if tip.has(block):
                self.replica.at(block) if block.receipts is None else None
                return next(r for r in block.receipts if r["transactionHash"] == digest)
        return None

    def logs(self, tip: Block, first: int = 0) -> list[dict[str, Any]]:
        """The logs of the branch that ends with `tip`, in order."""
        found, block = [], tip.made
        while block is not None and block.number >= first:
            found += reversed([log for receipt in block.receipts or () for log in receipt["logs"]])
            block = block.parent and block.parent.made
        return found[::-1]


__all__ = ["BLOCK", "GWEI", "RICH", "START", "Block", "Replica", "Reverted", "Tree", "Tx", "contracts"]
