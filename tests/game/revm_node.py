"""A development node over an in-process EVM in Rust (pyrevm): the tests' fast chain. The embedded chain and anvil play
fewer games.

In: JSON-RPC requests, by a function call instead of HTTP. One transaction is one block. Gas is free, so money can be
counted to the wei.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pyrevm
from eth_abi import encode
from eth_account import Account
from revm_calls import calldata, decode_log, decode_output, topic
from web3 import Web3
from web3.providers import JSONBaseProvider

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Event
from vgame.chain.wallet import GAS_CAP, Wallet

CHAIN_ID = 1337
START = 1_700_000_000
RICH = [f"0x{i:040x}" for i in range(0xA1, 0xA4)]
REVERT = re.compile(r"^Revert \{ gas_used: \d+, output: (0x[0-9a-f]*) \}")


class Reverted(Exception):
    """A call reverted, or halted."""

    def __init__(self, data: str, halt: str = "") -> None:
        super().__init__(data)
        self.body = {"code": 3, "message": f"execution reverted {halt}".strip(), "data": data}


BASEFEE, PREVRANDAO, PUSH1, PUSH32 = 0x48, 0x44, 0x60, 0x7F


def replaced(code: bytes, old: int, new: int) -> bytes:
    """Code with another instruction in place of one, at least once; what instructions push stays."""
    found, place = bytearray(code), 0
    while place < len(code):
        if code[place] == old:
            found[place] = new
        place += 1 + (code[place] - PUSH1 + 1 if PUSH1 <= code[place] <= PUSH32 else 0)
    assert found != code
    return bytes(found)


class RevmNode:
    """The JSON-RPC methods that vgame uses."""

    def __init__(self) -> None:
        env = pyrevm.Env(cfg=pyrevm.CfgEnv(chain_id=CHAIN_ID))
        self.evm = pyrevm.EVM(env, gas_limit=10**13, spec_id="PRAGUE")
        self.blocks: list[dict[str, Any]] = [self._block(0, START, [])]
        self.receipts: dict[str, dict[str, Any]] = {}
        self.read, self.found = 0, defaultdict[tuple[str, str | None], list[dict[str, Any]]](list)
        self.nonces: dict[str, int] = {}
        self.next_time: int | None = None
        self.base_fee = 0  # as contracts see it to which it is shown
        for account in RICH:
            self.evm.set_balance(account, 10**30)
        self.methods = {
            "eth_chainId": lambda: hex(CHAIN_ID),
            "eth_accounts": lambda: RICH,
            "eth_maxPriorityFeePerGas": lambda: "0x0",
            "eth_getBalance": lambda account, block="latest": hex(self.evm.get_balance(account)),
            "eth_getTransactionCount": lambda account, block="latest": hex(self.nonces.get(account.lower(), 0)),
            "eth_getCode": self.code,
            "eth_getBlockByNumber": lambda number, full=False: self.blocks[
                -1 if number == "latest" else int(number, 16)
            ],
            "eth_getTransactionByHash": lambda digest: self.receipts.get(digest),
            "eth_getTransactionReceipt": lambda digest: self.receipts.get(digest),
            "eth_getLogs": self.logs,
            "eth_call": self.call,
            "eth_estimateGas": self.estimate,
            "eth_sendTransaction": self.send,
            "eth_sendRawTransaction": self.send_raw,
            "evm_increaseTime": self.increase_time,
            "evm_setNextBlockTimestamp": lambda time: setattr(self, "next_time", time),
            "evm_mine": lambda: self.mine(self._begin(), []),
            "evm_snapshot": self.snapshot,
            "evm_revert": self.revert,
        }

    def handle(self, method: str, params: list[Any]) -> dict[str, Any]:
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": 1}
        if method not in self.methods:
            return reply | {"error": {"code": -32601, "message": f"the method {method} does not exist"}}
        try:
            return reply | {"result": self.methods[method](*params)}
        except Reverted as error:
            return reply | {"error": error.body}

    # ---- blocks and time ----

    @property
    def now(self) -> int:
        return int(self.blocks[-1]["timestamp"], 16)

    def _block(self, number: int, time: int, transactions: list[str]) -> dict[str, Any]:
        digest = Web3.to_hex(Web3.keccak(text=f"block {number} {time} {transactions}"))
        return {
            "number": hex(number), "timestamp": hex(time), "hash": digest, "transactions": transactions,
            "baseFeePerGas": "0x0", "gasLimit": hex(10**9),
        }  # fmt: skip

    def _begin(self) -> int:
        """Put the EVM into the next block; its timestamp."""
        time = max(self.now + 1, self.next_time or 0)
        beacon = self.base_fee.to_bytes(32, "big")
        self.evm.set_block_env(
            pyrevm.BlockEnv(number=len(self.blocks), timestamp=time, gas_limit=10**12, prevrandao=beacon)
        )
        return time

    def mine(self, time: int, transactions: list[str]) -> str:
        self.blocks.append(self._block(len(self.blocks), time, transactions))
        self.next_time = None
        return "0x0"

    def increase_time(self, seconds: int) -> str:
        self.next_time = self.now + seconds
        return hex(seconds)

    def snapshot(self) -> tuple[Any, ...]:
        """Everything but the EVM is immutable or copied."""
        return (self.evm.snapshot(), list(self.blocks), dict(self.receipts), dict(self.nonces), self.next_time)

    def revert(self, to: tuple[Any, ...]) -> bool:
        point, blocks, receipts, nonces, self.next_time = to
        self.forget()
        self.evm.revert(point)
        self.blocks, self.receipts, self.nonces = list(blocks), dict(receipts), dict(nonces)
        return True

    # ---- calls and transactions ----

    def code(self, account: str, block: str = "latest") -> str:
        """revm keeps 33 zero bytes behind the code that it has analysed."""
        return "0x" + bytes(self.evm.get_code(account) or b"")[:-33].hex()

    def show_base_fee(self, address: str) -> None:
        """A contract sees `base_fee` from now on. pyrevm sets it to 0 in every call, so BASEFEE is replaced by
        PREVRANDAO."""
        old, code = self.evm.basic(address), bytes.fromhex(self.code(address)[2:])
        code = replaced(code, BASEFEE, PREVRANDAO)
        self.evm.insert_account_info(address, pyrevm.AccountInfo(balance=old.balance, nonce=old.nonce, code=code))

    def _run(self, tx: dict[str, Any]) -> bytes:
        value, data = (_number(tx.get("value")), bytes.fromhex((tx.get("data") or tx.get("input") or "0x")[2:]))
        sender = tx.get("from") or RICH[0]
        try:
            if not tx.get("to"):
                address = self.evm.deploy(sender, data, value)
                return bytes.fromhex(address[2:])
            gas = _number(tx.get("gas")) or 10**9
            return bytes(self.evm.message_call(sender, tx["to"], calldata=data, value=value, gas=gas))
        except RuntimeError as error:
            found = REVERT.match(str(error))
            raise Reverted(found[1] if found else "0x", "" if found else str(error)[:60]) from None

    def call(self, tx: dict[str, Any], block: str = "latest") -> str:
        """A call that leaves no trace, in the next block."""
        self._begin()
        point = self.evm.snapshot()
        try:
            return "0x" + self._run(tx).hex()
        finally:
            self.evm.revert(point)

    def estimate(self, tx: dict[str, Any], block: str = "latest") -> str:
        self.call(tx)
        return hex(4_000_000)

    def send_raw(self, raw: str) -> str:
        return self.send(decode_raw(bytes.fromhex(raw[2:])) | {"hash": Web3.to_hex(Web3.keccak(hexstr=raw))})

    def send(self, tx: dict[str, Any]) -> str:
        sender = tx["from"].lower()
        nonce = self.nonces.get(sender, 0)
        digest = tx.get("hash") or Web3.to_hex(Web3.keccak(text=f"{sender} {nonce} {len(self.blocks)} {tx}"))
        time = self._begin()
        point, address, logs, status = self.evm.snapshot(), None, [], 1
        try:
            output = self._run(tx)
            address = None if tx.get("to") else "0x" + output.hex()
            logs = list(self.evm.result.logs)
            self.evm.commit()  # or the journal nests one level deeper with each transaction, and 1,024 are the most
        except Reverted:
            self.evm.revert(point)
            status = 0
        self.nonces[sender] = nonce + 1
        self.mine(time, [digest])
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
        (address,), topics = query["address"], query.get("topics") or []
        found = (
            log for block in self.blocks for digest in block["transactions"] for log in self.receipts[digest]["logs"]
        )
        return [log for log in found if log["address"].lower() == address.lower() and _matches(log["topics"], topics)]

    def forget(self) -> None:
        """Receipts are taken away: what was read of them is read again."""
        self.read, self.found = 0, defaultdict(list)

    def logs_of(self, address: str, topic: str | None) -> list[dict[str, Any]]:
        """Those of a contract, of one kind or all; each receipt is read once."""
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


def _matches(topics: list[str], wanted: list[Any]) -> bool:
    pairs = zip(wanted, [*topics, *[None] * len(wanted)], strict=False)
    return all(w is None or (t is not None and w.lower() == t.lower()) for w, t in pairs)


# ---- a chain object over it ----


class InProcess(JSONBaseProvider):
    """A provider that calls `handle` of a node."""

    def __init__(self, node: RevmNode) -> None:
        super().__init__()
        self.node = node

    def make_request(self, method: str, params: Any) -> Any:
        return self.node.handle(method, list(params))


class RevmChain(Chain):
    """vgame's chain object without a socket."""

    def __init__(self, node: RevmNode) -> None:
        self.checks = []  # this node is never away
        self.url, self.poll, self.node = "in process", 0.0, node
        self._secret = self.url
        self.web3 = Web3(InProcess(node))
        self.chain_id = CHAIN_ID

    def pause(self, seconds: float) -> None:
        """Nobody else mines."""

    def now(self) -> int:
        return self.node.now

    def balance(self, address: str) -> int:
        return self.node.evm.get_balance(address)

    def advance(self, seconds: int) -> bool:
        self.node.increase_time(seconds)
        self.node.mine(self.node._begin(), [])
        return True

    def wallet(self, ether: int = 100) -> Wallet:
        """A new account with money, whose signature is its name."""
        wallet = Wallet(self)
        wallet.account = Unsigned(wallet.account)
        self.node.evm.set_balance(wallet.address, ether * 10**18)
        return wallet


class RevmGame(Game):
    """vgame's game object without web3, which costs ten times as much as the EVM; the tests on other chains use the
    real one."""

    def __init__(self, chain: RevmChain, address: str, wallet: Any = None) -> None:
        self.chain, self.address, self.wallet, self.begun = chain, Web3.to_checksum_address(address), wallet, {}

    def _request(self, name: str, args: Any, value: int = 0) -> dict[str, Any]:
        sender = self.wallet.address if self.wallet else RICH[0]
        return {"from": sender, "to": self.address, "data": calldata(name, args), "value": value, "gas": GAS_CAP}

    _transaction = _request

    def _run(self, request: dict[str, Any]) -> str:
        try:
            return self.chain.node.call(request)
        except Reverted as error:
            raise self.contract_error(error.args[0]) from None

    def _call(self, name: str, *args: Any) -> Any:
        raw = self._run(self._request(name, args) | {"from": RICH[0]})
        values = decode_output(name, raw)
        return values[0] if len(values) == 1 else values

    def send(self, name: str, *args: Any, value: int = 0) -> Any:
        self._check_funds(name, value)
        request = self._transaction(name, args, value)
        self._run(request)
        receipt = self.chain.node.receipts[self.chain.node.send(request)]
        assert receipt["status"] == "0x1"
        return receipt

    def events(
        self,
        name: str | None = None,
        job: bytes | None = None,
        **place: Any,
    ) -> list[Event]:
        logs = self.chain.node.logs_of(self.address, name and topic(name))
        place |= {} if job is None else {"job": job}
        return [e for e in map(decode_log, logs) if place.items() <= e.args.items()]


class PayeeGame(RevmGame):
    """The game as tests/contracts/Payee.sol plays it: transactions go through the contract at `payee`."""

    def __init__(self, chain: RevmChain, address: str, payee: str) -> None:
        super().__init__(chain, address, SimpleNamespace(address=payee))

    def _check_funds(self, name: str, value: int) -> None:
        """The money comes with the call."""

    def _transaction(self, name: str, args: Any, value: int = 0) -> dict[str, Any]:
        request = self._request(name, args, value)
        inner = [self.address, value, bytes.fromhex(request["data"][2:])]
        data = bytes(Web3.keccak(text="run(address,uint256,bytes)"))[:4] + encode(
            ["address", "uint256", "bytes"], inner
        )
        return request | {"from": RICH[0], "to": self.wallet.address, "data": "0x" + data.hex()}


class Unsigned:
    """An account that writes its address where the signature belongs: signing and recovering cost more than all the
    rest of a test."""

    def __init__(self, account: Any) -> None:
        self.address, self.key = account.address, account.key

    def sign_transaction(self, tx: dict[str, Any]) -> SimpleNamespace:
        to = bytes.fromhex(tx["to"][2:]) if "to" in tx else bytes(20)
        head = [bytes.fromhex(self.address[2:]), to, tx["value"].to_bytes(32, "big"), tx["gas"].to_bytes(8, "big")]
        raw = b"unsigned" + b"".join(head) + tx["nonce"].to_bytes(8, "big") + tx["data"]
        return SimpleNamespace(raw_transaction=raw, hash=Web3.keccak(raw))


def decode_raw(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"unsigned"):
        raise ValueError(f"only {Unsigned.__name__} accounts are known here, not {Account.recover_transaction(raw)}")
    sender, to, value, gas, data = raw[8:28], raw[28:48], raw[48:80], raw[80:88], raw[96:]
    tx = {"from": "0x" + sender.hex(), "value": int.from_bytes(value, "big"), "gas": int.from_bytes(gas, "big")}
    return tx | {"data": "0x" + data.hex()} | ({"to": "0x" + to.hex()} if any(to) else {})
