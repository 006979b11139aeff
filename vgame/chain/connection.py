"""A connection to a chain.

In: JSON-RPC endpoints. Out: replies and receipts; every failure is a clear error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from hexbytes import HexBytes
from web3 import Web3
from web3.exceptions import (
    ContractCustomError,
    ContractLogicError,
    TransactionIndexingInProgress,
    TransactionNotFound,
    Web3RPCError,
)

from vgame.chain.anywhere import anywhere
from vgame.chain.http import LOOPBACK, provider
from vgame.chain.records import ZERO_ADDRESS, checksummed
from vgame.chain.turns import Endpoint, Turns
from vgame.errors import ChainError, ContractError, EndpointError, NotYet, VgameError
from vgame.system.endpoints import hide_secrets, without_secrets

BEAT = 0.05  # seconds between two checks for a new block
SLOWEST = 1.0  # longest pause in seconds between two requests for a receipt
RECEIPT_TIMEOUT = 60  # seconds until a transaction is replaced by one that pays a quarter more
TOO_MANY = 429  # HTTP status "too many requests"
NO_URL = (requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL)
GWEI = 10**9
FINALITY = 900  # seconds until a block counts as final if a node does not name the final block
#: Chains that make a block only for a transaction, so that no block would become final; the last is the embedded one.
DEVELOPMENT = (1337, 31337, 131277322940537)
USUAL_TIP = 2 * GWEI  # per gas; a larger tip from an endpoint is accepted only up to the base fee
T = TypeVar("T")
MOST_SHOWN = 500  # characters of a node's text in an error
PARENTS = 3  # blocks before the newest that are tried if a node does not know the newest one's hash


class RefusedError(ChainError):
    """The node replied, but refused the request; `answer`: its JSON-RPC reply, if there was one."""

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


def quantity(value: Any) -> int:
    """A number in a reply; ValueError if it is not one, which `Chain.ask` turns into an EndpointError."""
    if type(value) is not int or not 0 <= value < 2**256:
        raise ValueError(f"{value!r:.60} is not a quantity")
    return value


class Chain:
    """A connection to one chain, checked when it is made and after every outage."""

    _newest = -1  # newest block at the last pause
    lost = False  # a reply was lost: the next one may come from another node
    pin: Block | None = None  # requests read the state after this block
    is_development = False  # safe to trust: a job's id contains the chain's number, so no endpoint can pretend this
    form = ""  # how the node accepts the pinned block: "hash" or "number"; empty: not tried, or failed
    tell: Callable[[str], None] = staticmethod(lambda _: None)  # shows a message to the user during a long call
    turns: Turns | None = None  # if there are several endpoints

    def __init__(self, url: str | Sequence[str], chain_id: int | None = None, poll: float = 0.02) -> None:
        """`url`: of one endpoint, or several, which take turns."""
        urls, self.poll = [url] if isinstance(url, str) else list(url), poll
        self.url, self.secret = without_secrets(urls[0]), urls[0]
        self.web3 = Web3(provider(urls[0]))
        self.web3.middleware_onion.remove("validation")  # it requests the chain's number before every call
        self.checks: list[Callable[[], object]] = []
        if len(urls) > 1:
            self.turns = Turns(self, [Endpoint(without_secrets(url), url, provider(url)) for url in urls])
        self.chain_id = anywhere(self, lambda: self._id_of(chain_id))
        self.checks.append(self._check_id)
        self.is_development = self.chain_id in DEVELOPMENT

    def _id_of(self, wanted: int | None) -> int:
        """Number of the endpoint's chain; ChainError unless it is the `wanted` one."""
        found = self.ask(lambda: quantity(self.web3.eth.chain_id))
        if wanted not in (None, found):
            raise ChainError(f"{self.url} is chain {found}, chain {wanted} was expected; check the endpoint")
        return found

    @property
    def endpoint(self) -> int:
        """Number of the endpoint in use."""
        return self.turns.at if self.turns else 0

    def turn(self) -> None:
        """A look begins: use the next endpoint."""
        if self.turns and not self.pin:
            self.turns.next()

    def use(self, node: Any) -> None:
        """Send requests to this node from now on."""
        self.web3.provider = node

    def publish(self, raw: bytes) -> None:
        """Send a signed transaction to all endpoints; the first one's error if none accepts it."""
        self._from_all(lambda eth: eth.send_raw_transaction(raw))

    def median(self, question: Callable[[Any], int], lower: bool = False) -> int:
        """The median of all replies, right if most are; of two medians the `lower`, or the one near this endpoint's."""
        replies = self._from_all(question)
        if self.turns:
            self.turns.check_enough(len(replies))
        low, high = (sorted(replies)[n // 2] for n in (len(replies) - 1, len(replies)))
        return low if lower else min(max(replies[0], low), high)

    def _from_all(self, question: Callable[[Any], T]) -> list[T]:
        """The replies of all endpoints that answer; the first one's error if none does."""
        found, problems = list[T](), list[Exception]()
        for _ in self.turns.each() if self.turns else [None]:
            try:
                found.append(self.ask(lambda: question(self.web3.eth)))
            except Exception as problem:  # another endpoint may answer
                problems.append(problem)
        if not found:
            raise problems[0]
        return found

    def ask(self, question: Callable[[], T]) -> T:
        """Do a request and parse its reply; every failure of the node becomes a clear error. After an outage the chain
        and the contracts are checked first."""
        if self.lost:
            self._meet_again()
        with self.turns.timed() if self.turns else nullcontext():
            return self._ask(question)

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            try:
                return question()
            except Web3RPCError:
                if not self.pin:
                    raise
                return question()  # another node behind a load balancer may know the block
        except NO_URL as error:
            raise ChainError(
                f"{self.url} is no URL of a node ({self.shown(error)}); http://HOST:PORT or https://... is expected"
            ) from None
        except requests.exceptions.RequestException as error:
            self.lost = True
            status = 500 if error.response is None else error.response.status_code
            if status < 500 and status != TOO_MANY:
                raise RefusedError(f"{self.url} refused a request: {self.shown(error)}") from None
            raise ChainError(f"no answer from {self.url} ({type(error).__name__}); is the node running?") from None
        except (ContractLogicError, ContractCustomError, TransactionNotFound):
            raise
        except Web3RPCError as error:
            self.form = "" if self.pin else self.form
            raise RefusedError(f"{self.url} refused a request: {self.shown(error)}", error.rpc_response) from None
        except (VgameError, AssertionError):
            raise
        except Exception as error:  # a reply can be anything, so parsing it can raise anything
            what = " ".join(f"{type(error).__name__}: {self.shown(error)}".split())[:200]
            raise EndpointError(
                f"a reply of {self.url} cannot be read ({what}): the reply is ignored; use another endpoint if this "
                "continues"
            ) from None

    def shown(self, text: object) -> str:
        """An error's text, without the secrets in the endpoint's URL, of at most MOST_SHOWN characters."""
        most = MOST_SHOWN * len(self.secret)  # so that no secret is cut at the end of the shown text
        return hide_secrets(str(text)[:most], self.secret)[:MOST_SHOWN]

    def _meet_again(self) -> None:
        """Check after an outage that the endpoint still has this chain and its contracts."""
        self.lost = False
        try:
            for check in self.checks:
                check()
        except Exception as problem:
            self.lost = True
            if isinstance(problem, ContractError):
                raise EndpointError(f"the contracts at {self.url} cannot be checked: {problem}") from None
            raise

    def _check_id(self) -> None:
        if (found := self.ask(lambda: quantity(self.web3.eth.chain_id))) != self.chain_id:
            raise EndpointError(
                f"{self.url} was chain {self.chain_id} and is chain {found} now: no transaction is sent; check the "
                "endpoint"
            )

    def block(self, which: int | str | None = None) -> Block:
        """A block's header; without an argument that of the newest block, or of the block of `at` or `pinned`."""
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
        """Requests inside this context read the state after this block: a number, a hash, or "latest"."""
        before, pin = self.web3.eth.default_block, self.pin
        self.web3.eth.default_block, self.pin = block, None
        try:
            yield
        finally:
            self.web3.eth.default_block, self.pin = before, pin

    @contextmanager
    def pinned(self) -> Iterator[Block]:
        """Requests inside this context read the state after one block, that of `at` or the newest. If the node accepts
        its hash (EIP-1898), all replies are of one branch."""
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
        """The newest block whose state the node shows, and its block parameter: by hash (of one of its last parents if
        the node does not know it), or by number if the node accepts no hash."""
        newest = block = self.block("latest")
        if not self.form:
            for back in range(min(PARENTS, newest.number) + 1):
                block = self.block(newest.number - back) if back else newest
                if self._shows(_by_hash(block)):
                    self.form = "hash"
                    break
            else:
                block, self.form = newest, "number"
        return block, self._named(block)

    def _named(self, block: Block) -> Any:
        """The block parameter for a block, in the form that the node accepts."""
        return _by_hash(block) if self.form == "hash" else block.number

    def _shows(self, named: Any) -> bool:
        try:
            self.ask(lambda: quantity(self.web3.eth.get_balance(ZERO_ADDRESS, named)))
        except RefusedError:
            return False
        return True

    @contextmanager
    def released(self) -> Iterator[None]:
        """A context for sending: requests read the newest state. If the pinned block was read by number, it is compared
        first: NotYet if it was replaced."""
        if self.pin and self.form != "hash" and self.block(self.pin.number) != self.pin:
            raise NotYet(f"block {self.pin.number} was replaced while it was read at {self.url}: read it again")
        with self.at("latest"), self.turns.back() if self.turns else nullcontext():
            yield

    def now(self) -> int:
        """Timestamp of the newest block."""
        return self.block().time

    def time_of(self, block: int | str) -> int:
        """Timestamp of a block."""
        return self.ask(lambda: quantity(self.web3.eth.get_block(block)["timestamp"]))

    def pause(self, seconds: float, elsewhere: float = 0.0) -> None:
        """Wait until there is a newer block than at the last pause, or for `seconds`: the state changes only with
        blocks. A remote node gets no requests during the pause, which is then at least `elsewhere` seconds."""
        if urlsplit(self.secret).hostname not in LOOPBACK:
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

    def fees(self, of_all: bool = False) -> tuple[int, int]:
        """Base fee and usual tip, wei per gas, at this endpoint, or (`of_all`) the lower medians of all. A node may
        propose too large a tip, so a large tip is accepted only with a large base fee."""
        tip = self.asked_tip(of_all)
        base = self.median(_base_fee, lower=True) if of_all else self.block().base_fee
        return base, min(tip, max(USUAL_TIP, base))

    def asked_tip(self, of_all: bool = False) -> int:
        """The tip that the node proposes, without an upper bound, wei per gas."""
        return self.median(_tip, lower=True) if of_all else self.ask(lambda: _tip(self.web3.eth))

    def final_time(self, most: int = FINALITY) -> int:
        """Time of the last final block, which no reorganisation undoes. If the node does not name it, 15 minutes (or
        `most`) before the newest block. On a development chain the time of the newest block."""
        if self.is_development:
            return self.now()
        try:
            return self.time_of("finalized")
        except (RefusedError, EndpointError):
            return self.now() - min(FINALITY, most)

    @contextmanager
    def final(self) -> Iterator[int]:
        """Requests inside this context read the state after the last final block; after the newest if the node does not
        name the final one, or does not have its state. Yields the final time."""
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
        """Move the clock of a development node; False if the node does not support it."""
        if self.ask(lambda: "error" in self.web3.provider.make_request("evm_increaseTime", [seconds])):
            return False
        self.ask(lambda: self.web3.provider.make_request("evm_mine", []))
        return True

    def fund(self, address: str, amount: int) -> None:
        """Send ether from the node's first unlocked account (development nodes have some)."""
        accounts = self.ask(lambda: self.web3.eth.accounts)
        if not accounts:
            raise ChainError(f"{self.url} has no unlocked account; put the key of a funded one into VGAME_KEY")
        tx = {"from": accounts[0], "to": checksummed(address), "value": amount}
        self.wait(self.ask(lambda: self.web3.eth.send_transaction(tx)))

    def wait(self, digest: bytes) -> Any:
        """Receipt of a transaction."""
        receipt = self.receipt(digest, RECEIPT_TIMEOUT)
        if receipt is None:
            raise ChainError(f"transaction {digest.hex()} was not included within {RECEIPT_TIMEOUT} seconds")
        return receipt

    def receipt(self, digest: bytes, timeout: float) -> Any:
        """Receipt of a transaction; None if it is not included in time."""
        replies = (self.ask(lambda: self._receipt(digest)) for _ in self.polls(timeout))
        return next((found for found in replies if found is not None), None)

    def polls(self, seconds: float) -> Iterator[None]:
        """Yields at once, then again until `seconds` have passed, after pauses that become longer."""
        end, pause = time.monotonic() + seconds, self.poll
        yield
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, SLOWEST)
            yield

    def _receipt(self, digest: bytes) -> Any:
        """The receipt, with a valid status; None if the endpoint has none, or none yet."""
        try:
            found = self.web3.eth.get_transaction_receipt(HexBytes(digest))
        except (TransactionNotFound, TransactionIndexingInProgress):
            return None
        if found is None:
            return None
        quantity(found["status"])
        if (shown := bytes(found["transactionHash"])) != bytes(digest):
            raise EndpointError(
                f"{self.url} returns the receipt of {shown.hex()[:16]} instead of {bytes(digest).hex()[:16]}: the "
                "reply is ignored; use another endpoint"
            )
        return found


def _tip(eth: Any) -> int:
    return quantity(eth.max_priority_fee)


def _base_fee(eth: Any) -> int:
    return quantity(eth.get_block("latest").get("baseFeePerGas", 0))


def _by_hash(block: Block) -> dict[str, Any]:
    return {"blockHash": "0x" + block.digest.hex(), "requireCanonical": True}
