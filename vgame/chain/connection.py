"""A chain and an account on it: connection, transactions, receipts, the checked-in contracts and their deployment.

In: a JSON-RPC endpoint and a private key. Out: answers and receipts; every failure is a clear error. The game itself: vgame.chain.game.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from http.client import HTTPResponse
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import requests
from eth_account import Account
from eth_account.signers.local import LocalAccount
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from web3 import HTTPProvider, Web3
from web3.exceptions import (
    ContractCustomError,
    ContractLogicError,
    TimeExhausted,
    TransactionNotFound,
    Web3Exception,
    Web3RPCError,
)
from web3.providers.rpc.utils import ExceptionRetryConfiguration

from vgame.errors import ChainError, EndpointError, TooDear, VgameError

#: Calls in calls that Python allows, its own default. web3's libraries allow 100,000, and JSON nested so deep runs over the C stack.
MOST_CALLS = 1000
sys.setrecursionlimit(MOST_CALLS)

GAS_CAP = 16_777_216  # of one transaction (EIP-7825); not every chain enforces it, so vgame does
CALLDATA_CAP = 126_000  # bytes; a public mempool takes transactions up to 128 KiB
REPLY_TIMEOUT = 60  # seconds from the request to the last byte of its reply
MOST_REPLY = 2**25  # bytes of a reply, header and all
MOST_VALUES = 2**20  # in a reply: as Python objects some 200 MB; 32 MiB of nothing but values would be gigabytes
CONNECT_TIMEOUT = 10  # seconds of these for each address of the endpoint
RECEIPT_TIMEOUT = 60  # seconds until a transaction is replaced by one that pays a quarter more
TOO_MANY = 429  # the status of a reply to requests that come too fast
RAISES = 20
NO_URL = (requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL)
GWEI = 10**9
FINALITY = 900  # seconds, where a node does not say which block is final
USUAL_TIP = 2 * GWEI  # per gas; an endpoint's word for more than this counts only up to the base fee
FEE_MULTIPLE = 32  # of the larger of base fee and usual tip: the most that a transaction offers per gas
FEE_VARIABLE, FEE_CEILING = "VGAME_MAX_FEE", 500  # gwei per gas; never more, whatever an endpoint says
CHAIN_VARIABLE = "VGAME_CHAIN_ID"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: How nodes say that a transaction of the same number is already waiting and pays as much, or is this very one.
REPLACEMENT_REFUSED = ("underpriced", "already known", "already imported", "replacement")


class RefusedError(ChainError):
    """The node is there, but did not do what it was asked."""


@cache
def artifact(name: str) -> dict[str, Any]:
    """ABI and code of a contract, as checked in."""
    return json.loads((files("vgame.chain") / "artifacts" / f"{name}.json").read_text())


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


#: Until when the reply that is waited for has to be here, on the monotonic clock.
_END: ContextVar[float] = ContextVar("end")


class _InTime(io.RawIOBase):
    """What comes over a socket until `_END`, at most MOST_REPLY bytes. The library's timeout is for each piece, and a line of a header has
    many."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._raw, self._room = sock, sock.makefile("rb", buffering=0), MOST_REPLY

    def makefile(self, _: str) -> io.BufferedReader:
        """What HTTPResponse asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := _END.get() - time.monotonic()) <= 0:
            raise TimeoutError(f"a reply took more than {REPLY_TIMEOUT} seconds")
        self._sock.settimeout(left)
        count = self._raw.readinto(buffer)
        self._room -= count or 0
        if self._room < 0:
            raise ValueError(f"a reply has more than {MOST_REPLY:,} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _in_time(pool: Any) -> Any:
    """A pool of connections whose replies, from the first line of the header on, have to be here by `_END`."""

    def reply(_: Any, sock: socket.socket, **options: Any) -> HTTPResponse:
        return HTTPResponse(_InTime(sock), **options)  # type: ignore[arg-type]

    return type(
        pool.__name__, (pool,), {"ConnectionCls": type("Connection", (pool.ConnectionCls,), {"response_class": reply})}
    )


class _InTimeAdapter(HTTPAdapter):
    """Connections of that kind, through proxies too."""

    pools = {"http": _in_time(HTTPConnectionPool), "https": _in_time(HTTPSConnectionPool)}  # noqa: RUF012

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self.pools

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self.pools
        return manager

    def send(self, *args: Any, **options: Any) -> requests.Response:
        """INVARIANT: a body is as large as what arrived. Compressed it could be of any size, and was not asked for."""
        _END.set(time.monotonic() + REPLY_TIMEOUT)
        response = super().send(*args, **options)
        if response.is_redirect:
            raise requests.TooManyRedirects(
                f"it redirects to {response.headers['Location']:.200}; if you trust that, give it as the endpoint",
                response=response,
            )
        response.raw.headers.discard("Content-Encoding")
        return response


class _Provider(HTTPProvider):
    """It reads a reply only if that has one meaning and few values."""

    def decode_rpc_response(self, raw_response: bytes) -> Any:
        if (values := sum(map(raw_response.count, (b",", b"[", b"{")))) > MOST_VALUES:
            raise ValueError(f"a reply has {values:,} values, more than {MOST_VALUES:,}")
        return json.loads(raw_response, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once; of two values for one key, two programs may read different ones."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a reply has the same key twice")
    return found


def without_secrets(url: str) -> str:
    """What messages say of an endpoint: passwords stand before its host, keys in its path or query."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # no host or port can be told from the rest
        return "the endpoint" if set("@?") & set(url) or url.count("/") > 2 else url
    hidden = "/..." if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.hostname}{port}{hidden}" if parts.hostname else url


def careful_session() -> requests.Session:
    """For what strangers serve: a reply has to be here in REPLY_TIMEOUT, is not compressed, and leads nowhere else."""
    session = requests.Session()
    session.headers["Accept-Encoding"] = "identity"
    session.mount("http://", _InTimeAdapter())
    session.mount("https://", _InTimeAdapter())
    return session


def _provider(url: str) -> HTTPProvider:
    """What was not answered in time is not asked again at once."""
    session = careful_session()
    again = ExceptionRetryConfiguration(errors=(ConnectionError, requests.HTTPError))
    return _Provider(url, {"timeout": (CONNECT_TIMEOUT, REPLY_TIMEOUT)}, session, again)


class Chain:
    """A connection to one chain, checked when it is made and after every outage."""

    lost = False  # an answer was: who answers next may be somebody else
    tell: Callable[[str], None] = staticmethod(lambda _: None)  # what a person should know while a call takes long

    def __init__(self, url: str, chain_id: int | None = None, poll: float = 0.02) -> None:
        self.url, self.poll = without_secrets(url), poll
        self._secret = url
        self.web3 = Web3(_provider(url))
        self.checks: list[Callable[[], None]] = [self._check_id]
        self.chain_id = self.ask(lambda: quantity(self.web3.eth.chain_id))
        if chain_id is not None and chain_id != self.chain_id:
            raise ChainError(f"{self.url} is chain {self.chain_id}, chain {chain_id} was expected; check the endpoint")

    def ask(self, question: Callable[[], Any]) -> Any:
        """Any request, and what reads its answer; a node that is down or talks nonsense becomes one clear error. After an outage it is
        asked first who it is."""
        if self.lost:
            self._meet_again()
        try:
            return question()
        except NO_URL as error:
            raise ChainError(
                f"{self.url!r} is no endpoint ({self._told(error)}); http://HOST:PORT or https://... is expected"
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
            raise RefusedError(f"{self.url} refused a request: {self._told(error)}") from None
        except (VgameError, AssertionError):
            raise
        except Exception as error:  # an answer can be anything, so reading one can raise anything
            what = " ".join(f"{type(error).__name__}: {self._told(error)}".split())[:200]
            raise EndpointError(
                f"{self.url} answers what cannot be read ({what}): nothing is done on its word; use another endpoint if this goes on"
            ) from None

    def _told(self, error: Exception) -> str:
        """An error's words, without what only this endpoint's users may know."""
        try:
            parts = urlsplit(self._secret)
        except ValueError:
            return "it cannot be read"
        secrets = [self._secret, parts.path, parts.query, parts.username, parts.password]
        text = str(error)
        for secret in sorted((s for s in secrets if s and len(s) > 1), key=len, reverse=True):
            text = text.replace(secret, "...")
        return text

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

    def now(self) -> int:
        """Timestamp of the newest block."""
        return self.ask(lambda: quantity(self.web3.eth.get_block("latest")["timestamp"]))

    def balance(self, address: str) -> int:
        return self.ask(lambda: quantity(self.web3.eth.get_balance(Web3.to_checksum_address(address))))

    def fees(self) -> tuple[int, int]:
        """Base fee and usual tip, wei per gas; the tip goes to whoever makes blocks, so a large one needs a large base fee."""
        base = self.ask(lambda: quantity(self.web3.eth.get_block("latest").get("baseFeePerGas", 0)))
        return base, min(self.ask(lambda: quantity(self.web3.eth.max_priority_fee)), max(USUAL_TIP, base))

    def final_time(self, most: int) -> int:
        """Time up to which no reorganisation undoes anything; a node that does not say: 15 minutes (or `most`) before its last block."""
        try:
            return int(self.web3.eth.get_block("finalized")["timestamp"])
        except (Web3Exception, ValueError, KeyError, TypeError):
            return self.now() - min(FINALITY, most)

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


def connect(rpc: str, chain_id: int | None = None) -> Chain:
    """A chain to sign for: the one that the user names, here or in VGAME_CHAIN_ID; unnamed it is believed only to a node on loopback.

    INVARIANT: no endpoint elsewhere chooses for which chain a key signs, or the same transaction could be sent where its account has money.
    """
    if chain_id is None and (text := os.environ.get(CHAIN_VARIABLE)):
        if not (text.isascii() and text.isdigit()):
            raise ChainError(f"{CHAIN_VARIABLE} is {text!r}; the number of a chain is expected, as 1")
        chain_id = int(text)
    chain = Chain(rpc, chain_id)
    if chain_id is None and urlsplit(rpc).hostname not in LOOPBACK:
        raise ChainError(
            f"the endpoint says that it is chain {chain.chain_id}, and nothing is signed on its word alone: name the chain with --chain-id "
            f"(--chain-id {chain.chain_id} if that is the one you mean)"
        )
    return chain


def _named(receipt: Any) -> tuple[Any, bytes]:
    """A receipt that has what is read of it, and its transaction."""
    quantity(receipt["status"])
    return receipt, bytes(receipt["transactionHash"])


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
        most = min(2 * base + max(tip, 1), self._most(base))
        tip = min(max(tip, 1), most)
        tx["nonce"] = self.chain.ask(lambda: quantity(web3.eth.get_transaction_count(self.address, "latest")))
        for _ in range(RAISES):
            needed = tx["value"] + tx["gas"] * most
            if (owned := self.chain.balance(self.address)) < needed:
                raise ChainError(
                    f"{self.address} has {owned} wei, {needed} are needed for this transaction; send it some ether"
                )
            signed = self.account.sign_transaction(tx | {"maxPriorityFeePerGas": tip, "maxFeePerGas": most})
            refusal = None
            try:
                self.chain.ask(lambda raw=signed.raw_transaction: web3.eth.send_raw_transaction(raw))
                sent.append(signed.hash)  # whatever the endpoint says that it is
            except RefusedError as error:
                refusal = error
            for digest in sent:
                if (receipt := self.chain.receipt(digest, 0)) is not None:
                    return receipt
            if refusal is not None and not any(sign in str(refusal).lower() for sign in REPLACEMENT_REFUSED):
                raise refusal
            if sent and (receipt := self.chain.receipt(sent[-1], RECEIPT_TIMEOUT)) is not None:
                return receipt
            base, offered = self.chain.fees()[0], most
            self.chain.tell(
                f"transaction {tx['nonce']} waits: {offered} wei per gas are offered, the base fee is {base}"
            )
            most = min(max(most * 5 // 4 + 1, 2 * base + tip), self._most(base))
            tip = min(tip * 5 // 4 + 1, most)
            if most <= offered:
                break
        raise ChainError(
            f"transaction {tx['nonce']} of {self.address} is not included, though {offered} wei per gas were offered; the most is "
            f"{FEE_MULTIPLE} times the base fee (counted as {USUAL_TIP // GWEI} gwei at least), and what {FEE_VARIABLE} allows"
        )

    def _most(self, base: int) -> int:
        """What a transaction may offer per gas; TooDear if the base fee alone is more than the user pays."""
        ceiling = fee_ceiling()
        if base > ceiling:
            raise TooDear(
                f"{self.chain.url} says that the base fee is {base // GWEI:,} gwei per gas, at most {ceiling // GWEI:,} are paid: nothing "
                f"is sent; use another endpoint, or put a larger number into {FEE_VARIABLE} if it is true"
            )
        return min(ceiling, FEE_MULTIPLE * max(base, USUAL_TIP))

    def deploy(self, name: str, *args: Any) -> str:
        """Deploy a checked-in contract; its address."""
        if not self.chain.balance(self.address):
            raise ChainError(f"{self.address} has no ether on chain {self.chain.chain_id}; send it some")
        compiled = artifact(name)
        factory = self.chain.web3.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
        constructor = factory.constructor(*args)
        data = bytes.fromhex(constructor.data_in_transaction[2:])
        try:
            gas = self.chain.ask(lambda: quantity(constructor.estimate_gas({"from": self.address})))
        except ContractCustomError as refusal:
            raise ChainError(
                f"{name} refuses chain {self.chain.chain_id}, or what it is to be made of: {_error_name(compiled['abi'], refusal)}"
            ) from None
        return str(self.send(None, data, gas=gas)["contractAddress"])


def _error_name(abi: list[dict[str, Any]], refusal: ContractCustomError) -> str:
    """Name of the custom error of a constructor."""
    errors = [(e["name"], ",".join(i["type"] for i in e["inputs"])) for e in abi if e["type"] == "error"]
    names = {Web3.keccak(text=f"{name}({types})")[:4].hex(): name for name, types in errors}
    return names.get(str(refusal.data)[2:10], str(refusal.data))


def deploy_game(wallet: Wallet, referee: str | None = None) -> str:
    """Deploy the whole system, or the game over another machine, which then decides in every mode; the game's address."""
    logged = referee
    if referee is None:
        referee = wallet.deploy("Referee", wallet.deploy("Pointwise"))
        logged = wallet.deploy("Logged", referee)
    settlement = wallet.deploy("Settlement", referee, wallet.deploy("Delivery", referee))
    return wallet.deploy("VerificationGame", referee, settlement, logged)
