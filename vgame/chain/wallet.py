"""A key that signs transactions, and sends them until they are in a block."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount
from web3 import Web3
from web3.exceptions import ContractLogicError

from vgame.chain.abi import artifact
from vgame.chain.connection import (
    GWEI,
    RECEIPT_TIMEOUT,
    USUAL_TIP,
    Chain,
    RefusedError,
    quantity,
)
from vgame.chain.pauses import Pauses
from vgame.errors import ChainError, NotYet, TooDear
from vgame.system.progress import NULL_PROGRESS, NullProgress

GAS_CAP = 16_777_216  # maximum gas of one transaction (EIP-7825); vgame enforces it on every chain
CALLDATA_CAP = 126_000  # bytes; a public mempool accepts transactions up to 128 KiB
RAISES = 20
FEE_VARIABLE, FEE_CEILING = "VGAME_MAX_FEE", 500  # upper bound in gwei per gas, for any reply of an endpoint
WAITS = 5  # how often the account's transaction count is read while RECEIPT_TIMEOUT passes
FEE_MULTIPLE = 32  # a transaction offers at most this multiple of the larger of base fee and usual tip, per gas
#: Texts of nodes for a transaction that offers too little: a pending one with the same number offers as much, or the
#: tip is below the node's minimum.
TOO_CHEAP = re.compile(
    "underpriced|replacement|already ?(known|imported)|known transaction"
    "|(fee|price|tip).*(low|below|less)|(below|minimum).*(fee|price|tip)"
)
#: Characters of a refusal that are searched for these texts: the search takes longer than the text.
MOST_TEXT = 2_000
#: Text of nodes for a transaction whose maximum cost is above the node's limit.
CAPPED = "exceeds the configured cap"


def calldata_floor(data: bytes) -> int:
    """Minimum gas of a transaction with this calldata (EIP-7623)."""
    zeros = data.count(0)
    return 21_000 + 10 * (zeros + 4 * (len(data) - zeros))


def fee_ceiling() -> int:
    """The user's upper bound for the price of gas, in wei."""
    text = os.environ.get(FEE_VARIABLE) or str(FEE_CEILING)
    if not (text.isascii() and text.isdigit() and len(text) < 30 and int(text)):
        raise ChainError(
            f"{FEE_VARIABLE} is {text[:80]!r}; a whole number of gwei per gas is expected, as {FEE_CEILING}"
        )
    return int(text) * GWEI


def keystore_key(text: str, password: str) -> bytes:
    """The private key in a keystore (Web3 Secret Storage, version 3); ValueError if the text is not a keystore, or the
    password is wrong."""
    try:
        return bytes(Account.decrypt(text, password))
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None


class Wallet:
    """An account that signs its own transactions."""

    def __init__(self, chain: Chain, key: str | bytes | None = None) -> None:
        self.chain = chain
        self.account: LocalAccount = Account.from_key(key) if key else Account.create()
        self.address = self.account.address
        self.pauses = Pauses(chain)
        #: Called with the hash of each transaction before it is sent; if it raises, the transaction is not sent.
        self.before: Callable[[bytes], None] | None = None

    @property
    def key(self) -> bytes:
        return bytes(self.account.key)

    def send(self, to: str | None, data: bytes, value: int = 0, gas: int | None = None) -> Any:
        """Sign, send and wait; `gas`: the estimate for the call."""
        if len(data) > CALLDATA_CAP and to is not None:
            raise ChainError(f"a transaction of {len(data):,} bytes is too large; the maximum is {CALLDATA_CAP:,}")
        limit = max(int((gas or 0) * 1.05) + 10_000, calldata_floor(data))
        if limit > GAS_CAP:
            raise ChainError(f"a transaction of {limit:,} gas is too large; the maximum is {GAS_CAP:,}")
        tx = {"type": 2, "chainId": self.chain.chain_id, "data": data, "value": value, "gas": limit}
        if to is not None:
            tx["to"] = to
        turns = self.chain.turns
        receipt = turns.attempt(lambda: self._included(tx)) if turns else self._included(tx)
        self.pauses.included()
        return receipt

    def _included(self, tx: dict[str, Any]) -> Any:
        """Sign and send a transaction until it is included; returns its receipt. A pending transaction, of this process
        or of an earlier one, is replaced by one that pays more; a transaction above the node's cost limit by one that
        offers less. NotYet if the account's transaction count shows that it cannot be included: other moves need not
        wait for it."""
        sent: list[bytes] = []
        base, tip = self.chain.fees(of_all=True)
        most = min(2 * base + max(tip, 1), self._most(base))
        tip, cap, refusal = min(max(tip, 1), most), most + 2**256, None
        tx["nonce"] = self._count()
        for _ in range(RAISES):
            self._check_owned(tx["value"] + tx["gas"] * most)
            refusal = self._offer(tx | {"maxPriorityFeePerGas": tip, "maxFeePerGas": most}, sent)
            if (receipt := self._shown(sent, tx["nonce"])) is not None:
                return receipt
            reply = str(refusal and refusal.answer)[:MOST_TEXT].lower()
            if refusal is not None and CAPPED not in reply and not TOO_CHEAP.search(reply):
                raise refusal
            if sent and (receipt := self._receipt(sent, tx["nonce"])) is not None:
                return receipt
            base, offered = self.chain.fees(of_all=True)[0], most
            self.chain.tell(
                f"transaction {tx['nonce']} is pending: it offers {offered} wei per gas, the base fee is {base}"
            )
            if CAPPED in reply:
                cap, most = most - 1, (base + most) // 2
            else:
                asked = self.chain.asked_tip(of_all=True) if refusal else 0
                tip = max(tip * 5 // 4 + 1, asked)
                most = min(max(most * 5 // 4 + 1, 2 * base + tip), self._most(base, asked), cap)
            tip = min(tip, most)
            if most == offered:
                break
        raise ChainError(
            f"transaction {tx['nonce']} of {self.address} is not included, though it offers {offered} wei per gas; the "
            f"maximum is {FEE_MULTIPLE} times the base fee (counted as at least {USUAL_TIP // GWEI} gwei), or base fee "
            f"and tip that the node proposes, and at most {FEE_VARIABLE}" + (f"; {refusal}" if refusal else "")
        )

    def _receipt(self, sent: list[bytes], number: int) -> Any:
        """The receipt of one of the transactions with this number, after at most RECEIPT_TIMEOUT seconds; None if there
        is none. NotYet if transactions before it are not known, or another one has its number: that of another process
        with this key, or of an earlier one. The endpoint may show the count before the receipt, so the count is read
        twice, and at each of several endpoints."""
        endpoints = len(self.chain.turns.all) if self.chain.turns else 1
        used = count = 0  # how often the count has shown that the number is used
        for _ in range(WAITS):
            receipt = self.chain.receipt(sent[-1], RECEIPT_TIMEOUT / WAITS)
            if receipt is not None and endpoints == 1:
                return receipt
            used += (count := self._count()) > number
            if used and (receipt := receipt or self._any_receipt(sent)) is not None:
                return receipt
            if used >= min(max(endpoints, 2), WAITS):
                raise NotYet(
                    f"{self.chain.url} has another transaction {number} of {self.address}, of another process with "
                    "this key or of an earlier command: this one cannot be included"
                )
            self.chain.turn()
        if count < number:
            raise NotYet(
                f"transaction {number} of {self.address} cannot be included before transaction {count}, which "
                f"{self.chain.url} does not have"
            )
        return None

    def _shown(self, sent: Sequence[bytes], number: int) -> Any:
        """The receipt of one of the transactions with this number, if there is one. One of several endpoints may invent
        it, so the transaction count has to confirm it."""
        receipt = self._any_receipt(sent)
        return receipt if receipt is None or self.chain.turns is None or self._count() > number else None

    def _any_receipt(self, sent: Sequence[bytes]) -> Any:
        """The receipt of one of these transactions, if there is one."""
        return next((found for digest in sent if (found := self.chain.receipt(digest, 0)) is not None), None)

    def _count(self) -> int:
        """Transaction count of the account in the newest state; of several endpoints, the median of their replies."""
        return self.chain.median(lambda eth: quantity(eth.get_transaction_count(self.address, "latest")))

    def _check_owned(self, needed: int) -> None:
        if (owned := self.chain.balance(self.address)) < needed:
            raise ChainError(
                f"{self.address} has {owned} wei, {needed} are needed for this transaction; send it some ether"
            )

    def _offer(self, tx: dict[str, Any], sent: list[bytes]) -> RefusedError | None:
        """Sign and send; returns the refusal, if no node accepts the transaction."""
        signed = self.account.sign_transaction(tx)
        self.announce(tx["nonce"], bytes(signed.hash))
        try:
            self.chain.publish(signed.raw_transaction)
        except RefusedError as refusal:
            return refusal
        sent.append(signed.hash)  # the own hash: the endpoint's reply is not used
        return None

    def announce(self, number: int, digest: bytes) -> None:
        """Called just before a transaction is sent. It is not sent if its call has to wait (Paused), or if `before`
        raises."""
        self.pauses.check(number)
        if self.before:
            self.before(digest)
        self.pauses.begin(number)

    def _most(self, base: int, asked: int = 0) -> int:
        """The maximum that a transaction offers per gas, with the tip `asked` by the node; TooDear if the base fee
        alone is above the user's upper bound."""
        ceiling = fee_ceiling()
        if base > ceiling:
            raise TooDear(
                f"{self.chain.url} reports that the base fee is {base // GWEI:,} gwei per gas, above the maximum of "
                f"{ceiling // GWEI:,}: no transaction is sent; use another endpoint, or a larger {FEE_VARIABLE} if the "
                "fee is real"
            )
        return min(ceiling, max(FEE_MULTIPLE * max(base, USUAL_TIP), base + asked))

    def deploy(self, name: str, *args: Any) -> str:
        """Deploy a contract of the artifacts; returns its address."""
        if not self.chain.balance(self.address):
            raise ChainError(f"{self.address} has no ether on chain {self.chain.chain_id}; send it some")
        compiled = artifact(name)
        factory = self.chain.web3.eth.contract(abi=compiled["abi"], bytecode=compiled["bytecode"])
        constructor = factory.constructor(*args)
        data = bytes.fromhex(constructor.data_in_transaction[2:])
        try:
            gas = self.chain.ask(lambda: quantity(constructor.estimate_gas({"from": self.address})))
        except ContractLogicError as refusal:
            raise ChainError(
                f"{name} refuses chain {self.chain.chain_id}, or its constructor arguments: "
                f"{_error_name(compiled['abi'], refusal)}"
            ) from None
        return str(self.send(None, data, gas=gas)["contractAddress"])


def _error_name(abi: list[dict[str, Any]], refusal: ContractLogicError) -> str:
    """Name of the custom error of a constructor."""
    errors = [(e["name"], ",".join(i["type"] for i in e["inputs"])) for e in abi if e["type"] == "error"]
    names = {Web3.keccak(text=f"{name}({types})")[:4].hex(): name for name, types in errors}
    data = str(refusal.data)
    return str(names.get(data[2:10], "a part is not a valid contract" if data in ("None", "0x") else data))


def deploy_game(wallet: Wallet, referee: str | None = None, listener: NullProgress = NULL_PROGRESS) -> str:
    """Deploy the whole system, or the game with a given referee, which then decides in every mode; returns the game's
    address."""
    done, total = 0, 3 if referee else 6

    def deploy(name: str, *arguments: str) -> str:
        nonlocal done
        listener.progress("deploying", done, total, name)
        address, done = wallet.deploy(name, *arguments), done + 1
        return address

    logged = referee
    if referee is None:
        referee = deploy("Referee", deploy("Pointwise"))
        logged = deploy("Logged", referee)
    parts = [deploy(name, referee) for name in ("Settlement", "Delivery")]
    game = deploy("VerificationGame", referee, *parts, str(logged))
    listener.progress("deploying", total, total)
    return game
