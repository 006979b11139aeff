"""The embedded chain: eth-tester with py-evm, served as JSON-RPC on loopback, so that agents in other processes have
one way to any chain.

`vgame chain` serves it. Development only: its accounts are unlocked and its clock can be moved (evm_increaseTime,
evm_mine), as on other development nodes.
"""

from __future__ import annotations

import ast
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from eth.constants import GAS_CALLSTIPEND
from eth.estimators.gas import binary_gas_search_1000_tolerance
from eth.vm.spoof import SpoofTransaction
from eth_tester import EthereumTester, PyEVMBackend
from eth_tester.backends.pyevm.main import get_default_account_keys
from eth_tester.exceptions import BlockNotFound, TransactionFailed
from hexbytes import HexBytes

from vgame.chain.connection import LOOPBACK
from vgame.errors import ChainError

GAS_LIMIT = 60_000_000
CLIENT = "vgame-embedded/1 (eth-tester, py-evm)"
#: Whose answers are always the same, or change nothing.
TIMELESS = frozenset(
    {
        "eth_accounts",
        "eth_chainId",
        "eth_gasPrice",
        "eth_getTransactionByHash",
        "eth_getTransactionReceipt",
        "eth_maxPriorityFeePerGas",
        "net_version",
        "web3_clientVersion",
    }
)
#: Whose answers stand until something is mined, or time is moved.
READS = frozenset(
    {
        "eth_blockNumber",
        "eth_call",
        "eth_estimateGas",
        "eth_getBalance",
        "eth_getBlockByNumber",
        "eth_getCode",
        "eth_getLogs",
        "eth_getTransactionCount",
    }
)


def start_tester() -> EthereumTester:
    """A fresh chain with ten rich accounts."""
    genesis = PyEVMBackend.generate_genesis_params(overrides={"gas_limit": GAS_LIMIT})
    backend = PyEVMBackend(genesis_parameters=genesis)
    backend.chain.gas_estimator = enough_gas
    return EthereumTester(backend)


def enough_gas(state: Any, transaction: Any) -> int:
    """A limit with which the transaction passes: what it used, and what its calls have to leave behind (EIP-150). Else
    py-evm's own search, with a dozen executions."""
    trial = _trial(state, transaction, state.gas_limit)
    if trial.is_error:
        raise trial.error
    limit = (state.gas_limit - trial.get_gas_remaining()) * 64 // 63 + GAS_CALLSTIPEND
    if limit < state.gas_limit and not _trial(state, transaction, limit).is_error:
        return limit
    return binary_gas_search_1000_tolerance(state, transaction)


def _trial(state: Any, transaction: Any, gas: int) -> Any:
    """What a transaction does with so much gas; the state is left as it was."""
    point = state.snapshot()
    try:
        return state.apply_transaction(SpoofTransaction(transaction, gas=gas, gas_price=0))
    finally:
        state.revert(point)


class RpcError(Exception):
    """A JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({"data": data} if data is not None else {})


class Node:
    """The JSON-RPC methods that vgame uses, over one EthereumTester."""

    def __init__(self, tester: EthereumTester) -> None:
        self.tester = tester
        self.lock = threading.Lock()
        self._logs: dict[int, list[Any]] = {}
        self._transactions: dict[str, Any] = {}
        self._receipts: dict[str, Any] = {}
        self._read: dict[str, dict[str, Any]] = {}
        self.methods: dict[str, Callable[..., Any]] = {
            "web3_clientVersion": lambda: CLIENT,
            "net_version": lambda: str(self.tester.backend.chain.chain_id),
            "eth_chainId": lambda: self.tester.backend.chain.chain_id,
            "eth_blockNumber": lambda: self.tester.get_block_by_number("latest")["number"],
            "eth_accounts": lambda: list(self.tester.get_accounts()),
            "eth_gasPrice": lambda: 10**9,
            "eth_maxPriorityFeePerGas": lambda: 10**9,
            "eth_getBalance": lambda account, block="latest": self.tester.get_balance(account, _block(block)),
            "eth_getTransactionCount": lambda account, block="latest": self.tester.get_nonce(account, "pending"),
            "eth_getCode": lambda account, block="latest": self.tester.get_code(account, _block(block)),
            "eth_getBlockByNumber": self.block,
            "eth_getTransactionByHash": self.transaction,
            "eth_getTransactionReceipt": self.receipt,
            "eth_getLogs": self.logs,
            "eth_call": lambda tx, block="latest": self.tester.call(self._transaction(tx), "pending"),
            "eth_estimateGas": lambda tx, block="latest": self.tester.estimate_gas(self._transaction(tx)),
            "eth_sendTransaction": lambda tx: self.sent(self.tester.send_transaction(self._transaction(tx))),
            "eth_sendRawTransaction": lambda raw: self.sent(self.tester.send_raw_transaction(raw)),
            "evm_increaseTime": self.increase_time,
            "evm_mine": lambda *_: self.tester.mine_block(),
            "evm_snapshot": self.tester.take_snapshot,
            "evm_revert": self.revert,
        }

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request object to one response object."""
        name, params = request["method"], request.get("params") or []
        with self.lock:
            if name not in READS:
                if name not in TIMELESS:
                    self._read.clear()
                answer = self._answer(name, params)
            elif (answer := self._read.get(key := json.dumps([name, params]))) is None:
                answer = self._read[key] = self._answer(name, params)
        return {"jsonrpc": "2.0", "id": request.get("id")} | answer

    def _answer(self, name: str, params: list[Any]) -> dict[str, Any]:
        try:
            if name not in self.methods:
                raise RpcError(-32601, f"the method {name} does not exist")
            return {"result": encode(self.methods[name](*params))}
        except RpcError as error:
            return {"error": error.body}
        except TransactionFailed as error:
            return {"error": revert_error(error).body}
        except Exception as error:
            return {"error": {"code": -32000, "message": f"{type(error).__name__}: {error}"}}

    def _transaction(self, tx: dict[str, Any]) -> dict[str, Any]:
        renamed = {
            "from": "from",
            "to": "to",
            "data": "data",
            "input": "data",
            "value": "value",
            "gas": "gas",
            "nonce": "nonce",
        }
        result = {renamed[k]: v for k, v in tx.items() if k in renamed and v is not None}
        for name in ("value", "gas", "nonce"):
            if name in result:
                result[name] = _number(result[name])
        result.setdefault("from", self.tester.get_accounts()[0])
        result.setdefault("gas", GAS_LIMIT)
        return result

    def block(self, number: str, full: bool = False) -> Any:
        try:
            block = self.tester.get_block_by_number(_block(number), full)
        except BlockNotFound:
            return None
        if full:
            block = dict(block, transactions=[_rename(dict(t), TRANSACTION) for t in block["transactions"]])
        return _rename(dict(block), BLOCK)

    def sent(self, digest: str) -> str:
        """A transaction and its receipt are remembered while they are in the last block, where they are found at
        once: the library looks through all blocks."""
        self._transactions[digest] = _rename(dict(self.tester.get_transaction_by_hash(digest)), TRANSACTION)
        receipt = dict(self.tester.get_transaction_receipt(digest))
        receipt["logs"] = [_rename(dict(log), LOG) for log in receipt["logs"]]
        self._receipts[digest] = _rename(receipt, RECEIPT)
        return digest

    def transaction(self, digest: str) -> Any:
        return self._transactions.get(digest)

    def receipt(self, digest: str) -> Any:
        return self._receipts.get(digest)

    def logs(self, query: dict[str, Any]) -> Any:
        latest = self.tester.get_block_by_number("latest")["number"]
        first, last = (_block(query.get(k, "latest")) for k in ("fromBlock", "toBlock"))
        first = latest if isinstance(first, str) else first
        last = latest if isinstance(last, str) else min(last, latest)
        wanted = [_lower(query.get("address")), *map(_lower, query.get("topics") or [])]
        return [log for n in range(first, last + 1) for log, found in self.block_logs(n) if _matches(found, wanted)]

    def block_logs(self, number: int) -> list[tuple[Any, list[str]]]:
        """All logs of a block, each with its address and topics in small letters; read once."""
        if number not in self._logs:
            digests = self.tester.get_block_by_number(number)["transactions"]
            logs = [encode(log) for digest in digests for log in self.receipt(digest)["logs"]]
            self._logs[number] = [(log, [t.lower() for t in (log["address"], *log["topics"])]) for log in logs]
        return self._logs[number]

    def revert(self, number: Any) -> bool:
        self.tester.revert_to_snapshot(_number(number))
        self._logs.clear()
        latest = self.tester.get_block_by_number("latest")["number"]
        for kept in (self._transactions, self._receipts):
            for digest in [d for d, found in kept.items() if found["blockNumber"] > latest]:
                del kept[digest]
        return True

    def keep_time(self) -> None:
        """Mine a block every second, a second later."""
        while True:
            time.sleep(1)
            with self.lock:
                self.increase_time(1)
                self.tester.mine_block()

    def increase_time(self, seconds: Any) -> int:
        latest = self.tester.get_block_by_number("latest")["timestamp"]
        pending = self.tester.get_block_by_number("pending")["timestamp"]
        self.tester.time_travel(max(latest, pending) + _number(seconds))
        return _number(seconds)


BLOCK = {
    "parent_hash": "parentHash",
    "sha3_uncles": "sha3Uncles",
    "logs_bloom": "logsBloom",
    "transactions_root": "transactionsRoot",
    "receipts_root": "receiptsRoot",
    "state_root": "stateRoot",
    "total_difficulty": "totalDifficulty",
    "mix_hash": "mixHash",
    "extra_data": "extraData",
    "gas_limit": "gasLimit",
    "gas_used": "gasUsed",
    "base_fee_per_gas": "baseFeePerGas",
    "coinbase": "miner",
    "withdrawals_root": "withdrawalsRoot",
    "blob_gas_used": "blobGasUsed",
    "excess_blob_gas": "excessBlobGas",
    "parent_beacon_block_root": "parentBeaconBlockRoot",
    "requests_hash": "requestsHash",
}
TRANSACTION = {
    "block_hash": "blockHash", "block_number": "blockNumber", "transaction_index": "transactionIndex", "data": "input",
    "gas_price": "gasPrice", "chain_id": "chainId", "max_fee_per_gas": "maxFeePerGas", "y_parity": "yParity",
    "max_priority_fee_per_gas": "maxPriorityFeePerGas", "access_list": "accessList",
}  # fmt: skip
RECEIPT = {
    "transaction_hash": "transactionHash", "transaction_index": "transactionIndex", "block_number": "blockNumber",
    "block_hash": "blockHash", "cumulative_gas_used": "cumulativeGasUsed", "gas_used": "gasUsed", "state_root": "root",
    "contract_address": "contractAddress", "effective_gas_price": "effectiveGasPrice", "logs_bloom": "logsBloom",
}  # fmt: skip
LOG = {
    "log_index": "logIndex", "transaction_index": "transactionIndex", "transaction_hash": "transactionHash",
    "block_hash": "blockHash", "block_number": "blockNumber",
}  # fmt: skip


def _rename(item: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in item.items()}


def _number(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


def _block(value: Any) -> Any:
    return _number(value) if isinstance(value, str) and value.startswith("0x") else value


def _lower(wanted: str | list[str] | None) -> set[str] | None:
    """What is accepted, in small letters; None: everything."""
    return None if wanted is None else {one.lower() for one in ([wanted] if isinstance(wanted, str) else wanted)}


def _matches(found: list[str], wanted: list[set[str] | None]) -> bool:
    return len(found) >= len(wanted) and all(w is None or f in w for f, w in zip(found, wanted, strict=False))


def encode(value: Any) -> Any:
    """Python values as JSON-RPC writes them: quantities and data in hex."""
    match value:
        case bool() | None:
            return value
        case int():
            return hex(value)
        case str():
            return value
        case bytes() | HexBytes():
            return "0x" + bytes(value).hex()
        case dict():
            return {key: encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return {key: encode(item) for key, item in dict(value).items()}


def revert_error(error: TransactionFailed) -> RpcError:
    """eth-tester puts the revert data into a string as Python would print it."""
    text = str(error.args[0]) if error.args else ""
    try:
        data = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        data = None
    if isinstance(data, bytes):
        return RpcError(3, "execution reverted", "0x" + data.hex())
    return RpcError(3, f"execution reverted: {text}", "0x")


class Handler(BaseHTTPRequestHandler):
    """POST of one request object, or of a list of them."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment; unbuffered, each reply waits 40 ms for an acknowledgement
    disable_nagle_algorithm = True
    node: Node

    def do_POST(self) -> None:
        if not self.from_here():
            return self.send_error(403, "only programs on this machine are served, no web pages")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = [self.node.handle(r) for r in body] if isinstance(body, list) else self.node.handle(body)
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def from_here(self) -> bool:
        """Web pages name their origin, and reach loopback by other names; a browser would let any of them move the
        accounts' ether."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return host in LOOPBACK and self.headers.get("Origin") is None

    def log_message(self, *args: Any) -> None:
        """Requests are not logged."""


def serve(port: int = 0, still: bool = True) -> ThreadingHTTPServer:
    """A server on loopback; its URL is http://127.0.0.1:PORT. Unless it is `still`, a block comes every second, as on
    other chains."""
    node = Node(start_tester())
    handler = type("BoundHandler", (Handler,), {"node": node})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise ChainError(
            f"port {port} cannot be used: {error.strerror}; choose another, or 0 for any free one"
        ) from None
    server.daemon_threads = True
    if not still:
        threading.Thread(target=node.keep_time, daemon=True).start()
    return server


def announce(server: ThreadingHTTPServer) -> None:
    """The URL on the first line, then accounts and keys; they are the same for everybody, so this is no place for real
    money."""
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    for key in get_default_account_keys()[:4]:
        print(f"account {key.public_key.to_checksum_address()} key {key.to_hex()}", flush=True)
