"""The users of a bonus: the trainer and the payer, who call vgame's commands as docs/bonus.md says.

In: a story of a bonus. Out: the lives of its honest players.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from accuracy import SimEscrow, work
from branches import BLOCK, START
from claimants import AMOUNT
from endpoint import SimGame
from seats import Life, Player, Slow
from world import FINAL, Killed, World

import vgame.agents.roles as roles
from vgame import Bundle
from vgame.agents.client import close_job, post_job
from vgame.agents.retry import Retry
from vgame.chain.game import Game
from vgame.chain.records import ENDED, JobSpec, Phase
from vgame.errors import Abstain, ChainError, ContractError, NotYet, VgameError

T = TypeVar("T")
PATIENCE = 6  # refusals of a command, 30 seconds apart, after which a user gives up
SETTLED, OVER = {"paid", "returned"}, {Phase.CONVICTED, *ENDED}
POOR, IDLE, GONE = "send it some ether", "the contract owes", "there is no bonus"  # in errors


def play_all_blocks(world: World) -> None:
    """A player may wait for a final block, so no block is skipped for a while."""
    world.unsettled = max(world.unsettled, world.now + 150)


class User(Player):
    """A user that calls vgame's commands with one account. `notes`: data on its disk, which outlive a killed
    process."""

    def __init__(self, world: World, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.notes: dict[Any, Any] = {}

    def _body(self) -> None:
        try:
            super()._body()
        except Exception:  # a bug: a command may end only with an error of vgame
            self.reporter.unforeseen.append(f"the {self.name}: {traceback.format_exc(limit=-3)}")
            self.ended = "unforeseen"

    def may_die(self) -> None:
        """The process may be killed between two commands."""
        if self.world.on("kill", 2) and self.world.allows(40):
            self.world.log(f"the {self.name} is killed between two commands")
            raise Killed

    def insist(self, command: Callable[[], T], but: tuple[str, ...] = ()) -> T:
        """Repeat a command until it succeeds, or the contract refuses it with one of the errors `but`, or it has
        refused or asked for money PATIENCE times, or the bonus has been missing for FINAL seconds."""
        refused = gone = 0
        while True:
            self.may_die()
            try:
                return command()
            except VgameError as problem:
                refused += isinstance(problem, Abstain) or POOR in str(problem)
                gone = gone + 1 if GONE in str(problem) else 0
                final = refused >= PATIENCE or 30 * gone > FINAL
                if final or (isinstance(problem, ContractError) and problem.name in but):
                    raise
                self.world.log(f"{self.name}: {type(problem).__name__} {str(problem)[:150]}")
            play_all_blocks(self.world)
            self.world.clock.sleep(30)

    def command(self, name: str, of: Callable[[SimGame, SimEscrow], T], but: tuple[str, ...] = ()) -> T:
        """Run a command in a process of its own."""

        def process() -> T:
            game = self.game()
            return of(game, SimEscrow(game))

        found = self.insist(process, but)
        self.world.log(f"{self.name} {name}: {found if isinstance(found, str | int) else 'done'}")
        return found


def trainer_life(story: Any) -> Life:
    """The order of docs/bonus.md: check, train, close, prepare, order, evaluate, pay, close."""

    def life(player: User) -> None:
        world, notes, job = player.world, player.notes, story.jobs[0]
        while story.offered is None:
            if world.now > START + story.spec.accept_window:
                return
            play_all_blocks(world)
            world.clock.sleep(BLOCK)
        identity, made = story.offered, work()
        if "checked" not in notes:
            try:
                notes["checked"] = player.command(
                    "checks", lambda _, e: e.check(identity, story.training, made.task, job=job)
                )
            except Abstain as refusal:
                notes["refused"] = str(refusal)
                return
        serve(player, job, story.training, 0)
        while not story.hasty and player.command("closes", lambda _, e: e.close(identity)) == "waiting":
            world.clock.sleep(60)
        if made.total < story.least and not story.stubborn:
            return
        while not earned(player, story, identity):
            world.log("the trainer evaluates again")

    return life


def earned(player: User, story: Any, identity: bytes) -> bool:
    """Order, compute and show one evaluation; False if it does not count because it was claimed too early."""
    made, nonce = work(), player.notes.setdefault("nonce", 0)

    def prepared(_: Any, escrow: SimEscrow) -> Bundle:
        try:
            return escrow.evaluation(identity, made.run, made.task, validate=0)
        except NotYet:
            escrow.close(identity)
            raise

    try:
        measured = player.command("prepares", prepared)
    except Abstain as refusal:
        player.notes["unpaid"] = str(refusal)
        return True
    spec = JobSpec(**measured.order)
    job = story.view.job_id(spec, player.account.address, nonce)
    if job not in story.strangers.jobs:
        story.strangers.jobs.append(job)
    player.command("orders", lambda game, _: ordered(game, measured, job, nonce))
    serve(player, job, measured, 1)
    if story.lazy and "late" not in player.notes:
        player.notes["late"] = True
        player.world.clock.sleep(story.strangers.held().window)
    return collected(player, identity, job)


def collected(player: User, identity: bytes, evaluation: bytes) -> bool:
    """`vgame bonus close`, with `pay` until the bonus is settled; False if the evaluation does not count."""

    def pays(_: Any, escrow: SimEscrow) -> int:
        return escrow.pay(identity, evaluation, work().run, work().measured)

    since = None
    while since is None or player.world.now < since + FINAL:
        if player.command("closes", lambda _, e: e.close(identity)) in SETTLED:
            since = since or player.world.now
        else:
            since = None
            try:
                player.command("pays", pays, ("MarkMissed", "NoBonus"))
            except Abstain:
                player.notes["nonce"] = player.notes["nonce"] + 1
                return False
            except ContractError as refusal:
                if refusal.name == "MarkMissed":
                    return True
        player.world.clock.sleep(10 * BLOCK)
    return True


def ordered(game: Game, measured: Bundle, job: bytes, nonce: int) -> str:
    """`vgame job post`, unless an earlier process has posted the job."""
    if game.job(job).phase is Phase.NONE:
        post_job(game, measured, nonce)
    return job.hex()[:8]


def serve(player: User, job: bytes, trained: Bundle, which: int) -> None:
    """`vgame trainer`, until the job's end is final."""
    if job in player.notes:
        return
    world, reporter, machine = player.world, player.reporter, Slow(player.world, work().histories[which])
    run = (work().run, work().measured)[which]
    computation: Any = SimpleNamespace(
        rehearse=lambda: None,
        refuse_small_disk=lambda *_, **__: None,
        refuse_bad_terms=lambda price: None,
        reporter=reporter,
        retry=Retry(reporter, 1.0, bears=VgameError),
        bundle=trained,
        run=lambda _: world.clock.sleep(20),
        history=machine,
        run_root=run._store.roots[-1],
        lock=lambda: None,
        store=SimpleNamespace(folder=Path("run")),
    )
    trainer = roles.trainer_of(player.game(), job, computation)
    player.notes[job] = roles.play(trainer, computation, reporter, 1.0)


def payer_life(story: Any) -> Life:
    """Order, promise, and close again and again, until all money has its final owner."""

    def life(player: User) -> None:
        world, job, training = player.world, story.jobs[0], story.training
        if "ordered" not in player.notes:
            player.command("orders", lambda game, _: ordered(game, training, job, 0))
            player.notes["ordered"] = True
        try:
            story.offered = player.notes.setdefault("bonus", None) or promised(player, story)
        except (Abstain, ChainError, ContractError) as refusal:
            player.notes["refused"] = str(refusal)
        player.notes["bonus"] = story.offered

        def over() -> bool:
            return player.command("closes the job", lambda game, _: closed(game, job))

        since, identity = None, story.offered
        while since is None or world.now < since + FINAL:
            done = identity is None or settled(player, identity)
            since = (since or world.now) if over() and done else None
            world.clock.sleep(story.pace)

    return life


def settled(player: User, identity: bytes) -> bool:
    """Whether `vgame bonus close` has nothing left to do; also if a reorganisation undid the promise, and the job was
    claimed before a new one."""
    try:
        return player.command("closes", lambda _, e: e.close(identity)) in SETTLED
    except ChainError as error:
        if GONE not in str(error):
            raise
        return True


def promised(player: User, story: Any) -> bytes:
    """`vgame bonus promise`; if an earlier process made the promise, the contract names its bonus."""
    rule = {"least": story.least, "amount": AMOUNT, "validate": 0}
    made = work().task
    try:
        return player.command(
            "promises", lambda _, e: e.promise(story.jobs[0], story.training, made, "correct", **rule), ("BonusExists",)
        )
    except ContractError as refusal:
        if refusal.name != "BonusExists":
            raise
        return bytes(refusal.args_[0])


def closed(game: Game, job: bytes) -> bool:
    """Whether the job has ended and `vgame job close` has nothing left to do, which it reports as an error."""
    try:
        close_job(game, job)
    except ChainError as error:
        if IDLE not in str(error):
            raise
        return game.job(job).phase in OVER
    return False


__all__ = ["User", "payer_life", "trainer_life"]
