"""The typed face of AccuracyEscrow.sol: a bonus for a trained state that counts enough on a committed test set.

In: a game and its wallet. Out: typed views and receipts; a revert is a `ContractError` by the contract's own error
name.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from web3 import Web3

from vgame.chain.connection import artifact, checksum_address, quantity
from vgame.chain.events import Events
from vgame.chain.game import Game
from vgame.chain.records import Event, JobSpec
from vgame.errors import ChainError, EndpointError, LostRace

NAME = "AccuracyEscrow"
SOURCES = 2**24  # an entry of a layout below this is the number of a state tensor of the training


@dataclass(frozen=True, slots=True)
class BonusTerms:
    """AccuracyEscrow.Terms, in the contract's order."""

    training: bytes
    window: int
    total: int
    size: int
    least: int


@dataclass(frozen=True, slots=True)
class Bonus:
    """AccuracyEscrow.Bonus."""

    training: bytes
    evaluation: bytes
    layout: bytes
    payer: str
    promised_at: int
    since: int
    settled_at: int
    paid: bool
    window: int
    amount: int
    total: int
    size: int
    least: int


@dataclass(frozen=True, slots=True)
class Promised:
    """What was promised, from the event: whom it concerns can read all of it there. `evaluation`: the order with the
    initial root 0."""

    id: bytes
    payer: str
    amount: int
    terms: BonusTerms
    evaluation: JobSpec
    layout: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BonusProof:
    """AccuracyEscrow.Proof, in the contract's order."""

    evaluation: bytes
    layout: list[bytes]
    trained: bytes
    trained_path: list[bytes]
    tensors: list[bytes]
    measured: bytes
    measured_path: list[bytes]
    total: int
    total_path: list[bytes]
    size: int
    size_path: list[bytes]


def entry_of(source: int) -> bytes:
    """The entry of a layout that stands for the training's state tensor of that number."""
    return source.to_bytes(32)


class EscrowContract:
    """The contract at one address, beside a game. ChainError unless it is this version's, and of that game."""

    def __init__(self, game: Game, address: str) -> None:
        self.game, self.address = game, checksum_address(address)
        self.contract = game.chain.web3.eth.contract(address=self.address, abi=artifact(NAME)["abi"])
        self._events = Events(game.chain, self.address, self._decode)
        self._check()
        game.chain.checks.append(self._check)

    def _check(self) -> None:
        self.game._check_code(NAME, self.address)
        if (other := str(self._call("game"))) != self.game.address:
            raise ChainError(f"the escrow at {self.address} belongs to the game {other}, not to {self.game.address}")

    def _call(self, name: str, *args: Any) -> Any:
        return self.game._decoded(lambda: getattr(self.contract.functions, name)(*args).call())

    def _decode(self, log: Any) -> Event | None:
        for event in self.contract.events:
            if bytes(log["topics"][0]) == bytes.fromhex(event().topic.removeprefix("0x")):
                args = dict(event().process_log(log)["args"])
                return Event(event.event_name, args, quantity(log["blockNumber"]), bytes(log["transactionHash"]).hex())
        return None

    def send(self, name: str, *args: Any, value: int = 0) -> Any:
        """A transaction; a call that would revert is not sent and raises ContractError."""
        wallet = self.game.wallet
        assert wallet is not None, "a read-only Game cannot send"
        self.game._check_funds(name, value)
        function = getattr(self.contract.functions, name)(*args)
        call = {"from": wallet.address, "value": value}
        gas = self.game._decoded(lambda: quantity(function.estimate_gas(call)))
        receipt = wallet.send(self.address, bytes.fromhex(function._encode_transaction_data()[2:]), value, gas)
        if receipt["status"] != 1:  # it reverted although the estimate did not: somebody was faster
            self.game._decoded(lambda: function.call(call))
            raise LostRace(name)
        return receipt

    def open(self, terms: BonusTerms, evaluation: JobSpec, layout: list[bytes], amount: int, nonce: int) -> bytes:
        """Pay for a bonus; its identity."""
        receipt = self.send("open", astuple(terms), astuple(evaluation), layout, nonce, value=amount)
        found = [e for log in receipt["logs"] if (e := self._decode(log)) is not None and e.name == "Promised"]
        if not found or self.bonus(found[0].args["id"]) is None:
            raise EndpointError(f"{self.game.chain.url} shows no bonus after a receipt of `open`; use another endpoint")
        return bytes(found[0].args["id"])

    def bonus(self, identity: bytes) -> Bonus | None:
        """A bonus that is not settled."""
        bonus = self.game.chain.ask(lambda: Bonus(*self._call("getBonus", identity)))
        return bonus if bonus.amount and not bonus.settled_at else None

    def promised(self, identity: bytes) -> Promised:
        """What was promised, settled or not."""
        event = next((e for e in self.events(identity) if e.name == "Promised"), None)
        if event is None:
            raise ChainError(f"there is no bonus {identity.hex()} at {self.address}; check it and the chain")
        args = event.args
        terms, spec = (tuple(dict(args[k]).values()) for k in ("terms", "evaluation"))
        layout = tuple(map(bytes, args["layout"]))
        return Promised(identity, args["payer"], args["amount"], BonusTerms(*terms), JobSpec(*spec), layout)

    def events(self, identity: bytes) -> list[Event]:
        """What has happened to a bonus, in order."""
        return list(self._events.read((None, Web3.to_hex(identity))))

    def credits(self, address: str) -> int:
        return int(self._call("credits", address))
