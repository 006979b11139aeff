"""The embedded chain: eth-tester with py-evm, served as JSON-RPC on loopback, so that agents in other processes use it
like any other chain.

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
from eth.exceptions import HeaderNotFound
from eth.vm.spoof import SpoofTransaction
from eth_tester import EthereumTester, PyEVMBackend
from eth_tester.backends.pyevm.main import get_default_account_keys
from eth_tester.exceptions import TransactionFailed

from vgame.chain.block_ids import FAILED, RpcError, find, log_range, state
from vgame.chain.connection import LOOPBACK
from vgame.chain.tester_json import BLOCK, LOG, RECEIPT, TRANSACTION, encode, renamed
from vgame.errors import ChainError

GAS_LIMIT = 60_000_000
HISTORY = 2**14  # number of blocks before the newest whose states can be read
CLIENT = "vgame-embedded/1 (eth-tester, py-evm)"
#: Methods that change nothing; their replies are not cached.
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
#: Methods whose replies are valid until a block is mined or the clock is moved.
READS = frozenset(
    {
        "eth_blockNumber",
        "eth_call",
        "eth_estimateGas",
        "eth_getBalance",
        "eth_getBlockByHash",
        "eth_getBlockByNumber",
        "eth_getBlockReceipts",
        "eth_getCode",
        "eth_getLogs",
        "eth_getStorageAt",
        "eth_getTransactionCount",
    }
)


def start_tester() -> EthereumTester:
    """A new chain with ten funded accounts."""
    genesis = PyEVMBackend.generate_genesis_params(overrides={"gas_limit": GAS_LIMIT})
    backend = PyEVMBackend(genesis_parameters=genesis)
    backend.chain.gas_estimator = enough_gas
    return EthereumTester(backend)


def enough_gas(state: Any, transaction: Any) -> int:
    """A sufficient gas limit: the gas used, plus the part that calls must hold back (EIP-150). If that fails, py-evm's
    own search, with about twelve executions."""
    trial = _trial(state, transaction, state.gas_limit)
    if trial.is_error:
        raise trial.error
    limit = (state.gas_limit - trial.get_gas_remaining()) * 64 // 63 + GAS_CALLSTIPEND
    if limit < state.gas_limit and not _trial(state, transaction, limit).is_error:
        return limit
    return binary_gas_search_1000_tolerance(state, transaction)


def _trial(state: Any, transaction: Any, gas: int) -> Any:
    """The result of a transaction with this gas limit; the state does not change."""
    point = state.snapshot()
    try:
        return state.apply_transaction(SpoofTransaction(transaction, gas=gas, gas_price=0))
    finally:
        state.revert(point)


class TesterBlocks:
    """The chain's blocks, by block parameter. INVARIANT: after a revert to a snapshot, the hashes of the undone blocks
    name no block."""

    def __init__(self, tester: EthereumTester, history: int) -> None:
        self._backend, self.history = tester.backend, history

    def newest(self) -> int:
        return self._backend.chain.header.block_number - 1

    def hash_at(self, number: int) -> str:
        return "0x" + self._backend.chain.get_canonical_block_hash(number).hex()

    def number_of(self, digest: str) -> int | None:
        try:
            return self._backend.chain.get_block_header_by_hash(bytes.fromhex(digest[2:])).block_number
        except HeaderNotFound:
            return None


class Node:
    """The JSON-RPC methods that vgame uses, over one EthereumTester."""

    def __init__(self, tester: EthereumTester, history: int = HISTORY) -> None:
        self.tester, self.blocks = tester, TesterBlocks(tester, history)
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self._logs: dict[int, list[Any]] = {}
        self._transactions: dict[str, Any] = {}
        self._receipts: dict[str, Any] = {}
        self._read: dict[str, dict[str, Any]] = {}
        self.methods: dict[str, Callable[..., Any]] = {
            "web3_clientVersion": lambda: CLIENT,
            "net_version": lambda: str(self.tester.backend.chain.chain_id),
            "eth_chainId": lambda: self.tester.backend.chain.chain_id,
            "eth_blockNumber": self.blocks.newest,
            "eth_accounts": lambda: list(self.tester.get_accounts()),
            "eth_gasPrice": lambda: 10**9,
            "eth_maxPriorityFeePerGas": lambda: 10**9,
            "eth_getBalance": lambda account, block=None: self.tester.get_balance(account, self.at(block)),
            "eth_getTransactionCount": lambda account, block=None: self.tester.get_nonce(account, self.at(block)),
            "eth_getCode": lambda account, block=None: self.tester.get_code(account, self.at(block)),
            "eth_getStorageAt": self.storage,
            "eth_getBlockByNumber": self.block,
            "eth_getBlockByHash": self.block,
            "eth_getBlockReceipts": self.block_receipts,
            "eth_getTransactionByHash": self.transaction,
            "eth_getTransactionReceipt": self.receipt,
            "eth_getLogs": self.logs,
            "eth_call": lambda tx, block=None: self.tester.call(self._transaction(tx), self.at(block)),
            "eth_estimateGas": self.estimate,
            "eth_sendTransaction": lambda tx: self.sent(self.tester.send_transaction(self._transaction(tx))),
            "eth_sendRawTransaction": lambda raw: self.sent(self.tester.send_raw_transaction(raw)),
            "evm_increaseTime": self.increase_time,
            "evm_mine": self.mine,
            "evm_snapshot": self.tester.take_snapshot,
            "evm_revert": self.revert,
        }

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """The response object for one request object."""
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
            return {"error": {"code": FAILED, "message": f"{type(error).__name__}: {error}"}}

    def _transaction(self, tx: dict[str, Any]) -> dict[str, Any]:
        names = {name: name for name in ("from", "to", "data", "value", "gas", "nonce")} | {"input": "data"}
        result = {names[k]: v for k, v in tx.items() if k in names and v is not None}
        for name in ("value", "gas", "nonce"):
            if name in result:
                result[name] = _number(result[name])
        result.setdefault("from", self.tester.get_accounts()[0])
        result.setdefault("gas", GAS_LIMIT)
        return result

    def at(self, block: Any) -> int | str:
        """The block whose state is requested, in eth-tester's form."""
        number = state(self.blocks, block)
        return "pending" if number > self.blocks.newest() else number

    def estimate(self, tx: dict[str, Any], block: Any = None) -> int:
        """Estimated gas in the state after a block; for the pending block, which eth-tester does not support, after the
        newest."""
        number = min(state(self.blocks, block), self.blocks.newest())
        return self.tester.estimate_gas(self._transaction(tx), number)

    def storage(self, account: str, slot: str, block: Any = None) -> str:
        value = self.tester.backend.get_storage(bytes.fromhex(account[2:]), _number(slot), self.at(block))
        return f"0x{value:064x}"

    def block(self, which: str, full: bool = False) -> Any:
        if (number := find(self.blocks, which)) is None:
            return None
        block = self.tester.get_block_by_number("pending" if number > self.blocks.newest() else number, full)
        if full:
            block = dict(block, transactions=[renamed(dict(t), TRANSACTION) for t in block["transactions"]])
        return renamed(dict(block), BLOCK)

    def block_receipts(self, which: Any) -> list[Any] | None:
        block = self.block(which)
        return block and [self.receipt(digest) for digest in block["transactions"]]

    def sent(self, digest: str) -> str:
        """Cache a transaction and its receipt right after sending, when they are in the last block: later the library
        would search all blocks."""
        self._transactions[digest] = renamed(dict(self.tester.get_transaction_by_hash(digest)), TRANSACTION)
        receipt = dict(self.tester.get_transaction_receipt(digest))
        receipt["logs"] = [renamed(dict(log), LOG) for log in receipt["logs"]]
        self._receipts[digest] = renamed(receipt, RECEIPT)
        return digest

    def transaction(self, digest: str) -> Any:
        return self._transactions.get(digest)

    def receipt(self, digest: str) -> Any:
        return self._receipts.get(digest)

    def logs(self, query: dict[str, Any]) -> Any:
        wanted = [_lower(query.get("address")), *map(_lower, query.get("topics") or [])]
        numbers = log_range(self.blocks, query)
        return [log for n in numbers for log, found in self.block_logs(n) if _matches(found, wanted)]

    def block_logs(self, number: int) -> list[tuple[Any, list[str]]]:
        """All logs of a block, each with its address and topics in lower case; read once."""
        if number not in self._logs:
            digests = self.tester.get_block_by_number(number)["transactions"]
            logs = [encode(log) for digest in digests for log in self.receipt(digest)["logs"]]
            self._logs[number] = [(log, [t.lower() for t in (log["address"], *log["topics"])]) for log in logs]
        return self._logs[number]

    def revert(self, number: Any) -> bool:
        self.tester.revert_to_snapshot(_number(number))
        self._logs.clear()
        latest = self.blocks.newest()
        for kept in (self._transactions, self._receipts):
            for digest in [d for d, found in kept.items() if found["blockNumber"] > latest]:
                del kept[digest]
        return True

    def keep_time(self) -> None:
        """Mine a block every second, until `stopped`, with the wall clock's time unless the chain's time is later."""
        while not self.stopped.wait(1):
            self.handle({"method": "evm_mine", "params": [int(time.time())]})

    def mine(self, earliest: Any = 0) -> str:
        """Mine one block, one second after the last, or at a given later time."""
        self._begin(_number(earliest))
        return self.tester.mine_block()

    def increase_time(self, seconds: Any) -> int:
        """Move the time of the next block."""
        self._begin(self.tester.backend.chain.header.timestamp + _number(seconds))
        return _number(seconds)

    def _begin(self, earliest: int) -> None:
        chain = self.tester.backend.chain
        chain.set_header_timestamp(max(chain.header.timestamp, earliest))


def _number(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


def _lower(wanted: str | list[str] | None) -> set[str] | None:
    """The accepted values in lower case; None: every value."""
    return None if wanted is None else {one.lower() for one in ([wanted] if isinstance(wanted, str) else wanted)}


def _matches(found: list[str], wanted: list[set[str] | None]) -> bool:
    return len(found) >= len(wanted) and all(w is None or f in w for f, w in zip(found, wanted, strict=False))


def revert_error(error: TransactionFailed) -> RpcError:
    """The JSON-RPC error of a revert; eth-tester has the revert data as a string in Python notation."""
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
            return self.send_error(403, "only programs on this machine are served, not web pages")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = [self.node.handle(r) for r in body] if isinstance(body, list) else self.node.handle(body)
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def from_here(self) -> bool:
        """Is the request from a local program? A request of a web page has an Origin header, or another host name than
        loopback; without this check a browser would let any page move the accounts' ether."""
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        return host in LOOPBACK and self.headers.get("Origin") is None

    def log_message(self, *args: Any) -> None:
        """Requests are not logged."""


def serve(port: int = 0, still: bool = True) -> ThreadingHTTPServer:
    """A server on loopback with the URL http://127.0.0.1:PORT. Unless `still`, it mines a block every second, like
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
    """Print the URL on the first line, then accounts and keys. The keys are public, so never use them for real
    money."""
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    for key in get_default_account_keys()[:4]:
        print(f"account {key.public_key.to_checksum_address()} key {key.to_hex()}", flush=True)
