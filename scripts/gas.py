"""Gas of every call of disputes over the demonstration's job, as real transactions on the embedded chain, played by the
real agents.

In: vgame/tasks/digits.toml, the checked-in contracts. Out: docs/gas.json; `--check` compares with it, within MARGIN,
and writes nothing. Only two intervals of the job are computed: the fraud is in the second, and the state roots of later
checkpoints are arbitrary words.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from web3 import Web3

import vgame
from vgame.agents.client import post_job
from vgame.agents.delivery import source_record
from vgame.attacks.computation import CheatingHistory, Patch, PatchedExecutor
from vgame.attacks.exchange import CHEATS, HONEST, Exchange
from vgame.chain.abi import abi_type, artifact, full_abi
from vgame.chain.connection import Chain
from vgame.chain.embedded import serve
from vgame.chain.escrow import NAME as ESCROW_NAME
from vgame.chain.game import Game
from vgame.chain.records import JobSpec, Phase
from vgame.chain.wallet import Wallet, deploy_game
from vgame.commit.tensor import to_words
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.factory import make_task
from vgame.job.file import read_job_file
from vgame.program.operators import Contract, Map
from vgame.runs.history import History
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.runs.training import intervals, train

RECORD = Path(__file__).resolve().parent.parent / "docs" / "gas.json"
MARGIN = 0.02
ETHER = 10**18
STEP = 20  # step of the fraud: the last of the second interval

#: Fraud in one word of an operator: title -> (operator, element).
FRAUDS = {"a copy with the most elements": (66, -1), "a product of 144 terms": (8, 0), "a sum of 4096 terms": (70, 0)}
#: The frauds whose leaf is also proven in bfloat16.
SUMS = ("a product of 144 terms", "a sum of 4096 terms")


SELECTORS = {
    bytes(Web3.keccak(text=f"{e['name']}({','.join(abi_type(i) for i in e['inputs'])})")[:4]): e["name"]
    for e in full_abi()
    if e["type"] == "function"
}


class Call(NamedTuple):
    """A transaction: its function, its gas, the bytes of its calldata."""

    name: str
    gas: int
    size: int


def total(calls: list[Call]) -> dict[str, int]:
    return {"gas": sum(c.gas for c in calls), "transactions": len(calls), "calldata": sum(c.size for c in calls)}


class FirstIntervals:
    """A history with arbitrary checkpoints after the second one."""

    def __init__(self, history: History) -> None:
        self.history = history
        first, second = history.segment(1)[-1], history.segment(2)[-1]
        count = history.bundle.checkpoints
        self.checkpoints = [first, second, *(hashlib.sha256(second + bytes([c])).digest() for c in range(2, count))]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.history, name)


class Stage:
    """The embedded chain with the game, one bundle, and players with money."""

    def __init__(self, chain: Chain, bundle: Bundle, folder: Path) -> None:
        self.chain, self.bundle, self.folder = chain, bundle, folder
        wallet, first = self.wallet(), chain.web3.eth.block_number + 1
        self.address = deploy_game(wallet)
        self.deployment = total(self.calls(first, None))
        self.nonce = 0
        self.honest = FirstIntervals(History(self.store("honest"), self.executor()))

    def executor(self) -> Executor:
        b = self.bundle
        return Executor(b.program, b.data, b.scalars, b.seed, b.mode)

    def store(self, name: str) -> Store:
        """A store with the first checkpoint."""
        store = Store(self.folder / name, self.bundle)
        store.lock()
        executor = self.executor()
        store.commit(*next(intervals(self.bundle, executor, executor.initial(self.bundle.state), 1)))
        return store

    def wallet(self) -> Wallet:
        wallet = Wallet(self.chain)
        self.chain.fund(wallet.address, 10 * ETHER)
        return wallet

    def game(self) -> Game:
        return Game(self.chain, self.address, self.wallet())

    def post(self) -> bytes:
        game, spec, self.nonce = self.game(), JobSpec(**self.bundle.order), self.nonce + 1
        game.send("createJob", astuple(spec), self.nonce, bytes(32), self.bundle.program.header, value=spec.reward)
        return game.job_id(spec, game.wallet.address, self.nonce)

    def cheat(self, operator: int, element: int) -> FirstIntervals:
        """A machine with one wrong word."""

        def output(s: int, o: int, words: torch.Tensor, before: Any) -> torch.Tensor:
            if (s, o) == (STEP, operator):
                words = words.clone()
                words[element] = 3.0
            return words

        return FirstIntervals(
            CheatingHistory(self.store(f"cheat-{operator}"), PatchedExecutor(self.executor(), Patch(output=output)))
        )

    def final(self, job: bytes, run: vgame.Run, game: Game | None = None) -> Game:
        """Make a job with this run final, as a new account or that of `game`; returns its trainer's game."""
        b = run.bundle
        machine = History(run._store, Executor(b.program, b.data, b.scalars, b.seed, b.mode))
        trainer = Trainer(game or self.game(), job, machine)
        trainer.accept()
        trainer.claim()
        self.chain.advance(b.terms.challenge_window + 1)
        trainer.game.send("finalize", job)
        return trainer.game

    def calls(self, first: int, address: str | None, names: dict[bytes, str] = SELECTORS) -> list[Call]:
        """All transactions to a contract, or all that create contracts (None), since block `first`."""
        web3, found = self.chain.web3, []
        for number in range(first, web3.eth.block_number + 1):
            for tx in web3.eth.get_block(number, True)["transactions"]:
                if (tx.get("to") or None) == address:
                    used, data = web3.eth.get_transaction_receipt(tx["hash"])["gasUsed"], bytes(tx["input"])
                    found.append(Call(names[data[:4]] if address else "", used, len(data)))
        return found

    def play(self, machine: Any, auditor: bool) -> list[Call]:
        """One job from its order to the last withdrawal."""
        first = self.chain.web3.eth.block_number + 1
        job = self.post()
        trainer = Trainer(self.game(), job, machine)
        trainer.accept()
        trainer.claim()
        players = [trainer, *([Auditor(self.game(), job, self.honest)] if auditor else [])]
        while True:
            before = self.chain.web3.eth.block_number
            for player in players:
                player.step()
            if self.chain.web3.eth.block_number > before:
                continue
            if trainer.game.job(job).phase is Phase.CLAIMED and not auditor:
                self.chain.advance(self.bundle.terms.challenge_window + 1)
            else:
                return self.calls(first, self.address)


# ---- delivery ----

WINDOWS = {"confirm_window": 20_000, "key_window": 8_000, "complaint_window": 8_000}
#: Attacks on a delivery that together make each of its calls.
SALES = ("honest-exchange", "one-wrong-leaf", "wrong-true-hash", "refused-chunk", "answers-on-chain", "declines")


def deliveries(chain: Chain, folder: Path) -> dict[str, dict[str, int]]:
    """Least and most gas of the calls of deliveries of a short job's state."""
    job = read_job_file(Path(str(files("vgame.tasks") / "digits.toml")))
    bundle = prepare(job.model_copy(update={"steps": 2, "interval": 1, "terms": job.terms.model_copy(update=WINDOWS)}))
    s = Stage(chain, bundle, folder)
    store = Store(folder / "sold", bundle)
    train(store, s.executor(), lambda step, loss: None)
    history = History(store, s.executor())
    words = [to_words(t) for t in history.state_tensors(bundle.steps)]
    first = chain.web3.eth.block_number + 1
    for name in SALES:
        client, spec, s.nonce = s.game(), JobSpec(**bundle.order), s.nonce + 1
        client.send("createJob", astuple(spec), s.nonce, bytes(32), bundle.program.header, value=spec.reward)
        identity = client.job_id(spec, client.wallet.address, s.nonce)
        record = partial(source_record, bundle)
        sale = Exchange(CHEATS.get(name, HONEST), client, s.game(), history, identity, words, folder / name, record)
        sale.claim()
        chain.advance(bundle.terms.challenge_window + 1)
        sale.play()
    return ranges([call for call in s.calls(first, s.address) if call.name in DELIVERY])


# ---- a bonus by accuracy ----

ESCROW = {
    bytes(Web3.keccak(text=f"{e['name']}({','.join(abi_type(i) for i in e['inputs'])})")[:4]): e["name"]
    for e in artifact(ESCROW_NAME)["abi"]
    if e["type"] == "function"
}


def bonuses(chain: Chain, folder: Path) -> dict[str, dict[str, int]]:
    """Least and most gas of the calls of two bonuses for a short job: one is paid, one returned."""
    job = read_job_file(Path(str(files("vgame.tasks") / "digits.toml")))
    bundle, task = prepare(job.model_copy(update={"steps": 2, "interval": 1})), make_task(job)
    s = Stage(chain, bundle, folder)
    run = vgame.train(bundle, folder / "trained")
    training, client = s.post(), s.game()
    escrow = vgame.Escrow.deploy(client)
    first = chain.web3.eth.block_number + 1
    made = [escrow.promise(training, bundle, task, "correct", least=0, amount=ETHER, nonce=n) for n in (0, 1)]
    trainer = s.final(training, run)
    for bonus in made:
        escrow.send("start", bonus)
    measured = escrow.evaluation(made[0], run, task)
    evaluation = vgame.train(measured, folder / "evaluation")
    ordered = post_job(client, measured, 0)
    s.final(ordered, evaluation, trainer)
    escrow.pay(made[0], ordered, run, evaluation)
    chain.advance(escrow.bonus(made[1]).window + 1)
    for game in (trainer, client):
        vgame.Escrow(game, escrow.address).close(made[0] if game is trainer else made[1])
    return ranges(s.calls(first, escrow.address, ESCROW))


def ranges(calls: list[Call]) -> dict[str, dict[str, int]]:
    table: dict[str, list[int]] = {}
    for call in calls:
        table.setdefault(call.name, []).append(call.gas)
    return {name: {"least": min(gas), "most": max(gas)} for name, gas in table.items()}


@contextmanager
def stage() -> Iterator[Stage]:
    """The stage of the measurement."""
    bundle = prepare(read_job_file(Path(str(files("vgame.tasks") / "digits.toml"))))
    server = serve()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        yield Stage(Chain(f"http://127.0.0.1:{server.server_port}"), bundle, Path(folder))
    server.shutdown()


def in_bfloat16(bundle: Bundle) -> Bundle:
    """The same job with every binary32 output of a map or a contraction in bfloat16."""
    program = bundle.program
    operators = (
        replace(o, bfloat16=True) if isinstance(o, Map | Contract) and not o.integer else o for o in program.operators
    )
    return replace(bundle, program=replace(program, operators=tuple(operators)))


def leaf(calls: list[Call]) -> int:
    """Gas of the proof of an element, or of one block of a sum."""
    (gas,) = (call.gas for call in calls if call.name == "prove")
    return gas


#: The calls of IDelivery.
DELIVERY = {
    "postClaim",
    "raise",
    "defer",
    "confirm",
    "decline",
    "request",
    "answer",
    "refused",
    "revealKey",
    "badNode",
    "badLeaf",
    "closeDelivery",
}
#: Calls outside disputes.
AROUND = {"acceptJob", "createJob", "postClaim", "withdraw", "finalize", "refund"}


def measure() -> dict[str, Any]:
    """Least and most gas of each function, and the main sums."""
    with stage() as s:
        final = s.play(s.honest, auditor=False)
        disputes = {title: s.play(s.cheat(*where), auditor=True) for title, where in FRAUDS.items()}
        sold = deliveries(s.chain, s.folder / "sales")
        promised = bonuses(s.chain, s.folder / "bonuses")
        narrow = Stage(s.chain, in_bfloat16(s.bundle), s.folder / "bfloat16")
        leaves = {title: leaf(narrow.play(narrow.cheat(*FRAUDS[title]), auditor=True)) for title in SUMS}
    moves = {title: [call for call in calls if call.name not in AROUND] for title, calls in disputes.items()}
    return {
        "calls": ranges([*final, *(call for calls in disputes.values() for call in calls)]),
        "bonus": promised,
        "delivery": sold,
        "leaves": {title: {"binary32": leaf(disputes[title]), "bfloat16": leaves[title]} for title in SUMS},
        "disputes": {title: total(calls) for title, calls in moves.items()},
        "deployment": s.deployment,
        "undisputed": total(final),
    }


def figures(table: Any, path: str = "") -> dict[str, int]:
    """All numbers of a table by their path."""
    if isinstance(table, int):
        return {path: table}
    return {p: n for key, value in table.items() for p, n in figures(value, f"{path}/{key}").items()}


def differences(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """Every new or removed figure, and every difference above the margin."""
    a, b = figures(new), figures(old)
    off = [p for p in sorted(a.keys() | b.keys()) if p not in a or p not in b or abs(a[p] - b[p]) > MARGIN * b[p]]
    return [f"{p}: {b.get(p)} recorded, {a.get(p)} measured" for p in off]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check, new = parser.parse_args().check, measure()
    if not check:
        RECORD.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
        return 0
    wrong = differences(new, json.loads(RECORD.read_text()))
    print("\n".join(wrong) or "the gas is as recorded")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
