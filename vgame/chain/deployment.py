"""The deployment of a game, and its address on each chain: a registry file that `vgame deploy` writes and every command
reads.

    {"1": {"game": ADDRESS, "parts": {CONTRACT: {"address": ADDRESS, "code": KECCAK-256 OF ITS CODE, hex}}}, ...}

In: a game whose code was compared with this version's; or a file. Out: the file; or an address and the number of its
chain. The hashes are for other tools: vgame itself compares the code with its own artifacts before every use.

Each transaction of a deployment costs gas, so an interrupted deployment is resumed: the address of a contract follows
from the account and the number of the transaction, and a part that the account's last transactions have created is not
created again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import rlp
from web3 import Web3

from vgame.chain.abi import artifact
from vgame.chain.agreed import TRIES, agreed, agreed_soon, middle_of
from vgame.chain.anywhere import anywhere
from vgame.chain.connect import named_chain
from vgame.chain.connection import Chain, quantity
from vgame.chain.final import most_answering
from vgame.chain.game import Game
from vgame.chain.records import checksum_address
from vgame.chain.sending import send_until
from vgame.chain.wallet import Wallet, deploy_game
from vgame.errors import ChainError, NotYet, VgameError
from vgame.system.files import MODE, half_file, parse_json, read_file, write_atomic
from vgame.system.progress import NULL_PROGRESS, NullProgress

MOST = 2**20  # maximum bytes of a registry
MORE = 3  # transactions of other processes with this key that may come before one part is created
ORDER = ("Pointwise", "Referee", "Logged", "Settlement", "Delivery", "VerificationGame")  # as in `deploy_game`


def deploy(wallet: Wallet, listener: NullProgress = NULL_PROGRESS, before: Callable[[], None] = lambda: None) -> str:
    """Deploy a game, or resume its deployment; returns its address. `before`: called before the first transaction."""
    parts = _Parts(wallet, ORDER, before)
    return deploy_game(cast(Wallet, parts), listener=listener)  # it uses only the wallet's `deploy`


def deploy_part(wallet: Wallet, name: str, *args: str) -> str:
    """Deploy one contract, unless the account's last transactions have created it; returns its address."""
    return _Parts(wallet, [name]).deploy(name, *args)


class _Creation(Wallet):
    """The account, restricted to transactions with one number, of which at most one takes effect. Their gas does not
    depend on an endpoint's estimate."""

    def __init__(self, wallet: Wallet, number: int, gas: int) -> None:
        vars(self).update(vars(wallet))
        self.number, self.gas = number, gas

    def send(self, to: str | None, data: bytes, value: int = 0, gas: int | None = None) -> Any:
        return super().send(to, data, value, self.gas)

    def announce(self, number: int, digest: bytes) -> None:
        if number != self.number:
            raise NotYet(f"transaction {number} of {self.address} is next, not {self.number}: look again first")
        super().announce(number, digest)


class _Parts:
    """Contracts of this version that an account deploys, in this order."""

    def __init__(self, wallet: Wallet, names: Sequence[str], before: Callable[[], None] = lambda: None) -> None:
        self.wallet, self.names, self.before, self.sends = wallet, names, before, 0
        #: Number of the first transaction that may have created the next part.
        self.first = max(self._next() - len(names), 0)

    def _next(self) -> int:
        """Number of the account's next transaction."""
        return anywhere(self.wallet.chain, lambda: self.wallet.chain.middle(self._count))

    def _count(self, eth: Any) -> int:
        return quantity(eth.get_transaction_count(self.wallet.address, "latest"))

    def deploy(self, name: str, *args: str) -> str:
        """The address of a part with these constructor arguments, as most endpoints show it. A receipt alone could name
        any address."""
        for _ in range(TRIES):
            number = self._next()  # read first, so that `made` sees the effect of all transactions with lower numbers
            made = lambda *_, number=number: self._made(name, args, number)  # noqa: E731
            if not (address := agreed_soon(self.wallet.chain, f"the address of {name}", made)):
                try:
                    address = self._send(name, args, number, made)
                except NotYet as problem:  # another transaction has the number
                    later = problem
                    continue
            self.first = 1 + next(n for n in range(self.first, number + MORE) if self._address(n) == address)
            return address
        raise later

    def _send(self, name: str, args: tuple[str, ...], number: int, made: Callable[..., str]) -> str:
        if not self.sends:
            self._check_funds(name)
            self.before()
        self.sends += 1
        wallet = _Creation(self.wallet, number, most_gas(name))
        return send_until(wallet, f"deploy {name}", lambda: wallet.deploy(name, *args), made, most_answering)

    def _made(self, name: str, args: tuple[str, ...], number: int) -> str:
        """The address of a part that one of the transactions from `first` to a few after `number` has created; empty if
        there is none. NotYet at an endpoint that does not have all transactions before `number`."""
        chain = self.wallet.chain
        if (count := chain.ask(lambda: self._count(chain.web3.eth))) < number:
            raise NotYet(f"{chain.url} shows {count} transactions of {self.wallet.address}, not {number}: it lags")
        addresses = map(self._address, range(self.first, number + MORE))
        return next((address for address in addresses if self._is_part(name, address, args)), "")

    def _address(self, number: int) -> str:
        """The address of the contract that the account's transaction with this number creates."""
        made = rlp.encode([bytes.fromhex(self.wallet.address[2:]), number])
        return Web3.to_checksum_address(Web3.keccak(made)[12:])

    def _is_part(self, name: str, address: str, args: tuple[str, ...]) -> bool:
        """Is the code this version's, with the arguments among its immutables?"""
        chain, compiled = self.wallet.chain, artifact(name)
        code = chain.ask(lambda: bytearray(bytes(chain.web3.eth.get_code(Web3.to_checksum_address(address)))))
        held = set[int]()
        for start in compiled["immutables"]:
            held.add(int.from_bytes(code[start : start + 32]))
            code[start : start + 32] = bytes(len(code[start : start + 32]))
        return code.hex() == compiled["runtime"] and held.issuperset(int(address, 16) for address in args)

    def _check_funds(self, first: str) -> None:
        """ChainError unless the account can pay for this part and all after it."""
        chain, address = self.wallet.chain, self.wallet.address
        base, tip = anywhere(chain, lambda: chain.fees(of_all=True))
        gas = [most_gas(name) for name in self.names[self.names.index(first) :]]
        needed, owned = sum(gas) * (base + tip) + max(gas) * base, middle_of(chain, lambda: chain.balance(address))
        if owned < needed:
            raise ChainError(
                f"{address} has {owned} wei on chain {chain.chain_id}; {needed} are needed for the gas to deploy "
                f"{', '.join(self.names[-len(gas) :])}; send it some ether"
            )


def most_gas(name: str) -> int:
    """The maximum gas for deploying a part: 200 for each byte of its code, 16 for each byte of data, and 60,000."""
    return 60_000 + 100 * len(artifact(name)["runtime"]) + 8 * len(artifact(name)["bytecode"])


def check_room(path: Path, chain_id: int) -> None:
    """VgameError unless the file can be written and holds no game of the chain. Called before a deployment is paid."""
    if held := _known(path).get(str(chain_id)):
        raise _is_held(path, chain_id, held["game"])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with half_file(path.parent, path.name, MODE):
            pass
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror or error}; nothing was deployed") from None


def _is_held(path: Path, chain_id: int, game: str) -> VgameError:
    return VgameError(
        f"{path} holds the game {game} of chain {chain_id}, which roles may use; give another --registry, or delete "
        "that entry"
    )


def record(path: Path, game: Game) -> None:
    """Add the game to the file; VgameError if it holds another game of the same chain. NotYet unless more than half of
    the endpoints that answer show the same parts."""
    shown = agreed(game.chain, "the parts of the game", lambda: _parts(game), most_answering)
    parts = {name: {"address": address, "code": code} for name, address, code in shown}
    with _alone(path.parent):
        known = _known(path)
        if (held := known.get(str(game.chain.chain_id))) and held["game"] != game.address:
            raise _is_held(path, game.chain.chain_id, held["game"])
        known[str(game.chain.chain_id)] = {"game": game.address, "parts": parts}
        write_atomic(path, (json.dumps(known, indent=1) + "\n").encode())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process at a time is in this context of a folder, if its file system has locks."""
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _parts(game: Game) -> tuple[tuple[str, str, str], ...]:
    """Name, address and hash of the code of each part, as one endpoint shows them."""
    return tuple((name, address, _hash(game, address)) for name, address in game.check_parts().items())


def _hash(game: Game, address: str) -> str:
    code = game.chain.ask(lambda: bytes(game.chain.web3.eth.get_code(Web3.to_checksum_address(address))))
    return Web3.keccak(code).hex()


def _known(path: Path) -> dict[str, Any]:
    return read(path) if os.path.exists(path) else {}


def read(path: Path) -> dict[str, Any]:
    """The entries, by number of the chain. VgameError if the file is not such a registry."""
    try:
        known = parse_json(read_file(path, MOST, follow=True))
    except (OSError, ValueError) as error:
        raise VgameError(f"{path} is no registry of games: {error}") from None
    if not isinstance(known, dict) or not all(_is_entry(*item) for item in known.items()):
        raise VgameError(f'{path} is no registry of games: {{"NUMBER OF A CHAIN": {{"game": ADDRESS}}}} is expected')
    return known


def _is_entry(chain: str, entry: Any) -> bool:
    is_number = chain.isascii() and chain.isdigit() and len(chain) < 79  # 256 bits
    return is_number and isinstance(entry, dict) and isinstance(entry.get("game"), str)


def find(game: str, chain_id: int | None) -> tuple[str, int | None]:
    """(address, chain to sign for) for the value of `--game`: an address, or a registry file, which also names the
    chain."""
    try:
        is_file = Path(game).is_file()
    except OSError:  # for example, the text is too long for a file name
        is_file = False
    if not is_file:
        return game, chain_id
    known = read(Path(game))
    chain_id = named_chain() if chain_id is None else chain_id
    if chain_id is None and len(known) == 1:
        chain_id = int(next(iter(known)))
    entry = known.get(str(chain_id))
    if entry is None:
        held = ", ".join(sorted(known, key=int)) or "none"
        advice = f"chain {chain_id} is not one of them" if chain_id else "select one with --chain-id"
        raise ChainError(f"{game} holds games of chains {held}; {advice}")
    return checksum_address(entry["game"]), chain_id


def open_reading(rpc: str | Sequence[str], game: str, chain_id: int | None = None) -> Game:
    """A read-only game, by its address or a registry file."""
    address, chain_id = find(game, chain_id)
    return Game(Chain(rpc, chain_id), address)
