"""Roles as processes: each connects to a chain, computes on its device, and plays until there is nothing left to do.

All decisions of a role follow from the chain and its store; a role that was killed continues when it is restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from vgame.agents.config import AgentConfig, open_game
from vgame.agents.delivery import delivered_folder, seller_of
from vgame.agents.due import tell_deadline
from vgame.agents.local_run import LocalRun, hello
from vgame.agents.order import find_order
from vgame.agents.retry import QUIET, QUIET_ROUND, Retry
from vgame.chain.anywhere import anywhere
from vgame.chain.game import Game
from vgame.chain.records import ENDED, STANDING, JobSpec, Phase
from vgame.dispute.delegate import Delegate
from vgame.dispute.trainer import Trainer
from vgame.execute.devices import use_device
from vgame.job.bundle import load_bundle
from vgame.ranks.group import is_shared, joined
from vgame.runs.ahead import Ahead
from vgame.runs.shared import led
from vgame.system.progress import Reporter


def run_trainer(seat: AgentConfig, job: bytes, reporter: Reporter, any_terms: bool = False) -> Phase:
    """Accept a job, train it, claim, defend, finalize, withdraw; returns the phase in which the job ended."""
    with use_device(seat.device) as kind, ExitStack() as ranks:
        group = ranks.enter_context(joined()) if is_shared() else None
        game = open_game(seat, reporter)
        hello(reporter, "trainer", seat.device)
        computation = LocalRun(seat, kind, reporter)
        if group:  # all ranks share the steps of the training; this rank alone plays the disputes
            computation.leader = ranks.enter_context(led(group, computation.bundle, kind))
        trainer = trainer_of(game, job, computation, any_terms)
        ranks.close()
        with executed_ahead(trainer, computation, seat):
            return play(trainer, computation, reporter, seat.poll)


def follow_trainer(seat: AgentConfig) -> None:
    """Share the steps of the training with the trainer (rank 0), until the run is computed. Uses no chain."""
    with use_device(seat.device) as kind, joined() as group, led(group, load_bundle(seat.bundle), kind):
        pass


def trainer_of(game: Game, job: bytes, computation: LocalRun, any_terms: bool = False) -> Trainer:
    """The trainer of a job that it has accepted and computed."""
    find_order(game, computation.bundle, job)
    trainer = Trainer(game, job, computation.history)
    rehearse = cache(computation.rehearse)
    refuse_small_disk = cache(lambda: computation.refuse_small_disk(trainer.seller))

    def check_prices() -> None:
        refuse_small_disk()
        if not any_terms:
            computation.refuse_bad_terms(sum(game.chain.fees()))

    def check_terms() -> None:
        check_prices()
        rehearse()

    def begins() -> bool:
        """Is there an order to accept? Raises an error if disk space, money or terms do not suffice."""
        if open_order := (order := trainer.look()).phase is Phase.CREATED:
            check_prices()
            trainer.check_funds(order)
        return open_order

    def accept() -> None:
        game.chain.turn()
        trainer.accept()

    trainer.check_terms = check_terms
    trainer.terms = JobSpec(**computation.bundle.order)
    if trainer.terms.confirm_window:
        trainer.seller = seller_of(computation.bundle, computation.history, computation.store.folder.parent, job)
    computation.lock()
    if anywhere(game.chain, begins):  # fail before a stake if disk, memory or money is too low
        rehearse()
    Retry(computation.reporter, computation.retry.poll).insist(accept)  # retries all errors of an endpoint
    computation.reporter.emit("accepted", f"accepted job {job.hex()[:16]}", job=job.hex())
    computation.run(trainer.hurry)
    return trainer


def run_delegate(seat: AgentConfig, job: bytes, reporter: Reporter) -> Phase:
    """Compute a job, then answer for its trainer, which has registered this account; returns the phase in which the job
    ended."""
    game = open_game(seat, reporter)
    with use_device(seat.device) as kind:
        hello(reporter, "trainer's delegate", seat.device)
        computation = LocalRun(seat, kind, reporter)
        find_order(game, computation.bundle, job)
        delegate = Delegate(game, job, computation.history)
        delegate.terms = JobSpec(**computation.bundle.order)
        store = computation.store.folder.parent
        if delegate.terms.confirm_window and (delivered_folder(store, job) / "key").exists():
            delegate.seller = seller_of(computation.bundle, computation.history, store, job)
        computation.lock()
        computation.refuse_small_disk(delegate.seller, waits=True)
        computation.run(delegate.hurry)
        with executed_ahead(delegate, computation, seat):
            return play(delegate, computation, reporter, seat.poll)


@contextmanager
def executed_ahead(trainer: Trainer, computation: LocalRun, seat: AgentConfig) -> Iterator[None]:
    """With several workers, the other workers execute contested segments while the first one answers."""
    if seat.workers == 1:
        yield
        return
    others = Ahead(computation.history, seat.device, seat.workers - 1)
    trainer.prefetch_segments, computation.history.prefetched = others.want, others.segment
    try:
        yield
    finally:
        others.end()


def play(trainer: Trainer, computation: LocalRun, reporter: Reporter, poll: float) -> Phase:
    """Claim the computed run, then make moves until the end of the job is final and nothing is left to do."""
    retry, claimed, waits = Retry(reporter, poll, hurry=trainer.hurry), False, False
    while True:
        with retry:
            acted, state = trainer.step(), trainer.look()
            phase = state.phase
            tell_deadline(trainer.game, trainer.id, "trainer", state.trainer, reporter)
            if not claimed and phase in {Phase.CLAIMED, Phase.CONVICTED, *STANDING}:
                claimed = True
                text, root = "posted its claim" if trainer.windows else "sees the claim", computation.run_root.hex()
                reporter.emit("claimed", f"{text}, run root {root}, run in {computation.store.folder}", run_root=root)
            over = not acted and phase in {Phase.CONVICTED, *ENDED}
            if trainer.has_ended(over):
                name, paid = phase.name.lower(), trainer.withdrawn
                reporter.emit("ended", f"the job ended: {name}{_withdrawn(paid)}", phase=name, withdrawn=paid)
                return phase
            if over and not waits:
                waits = True
                reporter.stage(f"the job is {phase.name.lower()}; waits until the block of its end is final")
            if not acted:
                trainer.game.chain.pause(QUIET * poll, QUIET_ROUND if over else 0.0)


def _withdrawn(wei: int) -> str:
    return f", {wei / 10**18:.6f} ether withdrawn" if wei else ""
