"""The typed interface of AccuracyEscrow.sol: a bonus for a trained state with a high enough total on a committed test
set.

In: a game and its wallet. Out: typed views and receipts; a revert is a `ContractError` with the name of the contract's
error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

from web3 import Web3

from vgame.chain.abi import abi_type, artifact
from vgame.chain.agreed import agreed, checked, median_of
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import FINALITY, quantity
from vgame.chain.contents import Contents
from vgame.chain.game import Game
from vgame.chain.records import ZERO_ADDRESS, Event, JobSpec, checksum_address, checksummed
from vgame.chain.sending import send_until, withdraw
from vgame.errors import ChainError, ContractError, LostRace, NotYet

NAME = "AccuracyEscrow"
#: Advice for the contract's errors.
ADVICE = {
    "BonusExists": "it has been promised; give another --nonce for a second bonus with the same terms",
    "MarkMissed": "the total is below the mark, so the bonus is not paid",
    "NoBonus": "there is none, or it is settled; `vgame bonus close` prints the outcome",
    "NotAhead": "a bonus is promised before the training is claimed; order the job again",
    "NotTrained": "the job has not ended with a final claim; try again when its trainer has ended",
    "WrongCount": "give --run and --evaluation the runs of the training and of the evaluation",
    "WrongRoot": "give the runs, and the evaluation's job, of this bonus",
}


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


NONE = Bonus(bytes(32), bytes(32), bytes(32), ZERO_ADDRESS, 0, 0, 0, False, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Promised:
    """The terms of a bonus, from the event, which contains all of them. `evaluation`: the order without initial root
    and trainer."""

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


def explained(error: ContractError) -> ContractError:
    """The error, with advice added to its text."""
    if advice := ADVICE.get(error.name):
        error.args = (f"{error}: {advice}",)
    return error


def entry_of(source: int) -> bytes:
    """The layout entry for the training's state tensor with that number, below 2^24."""
    return source.to_bytes(32)


class EscrowContract:
    """The escrow at one address, for a game. ChainError unless it is this version's contract and belongs to that
    game."""

    def __init__(self, game: Game, address: str) -> None:
        self.game, self.address = game, checksum_address(address)
        self.contract = game.chain.web3.eth.contract(address=self.address, abi=artifact(NAME)["abi"])
        self._contents = Contents(game.chain, self.address, self._decode)
        with checked(game.chain):
            anywhere(game.chain, self._check)
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

    def send(self, name: str, *args: Any, value: int = 0, effect: Callable[[], bool] | None = None) -> None:
        """Send a call until most endpoints show its `effect`; once, if none is given. A call is not sent if more
        endpoints show that it would revert than not: ContractError, unless another transaction has had the same
        effect."""
        assert self.game.wallet is not None, "a read-only Game cannot send"
        call = lambda: self._send(name, args, value)  # noqa: E731
        try:
            if effect is None:
                call()
            else:
                send_until(self.game.wallet, name, call, lambda _: effect())
        except ContractError as error:
            raise explained(error) from None

    def _send(self, name: str, args: tuple[Any, ...], value: int = 0) -> Any:
        """The receipt of a call, as the endpoint in use shows it. The gas is the median estimate of all endpoints."""
        wallet = self.game.wallet
        self.game._check_funds(name, value)
        function, call = getattr(self.contract.functions, name)(*args), {"from": wallet.address, "value": value}
        gas = median_of(self.game.chain, lambda: self.game._decoded(lambda: quantity(function.estimate_gas(call))))
        receipt = wallet.send(self.address, bytes.fromhex(function._encode_transaction_data()[2:]), value, gas)
        if receipt["status"] != 1:  # it reverted although the estimate did not: another account was faster
            self.game._decoded(lambda: function.call(call))
            raise LostRace(name)
        return receipt

    def open(self, terms: BonusTerms, evaluation: JobSpec, layout: list[bytes], amount: int, nonce: int) -> bytes:
        """Open a bonus and pay for it; returns its id."""
        wallet = self.game.wallet
        assert wallet is not None, "a read-only Game cannot send"
        identity = self.id_of(terms, evaluation, layout, wallet.address, amount, nonce)
        opening = (astuple(terms), astuple(evaluation), layout, nonce)
        self.send("open", *opening, value=amount, effect=lambda: self.exists(identity))
        return identity

    def start(self, identity: bytes) -> None:
        """Begin the window of a bonus."""
        self.send("start", identity, effect=lambda: self.held(identity).since > 0)

    def pay_by(self, identity: bytes, proof: BonusProof) -> None:
        """Pay a bonus by its proof."""
        self.send("pay", identity, astuple(proof), effect=lambda: self.held(identity).paid)

    def give_back(self, identity: bytes) -> None:
        """Return a bonus to its payer."""
        self.send("giveBack", identity, effect=lambda: (held := self.held(identity)).settled_at > 0 and not held.paid)

    def withdraw(self, owed: int) -> int:
        """Withdraw the account's credits from the escrow, which has shown `owed` wei of them; returns the wei paid."""
        wallet = self.game.wallet
        assert wallet is not None, "a read-only Game cannot send"
        return withdraw(wallet, self.address, owed, lambda: self._send("withdraw", (wallet.address,)))

    def held(self, identity: bytes) -> Bonus:
        """A bonus, settled or not; ChainError if there is none."""
        if not (bonus := self._shown(identity)).amount:
            raise ChainError(f"there is no bonus {identity.hex()} at {self.address}; check it and the chain")
        return bonus

    def bonus(self, identity: bytes) -> Bonus | None:
        """A bonus; None if there is none, or if it is settled."""
        bonus = self._shown(identity)
        return bonus if bonus.amount and not bonus.settled_at else None

    def exists(self, identity: bytes) -> bool:
        """Was the bonus opened? It may be settled."""
        return self._shown(identity).amount > 0

    def _shown(self, identity: bytes) -> Bonus:
        """The bonus as the contract has it; all fields are zero if there is none."""
        return self.game.chain.ask(lambda: Bonus(*self._call("getBonus", identity)))

    def id_of(
        self, terms: BonusTerms, evaluation: JobSpec, layout: list[bytes], payer: str, amount: int, nonce: int
    ) -> bytes:  # fmt: skip
        """The id that the contract gives to a bonus."""
        types = [*self._opening[:3], "address", "uint256", "uint256"]
        values = [astuple(terms), astuple(evaluation), layout, payer, amount, nonce]
        return bytes(Web3.keccak(self.game.chain.web3.codec.encode(types, values)))

    def final(self, identity: bytes) -> Bonus:
        """A bonus, settled or not, as more than half of the endpoints show it in their final states; NotYet until they
        do: a newer block may be replaced, and one endpoint alone may invent a state."""
        shown = agreed(
            self.game.chain, f"the final state of bonus {identity.hex()[:16]}", lambda: self._final(identity)
        )
        if not shown.amount:
            raise NotYet(
                f"no final block shows bonus {identity.hex()} at {self.address}: if identity and chain are right, it "
                f"is too new; try again in {FINALITY // 60} minutes"
            )
        return shown

    def _final(self, identity: bytes) -> Bonus:
        """The bonus in the final state of the endpoint in use: all zero if there is none, or no escrow yet. Changes
        after the final time are left out."""
        with self.game.chain.final() as second:
            shown = self._shown(identity) if self._is_there() else NONE
        if shown.promised_at > second:
            return NONE
        shown = replace(shown, since=0) if shown.since > second else shown
        return replace(shown, settled_at=0, paid=False) if shown.settled_at > second else shown

    def _is_there(self) -> bool:
        return bool(self.game.chain.ask(lambda: self.game.chain.web3.eth.get_code(checksummed(self.address))))

    def promised(self, identity: bytes, held: Bonus | None = None) -> Promised:
        """The terms of a bonus, settled or not: the contract holds the hashes of order and layout, and an event the
        rest. One endpoint that shows the event is enough. `held`: the contract's record, if it was already read."""
        held = held or self.held(identity)

        def read(event: Event) -> Promised | None:
            args = event.args
            terms, spec = (tuple(dict(args[k]).values()) for k in ("terms", "evaluation"))
            layout = tuple(map(bytes, args["layout"]))
            found = Promised(identity, args["payer"], args["amount"], BonusTerms(*terms), JobSpec(*spec), layout)
            return found if self._is_held(found, held) else None

        topics = (Web3.to_hex(hexstr=self.contract.events.Promised().topic), Web3.to_hex(identity))
        return anywhere(self.game.chain, lambda: self._contents.find((identity, held), topics, held.promised_at, read))

    def _is_held(self, found: Promised, held: Bonus) -> bool:
        """Does a promise match the contract's record: payer, amount, terms and hashes?"""
        terms = BonusTerms(held.training, held.window, held.total, held.size, held.least)
        order = self.game.chain.web3.codec.encode([self._opening[1]], [astuple(found.evaluation)])
        hashes = (Web3.keccak(order), Web3.keccak(b"".join(found.layout)))
        return (found.payer, found.amount, found.terms, *map(bytes, hashes)) == (
            held.payer, held.amount, terms, held.evaluation, held.layout
        )  # fmt: skip

    @cached_property
    def _opening(self) -> list[str]:
        """The types of the inputs of `open`: terms, order, layout, nonce."""
        return list(map(abi_type, next(e for e in artifact(NAME)["abi"] if e.get("name") == "open")["inputs"]))

    def credits(self, address: str) -> int:
        return int(self._call("credits", address))
