"""The deployment of a game.

In: an account with ether. Out: the game's address. Each transaction costs gas, so an interrupted deployment is resumed:
the address of a contract follows from the account and the number of the transaction, and a part that the account's last
transactions have created is not created again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import rlp
from web3 import Web3

from vgame.chain.abi import artifact
from vgame.chain.agreed import agreed_soon, median_of, replies_of, retried
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import RefusedError, quantity
from vgame.chain.final import most_answering
from vgame.chain.records import sized
from vgame.chain.sending import send_until
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, EndpointError, NotYet, VgameError
from vgame.system.progress import NULL_PROGRESS, NullProgress

MORE = 3  # transactions of other processes with this key that may come before one part is created
BACK = 24  # other transactions of the account among its last ones, between and after the parts
FURTHEST = 1_000  # transactions after the last part that are searched for the next one
ORDER = ("Pointwise", "Referee", "Logged", "Settlement", "Delivery", "VerificationGame")  # as in `deploy_game`


def deploy(wallet: Wallet, listener: NullProgress = NULL_PROGRESS, before: Callable[[], None] = lambda: None) -> str:
    """Deploy a game, or resume its deployment; returns its address. `before`: called before the first transaction."""
    parts = _Parts(wallet, ORDER, before)
    return deploy_game(cast(Wallet, parts), listener=listener)  # it uses only the wallet's `deploy`


def deploy_part(wallet: Wallet, name: str, *args: str) -> str:
    """Deploy one contract, unless the account's last transactions have created it; returns its address."""
    return _Parts(wallet, [name]).deploy(name, *args)


class _Creation(Wallet):
    """The account, restricted to transactions with one number, of which at most one takes effect. Their gas is the
    EVM's; an endpoint may estimate more, up to twice as much."""

    def __init__(self, wallet: Wallet, number: int, gas: int) -> None:
        vars(self).update(vars(wallet))
        self.number, self.gas, self.sent = number, gas, list[bytes]()

    def send(self, to: str | None, data: bytes, value: int = 0, gas: int | None = None) -> Any:
        return super().send(to, data, value, min(max(self.gas, gas or 0), 2 * self.gas))

    def announce(self, number: int, digest: bytes) -> None:
        if number != self.number:
            raise NotYet(f"transaction {number} of {self.address} is next, not {self.number}: look again first")
        super().announce(number, digest)
        self.sent.append(digest)

    def failed(self) -> int:
        """1 if one of the transactions took effect and failed, as the endpoint in use shows it; 0 otherwise."""
        receipts = (self.chain.receipt(digest, 0) for digest in self.sent)
        return int(any(receipt is not None and receipt["status"] != 1 for receipt in receipts))


class _Parts:
    """Contracts of this version that an account deploys, in this order."""

    def __init__(self, wallet: Wallet, names: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        self.wallet, self.names, self.before, self.sends = wallet, names, before, 0
        #: Number of the first transaction that may have created the next part.
        self.first = max(self._least() - len(names) - BACK, 0)

    def _least(self) -> int:
        """The least transaction count of an endpoint that is not far below the median. The median alone would not do:
        where most endpoints fail to answer it can be too high, and parts before it would be paid again."""
        chain = self.wallet.chain
        counts = sorted(replies_of(chain, lambda: chain.ask(lambda: self._count(chain.web3.eth))))
        if chain.turns:
            chain.turns.check_enough(len(counts))
        return min(count for count in counts if count >= counts[len(counts) // 2] - FURTHEST // 2)

    def _next(self) -> int:
        """Number of the account's next transaction."""
        return anywhere(self.wallet.chain, lambda: self.wallet.chain.median(self._count))

    def _count(self, eth: Any) -> int:
        return quantity(eth.get_transaction_count(self.wallet.address, "latest"))

    def deploy(self, name: str, *args: str) -> str:
        """The address of a part with these constructor arguments, as most endpoints show it. A receipt alone could name
        any address."""
        return retried(self.wallet.chain, lambda: self._deploy(name, args), NotYet, EndpointError, RefusedError)

    def _deploy(self, name: str, args: tuple[str, ...]) -> str:
        number = self._next()  # read first, so that `made` sees the effect of all transactions with lower numbers
        self._check(number)
        made = lambda *_: self._made(name, args, number)  # noqa: E731
        address = agreed_soon(self.wallet.chain, f"the address of {name}", made)
        if not address:
            address = self._send(name, args, number, made)
        self.first = 1 + next(n for n in range(self.first, number + MORE) if self._address(n) == address)
        return address

    def _check(self, number: int) -> None:
        """NotYet if a replaced block has taken transactions back that created parts. ChainError if there are more
        transactions than can be searched."""
        chain, address = self.wallet.chain, self.wallet.address
        if number < self.first:
            raise NotYet(
                f"{chain.url} shows {number} transactions of {address}, where {self.first} have created parts: a block "
                "was replaced, or the endpoint lags; run the command again"
            )
        if number > self.first + FURTHEST:
            raise ChainError(
                f"{chain.url} shows {number} transactions of {address}, where {self.first} have created parts; use an "
                "account that sends nothing else, or another endpoint"
            )

    def _send(self, name: str, args: tuple[str, ...], number: int, made: Callable[..., str]) -> str:
        if not self.sends:
            self._check_funds(name)
            self.before()
        self.sends += 1
        wallet = _Creation(self.wallet, number, most_gas(name))
        try:
            return send_until(wallet, f"deploy {name}", lambda: wallet.deploy(name, *args), made, most_answering)
        except (NotYet, EndpointError, RefusedError) as problem:
            self._refuse_failed(wallet, name, problem)
            raise

    def _refuse_failed(self, wallet: _Creation, name: str, problem: VgameError) -> None:
        """ChainError if a creation took effect and failed, or may have: then it is not sent again."""
        try:
            failed = median_of(wallet.chain, wallet.failed)
        except VgameError as unread:
            raise ChainError(
                f"{problem}; and whether the transaction that creates {name} failed cannot be read ({unread}): run the "
                "command again when the endpoints answer"
            ) from None
        if failed:
            raise ChainError(
                f"the transaction that creates {name} failed, and its gas is paid: this chain needs more gas than the "
                "EVM's rules, so another run would fail again"
            ) from None

    def _made(self, name: str, args: tuple[str, ...], number: int) -> str:
        """The address of a part that one of the transactions from `first` to a few after `number` has created; empty if
        there is none. NotYet at an endpoint that does not have all transactions before `number`."""
        chain, addresses = self.wallet.chain, [self._address(n) for n in range(self.first, number + MORE)]
        with chain.pinned():  # one state: of a balancer's nodes one may be behind
            count, codes = self._look(addresses)
        if count < number:
            raise NotYet(f"{chain.url} shows {count} transactions of {self.wallet.address}, not {number}: it lags")
        compiled, found = artifact(name), zip(addresses, codes, strict=True)
        return next((address for address, code in found if _is_part(compiled, code, args)), "")

    def _look(self, addresses: Sequence[str]) -> tuple[int, list[bytes]]:
        """The account's transaction count and the codes at the addresses, in one request, so that one node of a
        balancer replies; one by one if the endpoint accepts no batches."""
        chain, account = self.wallet.chain, self.wallet.address
        eth = chain.web3.eth

        def ask() -> tuple[int, list[bytes]]:
            with chain.web3.batch_requests() as batch:
                for request in (eth.get_transaction_count(account), *map(eth.get_code, addresses)):  # type: ignore[arg-type]
                    batch.add(request)
                count, *codes = batch.execute()
            return quantity(count), [bytes(code) for code in sized(codes, len(addresses), len(addresses))]

        try:
            return chain.ask(ask)
        except (RefusedError, EndpointError):
            count = chain.ask(lambda: quantity(eth.get_transaction_count(account)))
            return count, [chain.ask(lambda a=address: bytes(eth.get_code(a))) for address in addresses]

    def _address(self, number: int) -> str:
        """The address of the contract that the account's transaction with this number creates."""
        made = rlp.encode([bytes.fromhex(self.wallet.address[2:]), number])
        return Web3.to_checksum_address(Web3.keccak(made)[12:])

    def _check_funds(self, first: str) -> None:
        """ChainError unless the account can pay for this part and all after it."""
        chain, address = self.wallet.chain, self.wallet.address
        base, tip = anywhere(chain, lambda: chain.fees(of_all=True))
        gas = [most_gas(name) for name in self.names[self.names.index(first) :]]
        offers = [(int(most * 1.05) + 10_000) * (2 * base + tip) for most in gas]  # as `Wallet.send` asks for them
        needed = max(sum(gas[:n]) * (base + tip) + offer for n, offer in enumerate(offers))
        owned = median_of(chain, lambda: chain.balance(address))
        if owned < needed:
            raise ChainError(
                f"{address} has {owned} wei on chain {chain.chain_id}; {needed} are needed for the gas to deploy "
                f"{', '.join(self.names[-len(gas) :])}; send it some ether"
            )


def _is_part(compiled: dict[str, Any], shown: bytes, args: Sequence[str]) -> bool:
    """Is the code this version's, with the arguments among its immutables?"""
    code, held = bytearray(shown), set[int]()
    for start in compiled["immutables"]:
        held.add(int.from_bytes(code[start : start + 32]))
        code[start : start + 32] = bytes(len(code[start : start + 32]))
    return code.hex() == compiled["runtime"] and held.issuperset(int(address, 16) for address in args)


def most_gas(name: str) -> int:
    """The maximum gas for deploying a part: 200 for each byte of its code, 16 for each byte of data, and 60,000."""
    return 60_000 + 100 * len(artifact(name)["runtime"]) + 8 * len(artifact(name)["bytecode"])
