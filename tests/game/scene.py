"""A scene: one game over the toy machine on the fast chain, jobs in it, and the real agents playing them.

Every transaction is followed by `Ghost.check`, so each test of a game is also a test of I1..I6.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from deployed import compile_cached
from eth_abi import encode
from ghost import Ghost
from revm_chain import PayeeGame, RevmChain, RevmGame
from revm_node import RevmNode
from toy import Kind, Lies, Operator, Program, State, ToyMachine

from vgame.chain.connection import Chain
from vgame.chain.embedded import serve
from vgame.chain.game import Game
from vgame.chain.records import CAUSES, Dispute, Job, JobSpec, Phase, Status
from vgame.chain.wallet import Wallet, deploy_game
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer

CONTRACTS = Path(__file__).resolve().parents[1] / "contracts"
ETHER = 10**18
NAME = b"a toy job".ljust(32, b"\0")

#: Six operators: state 0 and 1 are updated, state 2 is unchanged, operator 3 is a long sum.
USUAL = Program(
    operators=(
        Operator(300),
        Operator(300, Kind.CARRY, finite=True, operand=0),
        Operator(129, Kind.CHAIN, operand=1),
        Operator(5, Kind.SUM, operand=2, blocks=3),
        Operator(1, Kind.CHAIN, finite=True, operand=3),
        Operator(128, Kind.CARRY, finite=True, operand=1),
    ),
    states=(State(300, 1), State(128, 5), State(200)),
)


#: Every kind of operator becomes state, each tree has padding, and a tensor has a padding subtree of two leaves.
WIDE = Program(
    operators=(
        Operator(600),
        Operator(300, Kind.CARRY, finite=True, operand=1),
        Operator(129, Kind.CHAIN, operand=1),
        Operator(5, Kind.SUM, operand=2, blocks=3),
        Operator(1, Kind.CHAIN, finite=True, operand=3),
    ),
    states=(State(600, 0), State(300, 1), State(129, 2), State(5, 3), State(1, 4), State(200)),
)


@dataclass(frozen=True)
class Setup:
    """A toy job: its computation and its terms."""

    program: Program = USUAL
    steps: int = 7
    interval: int = 3
    depth: int = 2
    seed: int = 11
    terms: dict[str, int] = field(default_factory=dict)

    def machine(self, lies: Lies | None = None) -> ToyMachine:
        return ToyMachine(self.program, self.seed, self.steps, self.interval, lies)

    @cached_property
    def honest(self) -> ToyMachine:
        return self.machine()

    @cached_property
    def spec(self) -> JobSpec:
        """Amounts are odd, so that every half is rounded."""
        spec = JobSpec(
            program_root=self.program.root,
            data_root=b"\x01" * 32,
            initial_root=self.honest.state_root(0),
            scalar_root=b"\x02" * 32,
            seed=self.seed,
            steps=self.steps,
            interval=self.interval,
            depth=self.depth,
            mode=0,
            reward=ETHER + 1,
            diverged_pay=ETHER // 3,
            trainer_bond=2 * ETHER + 1,
            auditor_bond=ETHER // 5 + 1,
            accept_window=1000,
            claim_window=2000,
            challenge_window=3000,
            trainer_budget=400,
            auditor_budget=300,
            slot=60,
        )
        return replace(spec, **self.terms)


def toy_contracts() -> dict[str, dict[str, Any]]:
    return compile_cached(CONTRACTS / "ToyReferee.sol")


def deploy_code(chain: Chain, code: str) -> str:
    """Deploy creation code from the node's first account."""
    tx = {"from": chain.web3.eth.accounts[0], "data": "0x" + code, "gas": 25_000_000}
    return str(chain.wait(chain.web3.eth.send_transaction(tx))["contractAddress"])


class Scene:
    """A chain with a game on it."""

    def __init__(self, chain: Chain, address: str, wallet: Callable[[], Wallet], game: type[Game] = Game) -> None:
        self.chain, self.address, self.wallet, self.make_game = chain, address, wallet, game
        self.nonce = 0

    def game(self, wallet: Wallet | None = None) -> Game:
        return self.make_game(self.chain, self.address, wallet or self.wallet())

    def post(self, setup: Setup, wallet: Wallet | None = None) -> Play:
        """Order a job."""
        self.nonce += 1
        game = self.game(wallet)
        order = (astuple(setup.spec), self.nonce, NAME, setup.program.header)
        game.send("createJob", *order, value=setup.spec.reward)
        return Play(self, setup, game.job_id(setup.spec, game.wallet.address, self.nonce), game)

    def claimed(
        self, setup: Setup, lies: Lies | ToyMachine | None = None, cls: type[Trainer] = Trainer, **options: Any
    ) -> Play:
        """A job whose trainer has posted its claim."""
        play = self.post(setup)
        play.trainer = play.new_trainer(lies, cls, **options)
        play.trainer.accept()
        play.trainer.claim()
        return play


@dataclass(frozen=True)
class Call:
    """A transaction that a player is about to send."""

    name: str
    args: tuple[Any, ...]
    value: int = 0

    def but(self, position: int, value: Any) -> Call:
        """The same with another argument."""
        args = list(self.args)
        args[position] = value
        return replace(self, args=tuple(args))

    def send(self, game: Game) -> Any:
        return game.send(self.name, *self.args, value=self.value)


class Sending(Exception):
    """Instead of sending."""


def due(player: Player) -> Call | None:
    """A player's next call; None if it would wait."""

    def caught(name: str, *args: Any, value: int = 0) -> None:
        raise Sending(Call(name, args, value))

    before = vars(player.game).copy()
    player.game.send = caught
    try:
        player.step()
    except Sending as sending:
        return sending.args[0]
    finally:
        vars(player.game).pop("send")
        vars(player.game).update(before)
    return None


class Play:
    """One job and its players."""

    def __init__(self, scene: Scene, setup: Setup, job: bytes, client: Game) -> None:
        self.scene, self.setup, self.id, self.client = scene, setup, job, client
        self.trainer: Trainer | None = None

    def machine(self, lies: Lies | ToyMachine | None) -> ToyMachine:
        return lies if isinstance(lies, ToyMachine) else self.setup.machine(lies)

    def new_trainer(
        self, lies: Lies | ToyMachine | None = None, cls: type[Trainer] = Trainer, **options: Any
    ) -> Trainer:
        return cls(self.scene.game(), self.id, self.machine(lies), **options)

    def auditor(self, lies: Lies | ToyMachine | None = None, cls: type[Auditor] = Auditor, **options: Any) -> Auditor:
        return cls(self.scene.game(), self.id, self.machine(lies), **options)

    # ---- views ----

    @property
    def job(self) -> Job:
        return self.client.job(self.id)

    @property
    def phase(self) -> Phase:
        return self.job.phase

    def dispute(self, number: int = 0) -> Dispute:
        return self.client.dispute(self.id, number)

    def disputes(self) -> list[Dispute]:
        return [self.dispute(n) for n in range(self.job.disputes)]

    def events(self, *names: str) -> list[tuple[str, dict[str, Any]]]:
        return [(e.name, e.args) for e in self.client.events(job=self.id) if not names or e.name in names]

    @property
    def verdicts(self) -> list[tuple[str, int, str]]:
        """(Convicted or Dismissed, dispute, cause) in order."""
        return [(name, a["dispute"], CAUSES[a["cause"]]) for name, a in self.events("Convicted", "Dismissed")]

    def paid(self, player: Player) -> int:
        """Payments and credits of a player."""
        drawn = [e.args["amount"] for e in self.client.events("Withdrawn") if e.args["account"] == player.address]
        return sum(drawn) + self.client.credits(player.address)

    # ---- time ----

    def advance(self, seconds: int) -> None:
        assert self.scene.chain.advance(seconds)

    def pass_window(self) -> None:
        """Advance to the first second in which the claim can be final."""
        job = self.job
        self.advance(max(1, job.since + job.spec.challenge_window + 1 - self.scene.chain.now()))

    # ---- playing ----

    def run(self, *players: Any, rounds: int = 400) -> None:
        """Let the players move in turn until none of them sends anything."""
        for _ in range(rounds):
            before = self.scene.chain.web3.eth.get_block("latest")["number"]
            for player in players:
                player.step()
            if self.scene.chain.web3.eth.get_block("latest")["number"] == before:
                return
        raise AssertionError(f"still moving after {rounds} rounds")

    def run_until(self, name: str, *players: Player) -> Call:
        """Let the players move until the next call is `name`; returns that call."""
        for _ in range(100):
            for player in players:
                call = due(player)
                if call and call.name == name:
                    return call
                if call:
                    call.send(player.game)
        raise AssertionError(f"nobody ever sends {name}")

    def run_to_end(self, *players: Any) -> Phase:
        """Run, let the clocks of silent players run out, pass the windows; returns the last phase."""
        self.run(*players)
        while self.phase is Phase.CLAIMED:
            self.wait_for_clocks()
            self.run(*players)
        return self.phase

    def wait_for_clocks(self) -> None:
        """Advance to the second after the next deadline, or after the window if no dispute is open."""
        open_ = [n for n, d in enumerate(self.disputes()) if d.status is Status.OPEN]
        if not open_:
            return self.pass_window()
        deadlines = [self.client.turn(self.id, n)[1] for n in open_]
        self.advance(max(1, min(deadlines) + 1 - self.scene.chain.now()))


def fast_scene() -> Scene:
    """A scene on the Rust EVM, watched by a ghost."""
    chain = RevmChain(RevmNode())
    referee = deploy_code(chain, toy_contracts()["ToyReferee"]["bytecode"])
    return Scene(chain, deploy_game(chain.wallet(), referee), chain.wallet, RevmGame)


@contextmanager
def embedded_chain() -> Iterator[Chain]:
    """The embedded chain, over HTTP, stopped at the end."""
    server = serve()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Chain(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()


def deployed(chain: Chain) -> Scene:
    """The game over the toy machine on any development node."""

    def wallet() -> Wallet:
        new = Wallet(chain)
        chain.fund(new.address, 100 * ETHER)
        return new

    referee = deploy_code(chain, toy_contracts()["ToyReferee"]["bytecode"])
    return Scene(chain, deploy_game(wallet(), referee), wallet)


PAYEE_MODES = ("TAKE", "REFUSE", "REASON", "BURN", "LOUD", "REENTER")


def payee_game(scene: Scene, mode: str, again: bytes = b"") -> PayeeGame:
    """A contract account with a given behaviour on payment (tests/contracts/Payee.sol)."""
    code = compile_cached(CONTRACTS / "Payee.sol")["Payee"]["bytecode"]
    arguments = encode(["uint8", "bytes"], [PAYEE_MODES.index(mode), again]).hex()
    return PayeeGame(scene.chain, scene.address, deploy_code(scene.chain, code + arguments))


def watch(scene: Scene) -> Ghost:
    """Check the ghost after every transaction from now on."""
    node = scene.chain.node
    ghost = Ghost(node, scene.address, seen=len(node.receipts))
    send = type(node).send

    def watched(tx: dict[str, Any]) -> str:
        digest = send(node, tx)
        ghost.check()
        return digest

    node.send = watched
    node.methods["eth_sendTransaction"] = watched
    return ghost


__all__ = [
    "ETHER",
    "NAME",
    "USUAL",
    "WIDE",
    "Call",
    "Play",
    "Scene",
    "Setup",
    "deployed",
    "due",
    "embedded_chain",
    "fast_scene",
    "payee_game",
    "watch",
]
