"""The honest players' processes in the world: accounts, machines, and restarts after a kill.

The trainer is vgame's own: `trainer_of` and `play` of vgame.agents.roles, in a process that is started again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from branches import Block
from endpoint import Eth, SimChain, SimGame
from frauds import SETUP
from toy import Lies, ToyMachine
from world import Account, Endless, Killed, Seat, World

import vgame.agents.roles as roles
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.agents.retry import QUIET, Retry
from vgame.chain.pauses import Pauses
from vgame.chain.wallet import Wallet
from vgame.dispute.stakes import Stakes
from vgame.errors import Over, VgameError
from vgame.job.terms import Pace
from vgame.system.progress import Reporter

AGAIN = 30.0  # seconds until a process that ended with an error is started again
LIVES = 60  # starts of a process, at most
BUSY = 500  # requests in one second of the world, eleven times the number of a correct process
PACE = 6  # seconds to compute a segment or a trace for the first time


class Table(ToyMachine):
    """A machine with cached results, which all players of all stories share."""

    state = lru_cache(None)(ToyMachine.state)
    trace = lru_cache(None)(ToyMachine.trace)
    words = lru_cache(None)(ToyMachine.words)
    state_root = lru_cache(None)(ToyMachine.state_root)
    segment = lru_cache(None)(ToyMachine.segment)
    partials = lru_cache(None)(ToyMachine.partials)


class Slow:
    """A machine in a process: each segment and trace takes time when it is first computed."""

    def __init__(self, world: World, table: Table) -> None:
        self.world, self.table, self.warm = world, table, set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def _computed(self, *what: Any) -> None:
        if what not in self.warm:
            self.world.clock.sleep(PACE)
            self.warm.add(what)

    def segment(self, checkpoint: int) -> list[bytes]:
        self._computed("segment", checkpoint)
        return self.table.segment(checkpoint)

    def trace(self, step: int) -> list[bytes]:
        self._computed("trace", step)
        return self.table.trace(step)


@lru_cache(None)
def table(lies: int = -1) -> Table:
    """The right run, or one of the lies."""
    from strangers import LIES

    return Table(SETUP.program, SETUP.seed, SETUP.steps, SETUP.interval, LIES[lies] if lies >= 0 else Lies())


class SimWallet(Wallet):
    """vgame's wallet; the process may be killed at each transaction: before it is sent, or after."""

    def __init__(self, chain: SimChain, account: Account) -> None:
        self.chain, self.account, self.address = chain, account, account.address
        self.pauses = Pauses(chain)
        self.before = None


class Mortal(Eth):
    """A node whose process may be killed at a transaction, and is ended after requests without a pause."""

    second, requests = 0.0, 0

    def asked(self) -> Block:
        if self.second != self.world.now:
            self.second, self.requests = self.world.now, 0
        self.requests += 1
        if self.requests > BUSY:
            raise Endless
        return super().asked()

    def send_raw_transaction(self, raw: bytes) -> bytes:
        world = self.world
        kill = world.on("kill", 5) and world.allows(AGAIN + 10)
        before = kill and world.tape.below(2)
        name = world.honest[world.signed[bytes(raw)].sender]
        if kill:
            world.log(f"{name} is killed {'before' if before else 'after'} it sends")
            world.wait_again(AGAIN)
        if before:
            raise Killed
        digest = super().send_raw_transaction(raw)
        if kill:
            raise Killed
        return digest


class Problems(Reporter):
    """A player's reports, written into the story."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.world, self.name, self.unforeseen = world, name, []

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        self.world.log(f"{self.name} {event}: {text[:200]}")
        if "unforeseen" in text:
            self.unforeseen.append(text)

    def stage(self, text: str) -> None: ...

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None: ...


class Player:
    """A process that is started again until it ends by itself. `life`: one run of the process."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world, self.name = world, name
        self.life: Callable[[Player], None] = lambda player: None
        self.account = Account(world, number)
        world.honest[self.account.address.lower()] = name
        self.reporter = Problems(world, name)
        self.ended = ""
        self.lives = 0

    def sit(self) -> None:
        self.eth = Mortal(self.world)
        self.world.eths.append(self.eth)
        self.world.seats.append(Seat(self.world, self.name, self._body))

    def game(self) -> SimGame:
        """The game object of one life."""
        chain = SimChain(self.world, self.eth)
        return SimGame(chain, SimWallet(chain, self.account))

    def _body(self) -> None:
        while not self.ended:
            self.lives += 1
            try:
                self.life(self)
                self.ended = "done"
            except Killed:
                pass
            except Endless:
                self.reporter.unforeseen.append(f"the {self.name} makes requests without a pause")
                self.ended = "endless"
            except Over as over:
                self.ended = f"over: {over}"
            except VgameError as error:
                self.world.log(f"{self.name} ends: {error}")
            if self.lives >= LIVES:
                self.ended = "given up"
            if not self.ended:
                self.world.clock.sleep(AGAIN)
        self.world.log(f"{self.name} ended: {self.ended[:200]}")


Life = Callable[[Player], None]


def trainer_life(job: bytes) -> Life:
    """`vgame trainer`, over the toy machine."""

    def life(player: Player) -> None:
        world, reporter = player.world, player.reporter
        machine = Slow(world, table())
        computation: Any = SimpleNamespace(
            rehearse=lambda: None,
            refuse_small_disk=lambda *_, **__: None,
            reporter=reporter,
            retry=Retry(reporter, 1.0, bears=VgameError),
            bundle=SimpleNamespace(order=asdict(world.spec)),
            run=lambda _: world.clock.sleep(20),
            history=machine,
            run_root=table().checkpoints[-1],
            lock=lambda: None,
            store=SimpleNamespace(folder=Path("run")),
        )
        trainer = roles.trainer_of(player.game(), job, computation, any_terms=True)
        roles.play(trainer, computation, reporter, 1.0)

    return life


def auditor_life(jobs: list[bytes], folder: Path) -> Life:
    """`vgame auditor --job ...`, over the toy machine; it never ends by itself."""

    def life(player: Player) -> None:
        world, machine, game = player.world, Slow(player.world, table()), player.game()
        computation: Any = SimpleNamespace(
            bundle=SimpleNamespace(order=asdict(world.spec)),
            history=machine,
            history_of=lambda _: machine,
            run_root=table().checkpoints[-1],
            pace=Pace(0.01, 0.01),
            known_pace=Pace(0.01, 0.01),
            log_mismatch=lambda *_: "",
            compute_ahead=lambda *_: False,
            rehearse=lambda: None,
            refuse_small_disk=lambda *_, **__: None,
        )
        stakes = Stakes(game, folder / "stakes.json")
        service = AuditorService(game, computation, player.reporter, 1.0, Limits(jobs=frozenset(jobs)), stakes)
        retry = Retry(player.reporter, 1.0)
        while True:
            with retry:
                if not service.round():
                    game.chain.pause(QUIET)

    return life
