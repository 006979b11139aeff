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
from vgame.chain.agreed import agreed, median_of, replies_of, retried
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import Chain, RefusedError, quantity
from vgame.chain.final import most, most_answering
from vgame.chain.records import sized
from vgame.chain.sending import send_until
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, EndpointError, NotYet, VgameError
from vgame.system.progress import NULL_PROGRESS, NullProgress

MORE = 3  # transactions of other processes with this key that may come before one part is created
BACK = 24  # other transactions of the account among its last ones, between and after the parts
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

    def deploy(self, name: str, *args: Any) -> str:
        try:
            return super().deploy(name, *args)
        except ChainError as problem:
            if type(problem) is not ChainError:
                raise
            raise ChainError(self.chain.shown(problem)) from None  # it quotes the endpoint

    def in_vain(self) -> bool:
        """Whether the number may be used by a transaction that failed, as the endpoint in use shows it: one of these
        has failed, or none of these is shown though the number is used."""
        receipts = [found for digest in self.sent if (found := self.chain.receipt(digest, 0)) is not None]
        if receipts or not self.sent:
            return any(receipt["status"] != 1 for receipt in receipts)
        eth = self.chain.web3.eth
        return self.chain.ask(lambda: quantity(eth.get_transaction_count(self.address, "latest"))) > self.number


class _Parts:
    """Contracts of this version that an account deploys, in this order."""

    def __init__(self, wallet: Wallet, names: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        self.wallet, self.names, self.before, self.sends = wallet, names, before, 0
        self.after = 0  # number of the first transaction after those that have created parts in this run
        self.tried: _Creation | None = None  # the last attempt to create the part that is created now

    def _next(self) -> int:
        """Number of the account's next transaction: the highest one that more than half of all endpoints show, so that
        no minority of them can raise it."""
        chain = self.wallet.chain
        counts = replies_of(chain, lambda: chain.ask(lambda: self._count(chain.web3.eth)))
        if len(counts) < (needed := enough(chain)):
            raise NotYet(
                f"{len(counts)} of the endpoints answer, {needed} are needed, so that none decides alone: give others, "
                "or leave out those that do not answer"
            )
        return sorted(counts, reverse=True)[needed - 1]

    def _count(self, eth: Any) -> int:
        return quantity(eth.get_transaction_count(self.wallet.address, "latest"))

    def deploy(self, name: str, *args: str) -> str:
        """The address of a part with these constructor arguments, as most endpoints show it. A receipt alone could name
        any address."""
        return retried(self.wallet.chain, lambda: self._deploy(name, args), NotYet, EndpointError, RefusedError)

    def _deploy(self, name: str, args: tuple[str, ...]) -> str:
        number = self._next()  # read first, so that `made` sees the effect of all transactions with lower numbers
        if number < self.after:
            raise NotYet(
                f"most endpoints show {number} transactions of {self.wallet.address}, where {self.after} have created "
                "parts: a block was replaced, or they lag; run the command again"
            )
        numbers = range(max(number - len(self.names) - BACK, self.after), number + MORE)
        made = lambda *_: self._made(name, args, number, numbers)  # noqa: E731
        address = agreed(self.wallet.chain, f"the address of {name}", made, enough)
        if not address:
            address = self._send(name, args, number, made)
        self.after, self.tried = 1 + next(n for n in numbers if self._address(n) == address), None
        return address

    def _send(self, name: str, args: tuple[str, ...], number: int, made: Callable[..., str]) -> str:
        if not self.sends:
            self._check_funds(name)
            self.before()
        self.sends += 1
        tried, wallet = self.tried, _Creation(self.wallet, number, most_gas(name))
        if tried and tried.number < number:
            self._refuse_in_vain(tried, name)
        wallet.sent = tried.sent if tried and tried.number == number else wallet.sent
        self.tried = wallet
        try:
            return send_until(wallet, f"deploy {name}", lambda: wallet.deploy(name, *args), made, enough)
        except (NotYet, EndpointError, RefusedError):
            self._refuse_in_vain(wallet, name)
            raise

    def _refuse_in_vain(self, wallet: _Creation, name: str) -> None:
        """ChainError if a creation has failed, or may have: then it is not sent again."""
        chain = wallet.chain
        try:
            shown = retried(chain, lambda: agreed(chain, "a failure", wallet.in_vain, enough), ChainError, NotYet)
        except VgameError:
            shown = True
        if shown:
            raise ChainError(
                f"transaction {wallet.number} of {wallet.address}, which creates {name}, has failed, or nothing shows "
                "that it has not. Its gas may be paid, perhaps because this chain needs more gas than the EVM's rules; "
                "another run would send it again"
            ) from None

    def _made(self, name: str, args: tuple[str, ...], number: int, numbers: range) -> str:
        """The address of the newest part that one of the transactions with these numbers has created; empty if there is
        none. NotYet at an endpoint that does not have all transactions before `number`."""
        chain, addresses = self.wallet.chain, [self._address(n) for n in reversed(numbers)]
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


def enough(chain: Chain) -> int:
    """How many endpoints must agree: more than half of all; of two, one if the other one does not answer. Waiting costs
    nothing here, so those that do not answer count too."""
    return most(chain) if chain.turns and len(chain.turns.all) > 2 else most_answering(chain)


def most_gas(name: str) -> int:
    """The maximum gas for deploying a part: 200 for each byte of its code, 16 for each byte of data, and 60,000."""
    return 60_000 + 100 * len(artifact(name)["runtime"]) + 8 * len(artifact(name)["bytecode"])
