"""A chain and an account on it: connection, transactions, receipts, the checked-in contracts and their deployment.

In: a JSON-RPC endpoint and a private key. Out: answers and receipts; every failure is a clear error. The game itself:
vgame.chain.game.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from web3 import Web3
from web3.exceptions import (
    ContractCustomError,
    ContractLogicError,
    TimeExhausted,
    TransactionNotFound,
    Web3RPCError,
)

from vgame.chain.http import LOOPBACK, provider
from vgame.chain.records import NOBODY, checksummed
from vgame.errors import ChainError, EndpointError, NotYet, VgameError
from vgame.system.endpoints import hide_secrets, without_secrets

BEAT = 0.05  # seconds between two looks for a new block
RECEIPT_TIMEOUT = 60  # seconds until a transaction is replaced by one that pays a quarter more
TOO_MANY = 429  # the status of a reply to requests that come too fast
NO_URL = (requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL)
GWEI = 10**9
FINALITY = 900  # seconds, where a node does not say which block is final
#: Chains whose blocks come with transactions alone, none of which would ever be final; the last is the embedded one.
DEVELOPMENT = (1337, 31337, 131277322940537)
USUAL_TIP = 2 * GWEI  # per gas; an endpoint's word for more than this counts only up to the base fee
FEE_VARIABLE, FEE_CEILING = "VGAME_MAX_FEE", 500  # gwei per gas; never more, whatever an endpoint says
CHAIN_VARIABLE = "VGAME_CHAIN_ID"
T = TypeVar("T")
PARENTS = 3  # blocks before the newest that a node is tried with where it does not know its hash


class RefusedError(ChainError):
    """The node is there, but did not do what it was asked; `answer` is its reply, where that was one."""

    def __init__(self, text: str, answer: object = None) -> None:
        super().__init__(text)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Block:
    """A block's header: number, hash, Unix time, base fee in wei per gas."""

    number: int
    digest: bytes
    time: int
    base_fee: int = 0


@cache
def artifact(name: str) -> dict[str, Any]:
    """ABI and code of a contract, as checked in."""
    text = (files("vgame.chain") / "artifacts" / f"{name}.json").read_text()
    return dict(json.loads(text))


def calldata_floor(data: bytes) -> int:
    """Gas that a transaction pays at least for its calldata (EIP-7623)."""
    zeros = data.count(0)
    return 21_000 + 10 * (zeros + 4 * (len(data) - zeros))


def checksum_address(text: str) -> str:
    """An account's address as the chain's tools write it."""
    if not Web3.is_address(text):
        raise ChainError(f"{text!r} is no address; 0x and 40 hex digits are expected")
    return str(Web3.to_checksum_address(text))


def fee_ceiling() -> int:
    """The most that the user pays per gas, wei."""
    text = os.environ.get(FEE_VARIABLE) or str(FEE_CEILING)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ChainError(f"{FEE_VARIABLE} is {text!r}; a whole number of gwei per gas is expected, as {FEE_CEILING}")
    return int(text) * GWEI


def quantity(value: Any) -> int:
    """A number in an answer; ValueError if it is none, which `Chain.ask` makes a clear error."""
    if type(value) is not int or not 0 <= value < 2**256:
        raise ValueError(f"{value!r:.60} is no quantity")
    return value


class Chain:
    """A connection to one chain, checked when it is made and after every outage."""

    _newest = -1  # block, at the last pause
    lost = False  # a reply was: another node may give the next one
    pin: Block | None = None  # what is asked is answered as of this block
    is_development = False  # a job's identity has its chain's number in it: no endpoint makes one of these of another
    _form = ""  # in which the node takes it: "hash" or "number"; empty: not tried, or it failed
    tell: Callable[[str], None] = staticmethod(lambda _: None)  # what a person should know while a call takes long

    def __init__(self, url: str, chain_id: int | None = None, poll: float = 0.02) -> None:
        self.url, self.poll = without_secrets(url), poll
        self._secret = url
        self.web3 = Web3(provider(url))
        self.web3.middleware_onion.remove("validation")  # it asks for the chain's number before every call
        self.checks: list[Callable[[], object]] = [self._check_id]
        self.chain_id = self.ask(lambda: quantity(self.web3.eth.chain_id))
        self.is_development = self.chain_id in DEVELOPMENT
        if chain_id is not None and chain_id != self.chain_id:
            raise ChainError(f"{self.url} is chain {self.chain_id}, chain {chain_id} was expected; check the endpoint")

    def ask(self, question: Callable[[], T]) -> T:
        """Any request, and what reads its answer; a node that is down or talks nonsense becomes one clear error. After
        an outage it is asked first who it is."""
        if self.lost:
            self._meet_again()
        try:
            try:
                return question()
            except Web3RPCError:
                if not self.pin:
                    raise
                return question()  # the other node of a balancer may know the block
        except NO_URL as error:
            raise ChainError(
                f"{self.url} is no URL of a node ({self._told(error)}); http://HOST:PORT or https://... is expected"
            ) from None
        except requests.exceptions.RequestException as error:
            self.lost = True
            status = 500 if error.response is None else error.response.status_code
            if status < 500 and status != TOO_MANY:
                raise RefusedError(f"{self.url} refused a request: {self._told(error)}") from None
            raise ChainError(f"no answer from {self.url} ({type(error).__name__}); is the node running?") from None
        except (ContractLogicError, ContractCustomError, TransactionNotFound, TimeExhausted):
            raise
        except Web3RPCError as error:
            self._form = "" if self.pin else self._form
            raise RefusedError(f"{self.url} refused a request: {self._told(error)}", error.rpc_response) from None
        except (VgameError, AssertionError):
            raise
        except Exception as error:  # an answer can be anything, so reading one can raise anything
            what = " ".join(f"{type(error).__name__}: {self._told(error)}".split())[:200]
            raise EndpointError(
                f"{self.url} answers what cannot be read ({what}): the reply is ignored; use another endpoint "
                "if this goes on"
            ) from None

    def _told(self, error: Exception) -> str:
        """An error's words, without what only this endpoint's users may know."""
        return hide_secrets(str(error), self._secret)

    def _meet_again(self) -> None:
        """Is it still this chain, and the contracts that were found on it?"""
        self.lost = False
        try:
            for check in self.checks:
                check()
        except ChainError:
            self.lost = True
            raise

    def _check_id(self) -> None:
        if (found := self.ask(lambda: quantity(self.web3.eth.chain_id))) != self.chain_id:
            raise EndpointError(
                f"{self.url} was chain {self.chain_id} and is chain {found} now: nothing is sent; check the endpoint"
            )

    def block(self, which: int | str | None = None) -> Block:
        """A block's header; if none is named, the newest's, or that of `at` or `pinned`."""
        if which is None and self.pin:
            return self.pin
        named = self.web3.eth.default_block if which is None else which

        def read() -> Block:
            found = self.web3.eth.get_block(named)
            values = (quantity(found["number"]), bytes(found["hash"]), quantity(found["timestamp"]))
            return Block(*values, quantity(found.get("baseFeePerGas", 0)))

        return self.ask(read)

    @contextmanager
    def at(self, block: int | str) -> Iterator[None]:
        """What is asked meanwhile is answered as it stood after this block: a number, a hash, or "latest"."""
        before, pin = self.web3.eth.default_block, self.pin
        self.web3.eth.default_block, self.pin = block, None
        try:
            yield
        finally:
            self.web3.eth.default_block, self.pin = before, pin

    @contextmanager
    def pinned(self) -> Iterator[Block]:
        """One block, that of `at` or the newest: what is asked meanwhile is answered as it stood after it, by its hash
        (EIP-1898). So all answers are of one branch."""
        if self.pin or self.web3.eth.default_block != "latest":
            yield self.block()
            return
        pin, named = self._find_pin()
        self.pin, self.web3.eth.default_block = pin, named
        try:
            yield pin
        finally:
            self.pin, self.web3.eth.default_block = None, "latest"

    def _find_pin(self) -> tuple[Block, Any]:
        """The newest block whose state the node shows, and how it is named: by hash, with its last parents where the
        node does not know it; by number where the node takes no hash."""
        newest = block = self.block("latest")
        if not self._form:
            for back in range(min(PARENTS, newest.number) + 1):
                block = self.block(newest.number - back) if back else newest
                if self._shows(_by_hash(block)):
                    self._form = "hash"
                    break
            else:
                block, self._form = newest, "number"
        return block, self._named(block)

    def _named(self, block: Block) -> Any:
        """A block as the node takes it in a request."""
        return _by_hash(block) if self._form == "hash" else block.number

    def _shows(self, named: Any) -> bool:
        try:
            self.ask(lambda: quantity(self.web3.eth.get_balance(NOBODY, named)))
        except RefusedError:
            return False
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """For what is sent: the newest state counts. Where the pinned block was read by its number it is compared
        first."""
        if self.pin and self._form != "hash" and self.block(self.pin.number) != self.pin:
            raise NotYet(f"block {self.pin.number} was replaced while it was read at {self.url}: look again")
        with self.at("latest"):
            yield

    def now(self) -> int:
        """Timestamp of the newest block."""
        return self.block().time

    def time_of(self, block: int | str) -> int:
        """Timestamp of a block."""
        return self.ask(lambda: quantity(self.web3.eth.get_block(block)["timestamp"]))

    def pause(self, seconds: float, elsewhere: float = 0.0) -> None:
        """Until there is a block that was not there at the last pause, or so many seconds: what a round of duties sees
        changes with blocks. A node elsewhere is not asked meanwhile, for `elsewhere` seconds if these are more."""
        if urlsplit(self._secret).hostname not in LOOPBACK:
            time.sleep(max(seconds, elsewhere))
            return
        end = time.monotonic() + seconds
        while True:
            newest = self.ask(lambda: quantity(self.web3.eth.block_number))
            if newest != self._newest or time.monotonic() >= end:
                self._newest = newest
                return
            time.sleep(min(seconds, BEAT))

    def balance(self, address: str) -> int:
        return self.ask(lambda: quantity(self.web3.eth.get_balance(checksummed(address))))

    def fees(self) -> tuple[int, int]:
        """Base fee and usual tip, wei per gas; the tip goes to whoever makes blocks, so a large one needs a large base
        fee."""
        base = self.block().base_fee
        return base, min(self.asked_tip(), max(USUAL_TIP, base))

    def asked_tip(self) -> int:
        """The tip that the node proposes, however large, wei per gas."""
        return self.ask(lambda: quantity(self.web3.eth.max_priority_fee))

    def final_time(self, most: int = FINALITY) -> int:
        """Time up to which no reorganisation undoes anything; where the node does not name that block, in whatever
        manner, 15 minutes (or `most`) before its last one. On a development chain that of the last block."""
        if self.is_development:
            return self.now()
        try:
            return self.time_of("finalized")
        except (RefusedError, EndpointError):
            return self.now() - min(FINALITY, most)

    @contextmanager
    def final(self) -> Iterator[int]:
        """What is asked meanwhile is answered as of the last block that no reorganisation undoes; of the newest where
        the node does not name that one, or has no state of it. The second up to which nothing is undone."""
        with self.at("latest"):
            self.pin, self.web3.eth.default_block = self._find_pin()
            time = min(self.final_time(), self.pin.time)
            if not self.is_development:
                with suppress(RefusedError, EndpointError):
                    last = self.block("finalized")
                    named = self._named(last)
                    if self._shows(named):
                        self.pin, self.web3.eth.default_block = last, named
            yield time

    def advance(self, seconds: int) -> bool:
        """Move the clock of a development node; False where the node cannot."""
        if self.ask(lambda: "error" in self.web3.provider.make_request("evm_increaseTime", [seconds])):
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
            found, shown = self.ask(
                lambda: _named(self.web3.eth.wait_for_transaction_receipt(digest, timeout, poll_latency=self.poll))
            )
        except TimeExhausted:
            return None
        if shown != bytes(digest):
            raise EndpointError(
                f"{self.url} answers with the receipt of {shown.hex()[:16]} when it is asked for "
                f"{bytes(digest).hex()[:16]}: it is not believed; use another endpoint"
            )
        return found


def named_chain() -> int | None:
    """The chain in VGAME_CHAIN_ID, if there is one."""
    text = os.environ.get(CHAIN_VARIABLE)
    if text and not (text.isascii() and text.isdigit()):
        raise ChainError(f"{CHAIN_VARIABLE} is {text!r}; the number of a chain is expected, as 1")
    return int(text) if text else None


def connect(rpc: str, chain_id: int | None = None) -> Chain:
    """A chain to sign for: the one that the user names, here or in VGAME_CHAIN_ID; unnamed it is believed only to a
    node on loopback.

    INVARIANT: no endpoint elsewhere chooses for which chain a key signs, or the same transaction could be sent where
    its account has money.
    """
    chain_id = named_chain() if chain_id is None else chain_id
    chain = Chain(rpc, chain_id)
    if chain_id is None and urlsplit(rpc).hostname not in LOOPBACK:
        raise ChainError(
            f"the endpoint says that it is chain {chain.chain_id}, and nothing is signed on its word alone: name the "
            f"chain with --chain-id (--chain-id {chain.chain_id} if that is the one you mean)"
        )
    return chain


def _by_hash(block: Block) -> dict[str, Any]:
    return {"blockHash": "0x" + block.digest.hex(), "requireCanonical": True}


def _named(receipt: Any) -> tuple[Any, bytes]:
    """A receipt that has what is read of it, and its transaction."""
    quantity(receipt["status"])
    return receipt, bytes(receipt["transactionHash"])
