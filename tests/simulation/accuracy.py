"""The base of every story of a bonus: the real game and escrow, a trained run and its evaluation, made once per
process.

In: a world. Out: the escrow at a player's node; bundles of any clocks. Results that depend on arguments alone are
cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import branches
import endpoint
import pyrevm
from bonus_stage import Trained, executor, task
from endpoint import SimContents, SimGame, altered
from eth_abi import decode, encode
from hexbytes import HexBytes
from revm_chain import RevmChain, Unsigned
from revm_node import RICH, Reverted, RevmNode
from web3 import Web3
from web3.exceptions import ContractCustomError, ContractLogicError

import vgame.agents.bonus as agents
import vgame.agents.bonus_conditions as conditions
from vgame import Bundle, Escrow, Run, Task, Terms, evaluated
from vgame import train as vgame_train
from vgame.chain.abi import abi_type, artifact
from vgame.chain.escrow import NAME
from vgame.chain.records import Event, checksummed
from vgame.chain.wallet import Wallet, deploy_game
from vgame.job.terms import Pace
from vgame.runs.history import History

ABI = artifact(NAME)["abi"]
FUNCTIONS = {e["name"]: e for e in ABI if e["type"] == "function"}
INPUTS = {name: [abi_type(i) for i in e["inputs"]] for name, e in FUNCTIONS.items()}
OUTPUTS = {name: [abi_type(o) for o in e["outputs"]] for name, e in FUNCTIONS.items()}
SELECTORS = {name: bytes(Web3.keccak(text=f"{name}({','.join(kinds)})"))[:4] for name, kinds in INPUTS.items()}
NAMES = {selector: name for name, selector in SELECTORS.items()}
EVENTS = Web3().eth.contract(abi=ABI).events
USUAL, ORDERED = branches.accounts, agents.ordered_bundle
ETHER = 10**18
QUICK = Pace(0.01, 0.01)


# ---- contracts ----


@cache
def deployed() -> tuple[str, dict[str, bytes], str]:
    """The game's address, the code of all parts, and the escrow's address."""
    chain = RevmChain(RevmNode())
    wallet = Wallet(chain, branches.DEPLOYER)
    wallet.account = Unsigned(wallet.account)
    chain.node.set_balance(wallet.address, 10**20)
    game = deploy_game(wallet)
    escrow = wallet.deploy(NAME, game)
    made = [r["contractAddress"] for r in chain.node.receipts.values() if r["contractAddress"]]
    return game, {str(checksummed(part)): bytes.fromhex(chain.node.code(part)[2:]) for part in made}, escrow


def contracts() -> tuple[str, dict[str, bytes]]:
    return deployed()[:2]


@cache
def accounts() -> dict[str, pyrevm.AccountInfo]:
    return USUAL.__wrapped__()


class Function:
    """A function of the escrow with its arguments, at a node."""

    def __init__(self, eth: Any, name: str, args: Any) -> None:
        self.eth, self.name, self.data = eth, name, SELECTORS[name] + encode(INPUTS[name], args)

    def _view(self, which: Any, tx: dict[str, Any]) -> tuple[bytes, int]:
        block, sender, value = self.eth.state_of(which), tx.get("from", RICH[0]), tx.get("value", 0)

        def found() -> Any:
            try:
                return self.eth.replica_at(block).call(block, sender, deployed()[2], self.data, value)
            except Reverted as reverted:
                return reverted

        answer = self.eth.cached(("escrow", block, self.data, sender, value), found)
        if isinstance(answer, Reverted):
            text = answer.args[0]
            raise ContractCustomError(text, data=text) if len(text) > 9 else ContractLogicError("reverted", data=text)
        return answer

    def call(self, tx: dict[str, Any] | None = None) -> Any:
        values = decode(OUTPUTS[self.name], self._view(self.eth.default_block, tx or {})[0])
        found = _shown(values[0])
        lies = self.name == "getBonus" and self.eth.faults.lie > self.eth.world.now
        return altered(found, self.eth.faults.field) if lies else found

    def estimate_gas(self, tx: dict[str, Any]) -> int:
        return self._view("latest", tx)[1]

    def _encode_transaction_data(self) -> str:
        return "0x" + self.data.hex()


def _shown(value: Any) -> Any:
    """Accounts with a checksum, as web3 shows them."""
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return str(checksummed(value)) if isinstance(value, str) else value


class EscrowContents(SimContents):
    """Contents of the player's own node."""

    def _decoded(self, logs: list[Any], topics: Any) -> list[Event]:
        mine = [log for log in logs if log["address"].lower() == self.address.lower()]
        mine = [log for log in mine if all(t is None or t == f for t, f in zip(topics, log["topics"], strict=False))]
        return [event for event in map(self.decode, mine) if event is not None]


class SimEscrow(Escrow):
    """vgame's escrow over such a node."""

    def __init__(self, game: SimGame) -> None:
        self.game, self.address = game, deployed()[2]
        self.contract = SimpleNamespace(events=EVENTS, functions=Functions(game.chain.web3.eth))
        self._contents = EscrowContents(game.chain, self.address, self._decode)
        self._check()
        game.chain.checks.append(self._check)

    def _check(self) -> None:
        self.game._check_code(NAME, self.address)

    def _decode(self, log: Any) -> Event | None:
        shown = {"topics": [HexBytes(t) for t in log["topics"]], "data": HexBytes(log["data"])}
        shown |= {"transactionHash": HexBytes(log["transactionHash"]), "blockNumber": int(log["blockNumber"], 16)}
        return super()._decode(log | shown | {"logIndex": 0})


class Functions:
    def __init__(self, eth: Any) -> None:
        self.eth = eth

    def __getattr__(self, name: str) -> Callable[..., Function]:
        return lambda *args: Function(self.eth, name, args)


# ---- runs ----


@dataclass(frozen=True)
class Work:
    """A training and its evaluation, with the right total."""

    task: Task
    bundle: Bundle
    run: Run
    measured: Run
    histories: tuple[History, History]
    total: int


@cache
def work() -> Work:
    folder = Path(mkdtemp(prefix="bonus", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    trained, made = Trained(folder), task()
    job = agents.evaluation_job(trained.run, agents.counting(made, "correct"), interval=4, terms=Terms())
    measured = vgame_train(agents.prepare(job, validate=0), folder / "evaluation")
    histories = tuple(History(run._store, executor(run.bundle)) for run in (trained.run, measured))
    return Work(made, trained.bundle, trained.run, measured, histories, evaluated(measured).totals["correct"])


@cache
def bundle(terms: Terms) -> Bundle:
    """The training with these terms."""
    return replace(work().bundle, terms=terms)


def ordered_bundle(escrow: Any, promised: Any, stored: Bundle) -> Bundle:
    """The same object for the same terms."""
    return bundle(ORDERED(escrow, promised, stored).terms)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the results of a function by its arguments, large ones by identity; the arguments are kept too."""
    known: dict[Any, tuple[Any, Any]] = {}

    def found(*args: Any, **named: Any) -> Any:
        given = (*args, *named.items())
        key = tuple(a if isinstance(a, str | int | float | Terms | tuple | None) else id(a) for a in given)
        if key not in known:
            known[key] = given, function(*args, **named)
        return known[key][1]

    return found


KEPT = {name: kept(getattr(agents, name)) for name in (
    "untrained_evaluation", "_check_names", "counting", "evaluation_job", "prepare"
)}  # fmt: skip


@contextmanager
def installed() -> Iterator[None]:
    """The world has these contracts, every device has the same pace, and computed results are cached."""
    with ExitStack() as stack:
        for module in (branches, endpoint):
            stack.enter_context(patch.object(module, "contracts", contracts))
        stack.enter_context(patch.object(branches, "accounts", accounts))
        stack.enter_context(patch.object(conditions, "_measure", lambda *_: QUICK))
        stack.enter_context(patch.object(agents, "ordered_bundle", ordered_bundle))
        for name, function in KEPT.items():
            stack.enter_context(patch.object(agents, name, function))
        yield


__all__ = ["ETHER", "NAMES", "QUICK", "SELECTORS", "SimEscrow", "bundle", "deployed", "installed", "work"]
