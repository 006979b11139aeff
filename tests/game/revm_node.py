"""A development node over an in-process EVM in Rust (pyrevm): the tests' fast chain. The embedded chain and anvil play
fewer games.

In: JSON-RPC requests, by a function call instead of HTTP. One transaction is one block. Gas is free, so money can be
counted to the wei.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyrevm
from eth_account import Account
from web3 import Web3

from vgame.chain.block_ids import RpcError, find, log_range, state

CHAIN_ID = 1337
START = 1_700_000_000
RICH = [f"0x{i:040x}" for i in range(0xA1, 0xA4)]
HISTORY = 256  # blocks before the newest whose states can be queried
REVERT = re.compile(r"^Revert \{ gas_used: \d+, output: (0x[0-9a-f]*) \}")


class Reverted(Exception):
    """A call reverted, or halted."""

    def __init__(self, data: str, halt: str = "") -> None:
        super().__init__(data)
        self.body = {"code": 3, "message": f"execution reverted {halt}".strip(), "data": data}


BASEFEE, PREVRANDAO, PUSH1, PUSH32 = 0x48, 0x44, 0x60, 0x7F


def replaced(code: bytes, old: int, new: int) -> bytes:
    """Code with one instruction replaced by another, at least once; pushed data are unchanged."""
    found, place = bytearray(code), 0
    while place < len(code):
        if code[place] == old:
            found[place] = new
        place += 1 + (code[place] - PUSH1 + 1 if PUSH1 <= code[place] <= PUSH32 else 0)
    assert found != code
    return bytes(found)


@dataclass(frozen=True, slots=True)
class Env:
    """The block as contracts see it; `beacon` is the base fee shown to them."""

    number: int
    time: int
    beacon: int

    def enter(self, evm: pyrevm.EVM) -> None:
        beacon = self.beacon.to_bytes(32, "big")
        evm.set_block_env(pyrevm.BlockEnv(number=self.number, timestamp=self.time, gas_limit=10**12, prevrandao=beacon))


def new_evm() -> pyrevm.EVM:
    return pyrevm.EVM(pyrevm.Env(cfg=pyrevm.CfgEnv(chain_id=CHAIN_ID)), gas_limit=10**13, spec_id="PRAGUE")


class RevmNode:
    """The JSON-RPC methods that vgame uses."""

    def __init__(self, history: int = HISTORY) -> None:
        self.evm, self.history = new_evm(), history
        self.blocks: list[dict[str, Any]] = []
        self.numbers: dict[str, int] = {}  # of every block that was ever made
        self.deeds: list[Callable[[pyrevm.EVM], object]] = []  # all operations that changed the state, in order
        self.ends: list[int] = []  # for every block but the newest, the number of deeds up to its end
        self.past: tuple[int, pyrevm.EVM] | None = None  # an EVM that has repeated this number of deeds
        self.receipts: dict[str, dict[str, Any]] = {}
        self.read, self.found = 0, defaultdict[tuple[str, str | None], list[dict[str, Any]]](list)
        self.nonces: dict[str, int] = {}
        self.next_time: int | None = None
        self.base_fee = 0  # seen by contracts after `show_base_fee`
        self._append(Env(0, START, 0), [])
        for account in RICH:
            self.set_balance(account, 10**30)
        self.methods = {
            "eth_chainId": lambda: hex(CHAIN_ID),
            "eth_blockNumber": lambda: hex(self.newest()),
            "eth_accounts": lambda: RICH,
            "eth_maxPriorityFeePerGas": lambda: "0x0",
            "eth_getBalance": lambda account, block=None: hex(self.state(block).get_balance(account)),
            "eth_getTransactionCount": lambda account, block=None: hex(self.nonce(account, block)),
            "eth_getCode": self.code,
            "eth_getStorageAt": self.storage,
            "eth_getBlockByNumber": self.block,
            "eth_getBlockByHash": self.block,
            "eth_getBlockReceipts": self.block_receipts,
            "eth_getTransactionByHash": lambda digest: self.receipts.get(digest),
            "eth_getTransactionReceipt": lambda digest: self.receipts.get(digest),
            "eth_getLogs": self.logs,
            "eth_call": self.call,
            "eth_estimateGas": self.estimate,
            "eth_sendTransaction": self.send,
            "eth_sendRawTransaction": self.send_raw,
            "evm_increaseTime": self.increase_time,
            "evm_setNextBlockTimestamp": lambda time: setattr(self, "next_time", time),
            "evm_mine": lambda: self.mine(self._next(), [], len(self.deeds)),
            "evm_snapshot": self.snapshot,
            "evm_revert": self.revert,
        }

    def handle(self, method: str, params: list[Any]) -> dict[str, Any]:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": 1}
        if method not in self.methods:
            return reply | {"error": {"code": -32601, "message": f"the method {method} does not exist"}}
        try:
            return reply | {"result": self.methods[method](*params)}
        except (Reverted, RpcError) as error:
            return reply | {"error": error.body}

    # ---- blocks and time ----

    @property
    def now(self) -> int:
        return int(self.blocks[-1]["timestamp"], 16)

    def newest(self) -> int:
        return len(self.blocks) - 1

    def hash_at(self, number: int) -> str:
        return self.blocks[number]["hash"]

    def number_of(self, digest: str) -> int | None:
        return self.numbers.get(digest)

    def block(self, which: str, full: bool = False) -> dict[str, Any] | None:
        """The block, with hashes of its transactions; for the pending block the newest one, since no block is
        invented."""
        number = find(self, which)
        return None if number is None else self.blocks[min(number, self.newest())]

    def block_receipts(self, which: Any) -> list[Any] | None:
        block = self.block(which)
        return block and [self.receipts[digest] for digest in block["transactions"]]

    def _append(self, env: Env, transactions: list[str]) -> None:
        parent = self.blocks[-1]["hash"] if self.blocks else "0x" + 32 * "00"
        digest = Web3.to_hex(Web3.keccak(text=f"block {parent} {env} {transactions}"))
        self.numbers[digest] = env.number
        self.blocks.append({
            "number": hex(env.number), "timestamp": hex(env.time), "hash": digest, "parentHash": parent,
            "transactions": transactions, "baseFeePerGas": "0x0", "gasLimit": hex(10**9), "mixHash": hex(env.beacon),
        })  # fmt: skip

    def _env(self, number: int) -> Env:
        """The environment of a block, or of the next one."""
        if number > self.newest():
            return self._next()
        block = self.blocks[number]
        return Env(number, int(block["timestamp"], 16), int(block["mixHash"], 16))

    def _next(self) -> Env:
        return Env(len(self.blocks), max(self.now + 1, self.next_time or 0), self.base_fee)

    def mine(self, env: Env, transactions: list[str], before: int) -> str:
        """`before`: the number of deeds up to the end of the previous block."""
        self.ends.append(before)
        self._append(env, transactions)
        self.next_time = None
        return "0x0"

    def increase_time(self, seconds: int) -> str:
        self.next_time = self.now + seconds
        return hex(seconds)

    def snapshot(self) -> tuple[Any, ...]:
        """A snapshot: everything but the EVM is immutable or copied."""
        lists = list(self.blocks), list(self.ends), list(self.deeds)
        return (self.evm.snapshot(), lists, dict(self.receipts), dict(self.nonces), self.next_time)

    def revert(self, to: tuple[Any, ...]) -> bool:
        point, lists, receipts, nonces, self.next_time = to
        self.forget()
        self.evm.revert(point)
        self.blocks, self.ends, self.deeds = map(list, lists)
        self.receipts, self.nonces, self.past = dict(receipts), dict(nonces), None
        return True

    # ---- the state after a block ----

    def state(self, block: Any) -> pyrevm.EVM:
        """The state of a block; for an old block, in a second EVM that repeats all transactions up to it."""
        number = state(self, block)
        if number >= self.newest():
            return self.evm
        done, evm = self.past or (0, new_evm())
        if done > self.ends[number]:
            done, evm = 0, new_evm()
        for deed in self.deeds[done : self.ends[number]]:
            deed(evm)
        self.past = self.ends[number], evm
        return evm

    def nonce(self, account: str, block: Any = None) -> int:
        number, account = state(self, block), account.lower()
        if number >= self.newest():
            return self.nonces.get(account, 0)
        digests = (digest for made in self.blocks[: number + 1] for digest in made["transactions"])
        return sum(self.receipts[digest]["from"].lower() == account for digest in digests)

    def code(self, account: str, block: Any = None) -> str:
        """revm keeps 33 zero bytes behind the code that it has analysed."""
        return "0x" + bytes(self.state(block).get_code(account) or b"")[:-33].hex()

    def storage(self, account: str, slot: str, block: Any = None) -> str:
        return f"0x{self.state(block).storage(account, int(slot, 16)):064x}"

    def _do(self, deed: Callable[[pyrevm.EVM], object]) -> None:
        deed(self.evm)
        self.deeds.append(deed)

    def set_storage(self, account: str, slot: int, word: int) -> None:
        self._do(lambda evm: evm.insert_account_storage(account, slot, word))

    def set_balance(self, account: str, wei: int) -> None:
        self._do(lambda evm: evm.set_balance(account, wei))

    # ---- calls and transactions ----

    def show_base_fee(self, address: str) -> None:
        """A contract sees `base_fee` from now on. pyrevm sets it to 0 in every call, so BASEFEE is replaced by
        PREVRANDAO."""
        code = replaced(bytes.fromhex(self.code(address)[2:]), BASEFEE, PREVRANDAO)

        def show(evm: pyrevm.EVM) -> None:
            old = evm.basic(address)
            evm.insert_account_info(address, pyrevm.AccountInfo(balance=old.balance, nonce=old.nonce, code=code))

        self._do(show)

    @staticmethod
    def _run(evm: pyrevm.EVM, tx: dict[str, Any]) -> bytes:
        value, data = (_number(tx.get("value")), bytes.fromhex((tx.get("data") or tx.get("input") or "0x")[2:]))
        sender = tx.get("from") or RICH[0]
        try:
            if not tx.get("to"):
                address = evm.deploy(sender, data, value)
                return bytes.fromhex(address[2:])
            gas = _number(tx.get("gas")) or 10**9
            return bytes(evm.message_call(sender, tx["to"], calldata=data, value=value, gas=gas))
        except RuntimeError as error:
            found = REVERT.match(str(error))
            raise Reverted(found[1] if found else "0x", "" if found else str(error)[:60]) from None

    def call(self, tx: dict[str, Any], block: Any = None) -> str:
        """A call without effects, in the given block."""
        evm = self.state(block)
        self._env(state(self, block)).enter(evm)
        point = evm.snapshot()
        try:
            return "0x" + self._run(evm, tx).hex()
        finally:
            evm.revert(point)

    def estimate(self, tx: dict[str, Any], block: Any = None) -> str:
        self.call(tx, block)
        return hex(4_000_000)

    def send_raw(self, raw: str) -> str:
        return self.send(decode_raw(bytes.fromhex(raw[2:])) | {"hash": Web3.to_hex(Web3.keccak(hexstr=raw))})

    def send(self, tx: dict[str, Any]) -> str:
        sender = tx["from"].lower()
        nonce = self.nonces.get(sender, 0)
        digest = tx.get("hash") or Web3.to_hex(Web3.keccak(text=f"{sender} {nonce} {len(self.blocks)} {tx}"))
        env, before = self._next(), len(self.deeds)
        address, logs, status = None, [], 1

        def deed(evm: pyrevm.EVM) -> bytes:
            env.enter(evm)
            point = evm.snapshot()
            try:
                output = self._run(evm, tx)
            except Reverted:
                evm.revert(point)
                raise
            evm.commit()  # or the journal nests one level deeper with each transaction, and 1,024 are the most
            return output

        try:
            output = deed(self.evm)
            self.deeds.append(deed)
            address = None if tx.get("to") else "0x" + output.hex()
            logs = list(self.evm.result.logs)
        except Reverted:
            status = 0
        self.nonces[sender] = nonce + 1
        self.mine(env, [digest], before)
        self._receipt(digest, tx, status, address, logs)
        return digest

    def _receipt(self, digest: str, tx: dict[str, Any], status: int, address: str | None, logs: list[Any]) -> None:
        block = self.blocks[-1]
        place = {
            "blockNumber": block["number"],
            "blockHash": block["hash"],
            "transactionHash": digest,
            "transactionIndex": "0x0",
        }
        self.receipts[digest] = place | {
            "from": tx["from"],
            "to": tx.get("to"),
            "input": tx.get("data"),
            "contractAddress": address,
            "status": hex(status),
            "gasUsed": hex(self.evm.result.gas_used if status else 0),
            "logs": [
                place
                | {
                    "address": log.address,
                    "topics": list(log.topics),
                    "data": "0x" + _data(log).hex(),
                    "logIndex": hex(i),
                }
                for i, log in enumerate(logs)
            ],
        }

    def logs(self, query: dict[str, Any]) -> list[dict[str, Any]]:
        address, topics = query.get("address"), query.get("topics") or []
        wanted = None if address is None else {a.lower() for a in ([address] if isinstance(address, str) else address)}
        digests = (digest for n in log_range(self, query) for digest in self.blocks[n]["transactions"])
        found = (log for digest in digests for log in self.receipts[digest]["logs"])
        return [
            log for log in found if (not wanted or log["address"].lower() in wanted) and _matches(log["topics"], topics)
        ]

    def forget(self) -> None:
        """Remove receipts: cached logs are read again."""
        self.read, self.found = 0, defaultdict(list)

    def logs_of(self, address: str, topic: str | None) -> list[dict[str, Any]]:
        """Logs of a contract, of one kind or all; each receipt is read once."""
        for receipt in islice(self.receipts.values(), self.read, None):
            for log in receipt["logs"]:
                for kind in (None, log["topics"][0]):
                    self.found[log["address"].lower(), kind].append(log)
        self.read = len(self.receipts)
        return self.found[address.lower(), topic]


def _number(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value or 0)


def _data(log: Any) -> bytes:
    data = log.data
    return bytes(data[1] if isinstance(data, tuple) else data)


def _accounts(asked: str | list[str]) -> set[str]:
    return {account.lower() for account in ([asked] if isinstance(asked, str) else asked)}


def _matches(topics: list[str], wanted: list[Any]) -> bool:
    pairs = zip(wanted, [*topics, *[None] * len(wanted)], strict=False)
    return all(w is None or (t is not None and w.lower() == t.lower()) for w, t in pairs)


def decode_raw(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"unsigned"):
        raise ValueError(f"only unsigned transactions are known here, not of {Account.recover_transaction(raw)}")
    sender, to, value, gas, data = raw[8:28], raw[28:48], raw[48:80], raw[80:88], raw[96:]
    tx = {"from": "0x" + sender.hex(), "value": int.from_bytes(value, "big"), "gas": int.from_bytes(gas, "big")}
    return tx | {"data": "0x" + data.hex()} | ({"to": "0x" + to.hex()} if any(to) else {})
