"""The only module that talks to a chain: connection, accounts, transactions, contract errors, events.

In: a JSON-RPC endpoint and a private key. Out: typed views of the game and receipts; every failure is a clear error, a revert is a
`ContractError` that carries the contract's own error name and arguments.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import requests
from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3 import HTTPProvider, Web3
from web3.exceptions import (
    ContractCustomError,
    ContractLogicError,
    TimeExhausted,
    TransactionNotFound,
    Web3Exception,
    Web3RPCError,
)

from vgame.errors import ChainError, ContractError

GAS_CAP = 16_777_216  # of one transaction (EIP-7825); not every chain enforces it, so vgame does
CALLDATA_CAP = 126_000  # bytes; a public mempool takes transactions up to 128 KiB
RECEIPT_TIMEOUT = 60  # seconds until a transaction is replaced by one that pays a quarter more
RAISES = 20
#: How nodes say that a transaction of the same number is already waiting and pays as much, or is this very one.
REPLACEMENT_REFUSED = ("underpriced", "already known", "already imported", "replacement")


class RefusedError(ChainError):
    """The node is there, but did not do what it was asked."""


class Phase(IntEnum):
    NONE = 0
    CREATED = 1
    ACCEPTED = 2
    CLAIMED = 3
    FINAL = 4
    CONVICTED = 5
    EXPIRED = 6


class Status(IntEnum):
    NONE = 0
    OPEN = 1
    DISMISSED = 2
    WON = 3
    VOID = 4


class Level(IntEnum):
    NONE = 0
    RUN = 1
    SEGMENT = 2
    STATE = 3
    TRACE = 4
    TENSOR = 5
    ELEMENT = 6
    BLOCK = 7


class Turn(IntEnum):
    TRAINER = 0
    AUDITOR = 1
    TRAINER_EXPIRED = 2
    AUDITOR_EXPIRED = 3


CAUSES = ("element", "opening", "timeout")


@dataclass(frozen=True, slots=True)
class JobSpec:
    """IGame.JobSpec, in the contract's order."""

    program_root: bytes
    data_root: bytes
    initial_root: bytes
    scalar_root: bytes
    seed: int
    steps: int
    interval: int
    depth: int
    mode: int
    trainer_budget: int
    auditor_budget: int
    slot: int
    reward: int
    diverged_pay: int
    trainer_bond: int
    auditor_bond: int
    accept_window: int
    claim_window: int
    challenge_window: int
    reward_window: int


@dataclass(frozen=True, slots=True)
class Job:
    """IGame.Job."""

    phase: Phase
    states: int
    operators: int
    checkpoints: int
    diverged_at: int
    since: int
    disputes: int
    open: int
    client: str
    trainer: str
    run_root: bytes
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class Dispute:
    """IGame.Dispute."""

    node: bytes
    level: Level
    height: int
    index: int
    step: int
    operator: int
    turn_at: int
    trainer_left: int
    auditor_left: int
    others: int
    auditor: str
    status: Status
    entry: Level
    finite: bool
    blocks: int
    elements: int
    word: int
    commitment: bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """IGame.Verdict."""

    level: Level
    height: int
    index: int
    step: int
    operator: int
    dispute: int
    best: int
    paid: bool


@dataclass(frozen=True, slots=True)
class Event:
    """A log of the game, decoded."""

    name: str
    args: dict[str, Any]
    block: int
    transaction: str


@cache
def artifact(name: str) -> dict[str, Any]:
    """ABI and code of a contract, as checked in."""
    return json.loads((files("vgame.game") / "artifacts" / f"{name}.json").read_text())


def calldata_floor(data: bytes) -> int:
    """Gas that a transaction pays at least for its calldata (EIP-7623)."""
    zeros = data.count(0)
    return 21_000 + 10 * (zeros + 4 * (len(data) - zeros))


def checksum_address(text: str) -> str:
    """An account's address as the chain's tools write it."""
    if not Web3.is_address(text):
        raise ChainError(f"{text!r} is no address; 0x and 40 hex digits are expected")
    return str(Web3.to_checksum_address(text))


def keystore_key(text: str, password: str) -> bytes:
    """The private key in a keystore (Web3 Secret Storage, version 3); ValueError if it is none, or the password is wrong."""
    try:
        return bytes(Account.decrypt(text, password))
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None


class Chain:
    """A connection to one chain, checked once."""

    def __init__(self, url: str, chain_id: int | None = None, poll: float = 0.02) -> None:
        self.url, self.poll = url, poll
        self.web3 = Web3(HTTPProvider(url, request_kwargs={"timeout": 60}))
        self.chain_id = self.ask(lambda: self.web3.eth.chain_id)
        if chain_id is not None and chain_id != self.chain_id:
            raise ChainError(f"{url} is chain {self.chain_id}, chain {chain_id} was expected; check the endpoint")

    def ask(self, question: Callable[[], Any]) -> Any:
        """Any request; a node that is down or talks nonsense becomes one clear error."""
        try:
            return question()
        except requests.exceptions.RequestException as error:
            raise ChainError(f"no answer from {self.url} ({type(error).__name__}); is the node running?") from None
        except (ContractLogicError, ContractCustomError, TransactionNotFound, TimeExhausted):
            raise
        except (Web3RPCError, Web3Exception, ValueError) as error:
            raise RefusedError(f"{self.url} refused a request: {error}") from None

    def now(self) -> int:
        """Timestamp of the newest block."""
        return int(self.ask(lambda: self.web3.eth.get_block("latest"))["timestamp"])

    def balance(self, address: str) -> int:
        return int(self.ask(lambda: self.web3.eth.get_balance(Web3.to_checksum_address(address))))

    def fees(self) -> tuple[int, int]:
        """Base fee and usual tip, wei per gas."""
        base = int(self.ask(lambda: self.web3.eth.get_block("latest")).get("baseFeePerGas", 0))
        return base, int(self.ask(lambda: self.web3.eth.max_priority_fee))

    def advance(self, seconds: int) -> bool:
        """Move the clock of a development node; False where the node cannot."""
        reply = self.ask(lambda: self.web3.provider.make_request("evm_increaseTime", [seconds]))
        if "error" in reply:
            return False
        self.ask(lambda: self.web3.provider.make_request("evm_mine", []))
        return True

    def fund(self, address: str, amount: int) -> None:
        """Send ether from the node's first unlocked account (development nodes have some)."""
        accounts = self.ask(lambda: self.web3.eth.accounts)
        if not accounts:
            raise ChainError(f"{self.url} has no unlocked account; put the key of a funded one into VGAME_KEY")
        tx = {"from": accounts[0], "to": Web3.to_checksum_address(address), "value": amount}
        self.wait(self.ask(lambda: self.web3.eth.send_transaction(tx)))

    def wait(self, digest: bytes) -> Any:
        """Receipt of a transaction."""
        receipt = self.receipt(digest, RECEIPT_TIMEOUT)
        if receipt is None:
            raise ChainError(f"transaction {digest.hex()} was not included within {RECEIPT_TIMEOUT} seconds")
        return receipt

    def receipt(self, digest: bytes, timeout: float) -> Any:
        """Receipt of a transaction; None if it is not included in time."""
        try:
            return self.ask(lambda: self.web3.eth.wait_for_transaction_receipt(digest, timeout, poll_latency=self.poll))
        except TimeExhausted:
            return None


class Wallet:
    """An account that signs its own transactions."""

    def __init__(self, chain: Chain, key: str | bytes | None = None) -> None:
        self.chain = chain
        self.account: LocalAccount = Account.from_key(key) if key else Account.create()
        self.address = self.account.address

    @property
    def key(self) -> bytes:
        return bytes(self.account.key)

    def send(self, to: str | None, data: bytes, value: int = 0, gas: int | None = None) -> Any:
        """Sign, send and wait; `gas` is the estimate of what the call executes."""
        if len(data) > CALLDATA_CAP and to is not None:
            raise ChainError(f"a transaction of {len(data):,} bytes is too large; {CALLDATA_CAP:,} are the most")
        limit = max(int((gas or 0) * 1.05) + 10_000, calldata_floor(data))
        if limit > GAS_CAP:
            raise ChainError(f"a transaction of {limit:,} gas is too large; {GAS_CAP:,} are the most")
        tx = {"type": 2, "chainId": self.chain.chain_id, "data": data, "value": value, "gas": limit}
        if to is not None:
            tx["to"] = to
        return self._included(tx)

    def _included(self, tx: dict[str, Any]) -> Any:
        """The receipt. A transaction that is not included, of this process or of one that was killed, is replaced by one that pays more."""
        web3, sent = self.chain.web3, []
        base, tip = self.chain.fees()
        tip, most = max(tip, 1), 2 * base + max(tip, 1)
        tx["nonce"] = self.chain.ask(lambda: web3.eth.get_transaction_count(self.address, "latest"))
        for _ in range(RAISES):
            needed = tx["value"] + tx["gas"] * most
            if (owned := self.chain.balance(self.address)) < needed:
                raise ChainError(
                    f"{self.address} has {owned} wei, {needed} are needed for this transaction; send it some ether"
                )
            signed = self.account.sign_transaction(tx | {"maxPriorityFeePerGas": tip, "maxFeePerGas": most})
            refusal = None
            try:
                sent.append(self.chain.ask(lambda raw=signed.raw_transaction: web3.eth.send_raw_transaction(raw)))
            except RefusedError as error:
                refusal = error
            for digest in sent:
                if (receipt := self.chain.receipt(digest, 0)) is not None:
                    return receipt
            if refusal is not None and not any(sign in str(refusal).lower() for sign in REPLACEMENT_REFUSED):
                raise refusal
            if sent and (receipt := self.chain.receipt(sent[-1], RECEIPT_TIMEOUT)) is not None:
                return receipt
            base = self.chain.fees()[0]
            tip, most = tip * 5 // 4 + 1, max(most * 5 // 4 + 1, 2 * base + tip)
        raise ChainError(
            f"transaction {tx['nonce']} of {self.address} is not included, though {most} wei per gas were offered"
        )

    def deploy(self, name: str, *args: Any) -> str:
        """Deploy a checked-in contract; its address."""
        if not self.chain.balance(self.address):
            raise ChainError(f"{self.address} has no ether on chain {self.chain.chain_id}; send it some")
        compiled = artifact(name)
        factory = self.chain.web3.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
        constructor = factory.constructor(*args)
        data = bytes.fromhex(constructor.data_in_transaction[2:])
        gas = self.chain.ask(lambda: constructor.estimate_gas({"from": self.address}))
        return str(self.send(None, data, gas=gas)["contractAddress"])


def deploy_game(wallet: Wallet, referee: str | None = None) -> str:
    """Deploy the whole system, or the game over another machine; the game's address."""
    if referee is None:
        referee = wallet.deploy("Referee", wallet.deploy("Pointwise"))
    return wallet.deploy("VerificationGame", referee, wallet.deploy("Settlement", referee))


@cache
def full_abi() -> list[dict[str, Any]]:
    """One interface for both pieces of the game, and the errors that come through from the machine and its libraries."""
    entries: dict[str, dict[str, Any]] = {}
    for name in ("VerificationGame", "Settlement", "Referee", "Pointwise"):
        for entry in artifact(name)["abi"]:
            foreign = name in ("Referee", "Pointwise") and entry["type"] != "error"
            if entry["type"] in ("constructor", "fallback") or foreign:
                continue
            entries[json.dumps([entry["type"], entry.get("name"), entry["inputs"]])] = entry
    return list(entries.values())


@cache
def errors() -> dict[bytes, tuple[str, list[str]]]:
    """Selector -> name and argument types of every custom error."""
    found = [(e["name"], [_type(i) for i in e["inputs"]]) for e in full_abi() if e["type"] == "error"]
    return {bytes(Web3.keccak(text=f"{name}({','.join(types)})")[:4]): (name, types) for name, types in found}


class Game:
    """The contract at one address, for one wallet (None: read only)."""

    def __init__(self, chain: Chain, address: str, wallet: Wallet | None = None) -> None:
        self.chain, self.wallet = chain, wallet
        self.address = checksum_address(address)
        self.contract = chain.web3.eth.contract(address=self.address, abi=full_abi())
        self._check_code()

    def _check_code(self, name: str = "VerificationGame", address: str | None = None) -> None:
        """Is it this version's contract, byte for byte, except for what its constructor put in?"""
        address = address or self.address
        code = bytearray(self.chain.ask(lambda: self.chain.web3.eth.get_code(address)))
        compiled = artifact(name)
        for start in compiled["immutables"]:
            code[start : start + 32] = bytes(len(code[start : start + 32]))
        if bytes(code).hex() != compiled["runtime"]:
            raise ChainError(
                f"the code at {address} on chain {self.chain.chain_id} ({len(code)} bytes) is not the {name} of this vgame; check the "
                f"address, or use the version of vgame that deployed it"
            )

    def check_machine(self) -> None:
        """Whoever deployed the game chose its other parts too: are they this version's?"""
        referee, settlement = str(self._call("referee")), str(self._call("settlement"))
        machine = self.chain.web3.eth.contract(
            address=Web3.to_checksum_address(referee), abi=artifact("Referee")["abi"]
        )
        self._check_code("Settlement", settlement)
        part = self.chain.web3.eth.contract(
            address=Web3.to_checksum_address(settlement), abi=artifact("Settlement")["abi"]
        )
        if (other := str(self.chain.ask(lambda: part.functions.referee().call()))) != referee:
            raise ChainError(
                f"the game at {self.address} decides by {referee} and settles by {other}: do not play there"
            )
        self._check_code("Referee", referee)
        self._check_code("Pointwise", str(self.chain.ask(lambda: machine.functions.pointwise().call())))

    # ---- calls ----

    def _call(self, name: str, *args: Any) -> Any:
        function = getattr(self.contract.functions, name)(*args)
        return self._decoded(lambda: function.call())

    def _decoded(self, question: Callable[[], Any]) -> Any:
        try:
            return self.chain.ask(question)
        except ContractCustomError as error:
            raise self.contract_error(error.data) from None
        except ContractLogicError as error:
            raise ContractError(str(error), ()) from None

    def contract_error(self, data: Any) -> ContractError:
        """Revert data as the contract's own error."""
        raw = bytes.fromhex(data[2:]) if isinstance(data, str) else bytes(data or b"")
        name, types = errors().get(raw[:4], (f"unknown error 0x{raw[:4].hex()}", []))
        return ContractError(name, tuple(self.chain.web3.codec.decode(types, raw[4:])) if types else ())

    def send(self, name: str, *args: Any, value: int = 0) -> Any:
        """A transaction; a call that would revert is not sent and raises ContractError."""
        assert self.wallet is not None, "a read-only Game cannot send"
        function = getattr(self.contract.functions, name)(*args)
        tx = {"from": self.wallet.address, "value": value}
        self._check_funds(name, value)
        gas = self._decoded(lambda: function.estimate_gas(tx))
        data = bytes.fromhex(function._encode_transaction_data()[2:])
        receipt = self.wallet.send(self.address, data, value, gas)
        if receipt["status"] != 1:  # it reverted although the estimate did not: somebody was faster
            self._decoded(lambda: function.call(tx))
            raise ContractError("reverted", (name,))
        return receipt

    def _check_funds(self, name: str, value: int) -> None:
        owned = self.chain.balance(self.wallet.address) if value else 0
        if value > owned:
            raise ChainError(f"{name} needs {value} wei, {self.wallet.address} has {owned}; send it some ether")

    # ---- views ----

    def job(self, job: bytes) -> Job:
        phase, *rest, spec = self._call("getJob", job)
        return Job(Phase(phase), *rest, JobSpec(*spec))

    def dispute(self, job: bytes, number: int) -> Dispute:
        values = dict(zip((f.name for f in fields(Dispute)), self._call("getDispute", job, number), strict=True))
        enums = {"level": Level(values["level"]), "entry": Level(values["entry"]), "status": Status(values["status"])}
        return Dispute(**(values | enums))

    def verdict(self, job: bytes) -> Verdict:
        level, *rest = self._call("getVerdict", job)
        return Verdict(Level(level), *rest)

    def turn(self, job: bytes, number: int) -> tuple[Turn, int]:
        turn, deadline = self._call("turn", job, number)
        return Turn(turn), deadline

    def segment_root(self, job: bytes, checkpoint: int) -> bytes | None:
        root = self._call("segmentRoot", job, checkpoint)
        return root if any(root) else None

    def trace_root(self, job: bytes, step: int) -> bytes | None:
        root = self._call("traceRoot", job, step)
        return root if any(root) else None

    def opened(self, job: bytes, level: Level, height: int, node: bytes) -> int:
        return int(self._call("opened", job, level, height, node))

    def credits(self, address: str) -> int:
        return int(self._call("credits", address))

    def burnt(self) -> int:
        return int(self._call("burnt"))

    def job_id(self, spec: JobSpec, client: str, nonce: int) -> bytes:
        """The identity that the contract gives to an order."""
        inputs = next(e for e in full_abi() if e.get("name") == "createJob")["inputs"]
        types = [_type(inputs[0]), "uint256", "address", "address", "uint256"]
        encoded = self.chain.web3.codec.encode(types, [astuple(spec), self.chain.chain_id, self.address, client, nonce])
        return bytes(Web3.keccak(encoded))

    def events(
        self, name: str | None = None, job: bytes | None = None, first: int = 0, node: bytes | None = None
    ) -> list[Event]:
        """Events in order from block `first` on: of one name, one job, one node (Revealed, LeafOpened) if given."""
        topics: list[Any] = [Web3.to_hex(self._topic(name)) if name else None]
        if job is not None:
            topics.append(Web3.to_hex(job))
        if node is not None:
            topics.append(Web3.to_hex(node))
        newest = int(self.chain.ask(lambda: self.chain.web3.eth.block_number))
        logs = self._logs({"address": self.address, "topics": topics}, first, newest) if newest >= first else []
        return [event for log in logs if (event := self._decode_log(log)) is not None]

    def _logs(self, query: dict[str, Any], first: int, last: int) -> list[Any]:
        """Logs of a range of blocks; in halves where the endpoint refuses so many."""
        blocks = {"fromBlock": Web3.to_hex(first), "toBlock": Web3.to_hex(last)}
        try:
            return list(self.chain.ask(lambda: self.chain.web3.eth.get_logs(query | blocks)))
        except RefusedError:
            if first == last:
                raise
            middle = (first + last) // 2
            return self._logs(query, first, middle) + self._logs(query, middle + 1, last)

    @cached_property
    def _topics(self) -> dict[bytes, Any]:
        entries = [e for e in full_abi() if e["type"] == "event"]
        return {
            bytes(Web3.keccak(text=f"{e['name']}({','.join(_type(i) for i in e['inputs'])})")): getattr(
                self.contract.events, e["name"]
            )()
            for e in entries
        }

    def _topic(self, name: str) -> bytes:
        return next(topic for topic, event in self._topics.items() if event.event_name == name)

    def _decode_log(self, log: Any) -> Event | None:
        event = self._topics.get(bytes(log["topics"][0]))
        if event is None:
            return None
        args = dict(event.process_log(log)["args"])
        return Event(event.event_name, args, int(log["blockNumber"]), bytes(log["transactionHash"]).hex())


def _type(item: dict[str, Any]) -> str:
    """Canonical ABI type of an input, tuples written out."""
    if not item["type"].startswith("tuple"):
        return str(item["type"])
    return f"({','.join(_type(c) for c in item['components'])}){item['type'][5:]}"


def wait_until(condition: Callable[[], bool], timeout: float, poll: float = 0.05) -> bool:
    """Poll until the condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll)
    return True
