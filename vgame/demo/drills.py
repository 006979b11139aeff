"""Drills of the demonstration: cheats and false accusers as a process, and runs in other rounding modes, to compare
devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vgame.agents.config import AgentConfig, open_game
from vgame.agents.local_run import LocalRun, hello
from vgame.agents.retry import QUIET, Retry
from vgame.attacks.adversaries import ATTACKS, TAMPERED_LOG, CheatingTrainer, FalseAccuser
from vgame.attacks.cheat import Cheat, LogCheat
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.errors import LostRace, VgameError
from vgame.execute.devices import use_device
from vgame.execute.executor import Executor
from vgame.job.bundle import load_bundle
from vgame.system.files import parse_json
from vgame.system.progress import Reporter


def run_adversary(seat: AgentConfig, reporter: Reporter) -> None:
    """Play cheats, one order per line on stdin: {"attack": NAME, "job": HEX, "step": N} or {"accuse": "path" | "idle",
    "job": HEX}.

    Prints `played` when a job has ended (or the accusation has), so a demonstration can give the next order.
    """
    game = open_game(seat)
    with use_device(seat.device) as kind:
        hello(reporter, "adversary", seat.device)
        for line in sys.stdin.buffer:
            how, job, step = _order(line)
            if step is None:
                _accuse(seat, game, kind, job, how, reporter)
            else:
                _cheat(seat, game, kind, job, how, step, reporter)


def _order(line: bytes) -> tuple[str, bytes, int | None]:
    """(name, job, step (None: an accusation)) of an order; VgameError for an invalid line."""
    try:
        order = parse_json(line)
        job = bytes.fromhex(order["job"])
        how, step = (order["accuse"], None) if "accuse" in order else (order["attack"], order["step"])
        known = ("path", "idle") if step is None else (*ATTACKS, TAMPERED_LOG.name)
        if len(job) == 32 and how in known and (step is None or (type(step) is int and step > 0)):
            return how, job, step
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise VgameError(
        f"{str(line.strip())[2:-1]!r:.200} is no order of a drill; a line is expected such as "
        '{"attack": NAME, "job": HEX, "step": N} or {"accuse": "path" or "idle", "job": HEX}; the names are '
        f"{', '.join((*ATTACKS, TAMPERED_LOG.name))}"
    )


def _cheat(seat: AgentConfig, game: Game, kind: str, job: bytes, name: str, step: int, reporter: Reporter) -> None:
    attack, cheat = (TAMPERED_LOG, LogCheat(step)) if name == TAMPERED_LOG.name else (ATTACKS[name], Cheat(name, step))
    computation = LocalRun(seat, kind, reporter, cheat)
    trainer = CheatingTrainer(game, job, computation.history, attack.silent)
    trainer.accept()
    computation.run()
    trainer.claim()
    reporter.emit("claimed", f"{name}: posted its claim", attack=name, run_root=computation.run_root.hex())
    _play(seat, game, reporter, [trainer.step], lambda: game.job(job).phase is Phase.CLAIMED)
    reporter.emit("played", f"{name}: over", attack=name, job=job.hex())


def _accuse(seat: AgentConfig, game: Game, kind: str, job: bytes, how: str, reporter: Reporter) -> None:
    computation = LocalRun(seat, kind, reporter)
    accuser = FalseAccuser(game, job, computation.history, idle=how == "idle")
    _play(seat, game, reporter, [accuser.step], lambda: not accuser.accused)
    reporter.emit("accused", f"accuses the trainer ({how})", how=how, job=job.hex())
    if how != "idle":
        _play(seat, game, reporter, [accuser.step], lambda: game.job(job).open and game.job(job).phase is Phase.CLAIMED)
    reporter.emit("played", f"accusation {how}: over", how=how, job=job.hex())


def _play(
    seat: AgentConfig,
    game: Game,
    reporter: Reporter,
    players: Sequence[Callable[[], bool]],
    going: Callable[[], object],
) -> None:
    """Make moves until the job ends; a move that lost a race is repeated if it is still due."""
    retry = Retry(reporter, seat.poll, bears=LostRace)
    while going():
        with retry:
            if not sum(player() for player in players):
                game.chain.pause(QUIET * seat.poll)


def run_roots(bundle_folder: Path, mode: str, device: str, reporter: Reporter) -> None:
    """Report the state root after every step in any rounding mode, an interval at a time, to compare two devices."""
    with use_device(device) as kind:
        bundle = load_bundle(bundle_folder)
        executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, mode, kind)
        state, roots = executor.initial(bundle.state), []
        for step in range(1, bundle.steps + 1):
            state = executor.step(step, state).state
            roots.append(tensors_root(Kind.STATE, state).hex())
            reporter.progress(f"training in mode {mode}", step, bundle.steps)
            if step % bundle.interval == 0 or step == bundle.steps:
                reporter.emit("roots", mode=mode, device=device, roots=roots)
                roots = []
