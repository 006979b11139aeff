"""One bonus: an honest trainer that earns it, an honest payer that promises it, or both; a cheat plays any other side.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from accuracy import ETHER, QUICK, SimEscrow, bundle, installed, work
from award import Award
from branches import BLOCK, START, Block
from claimants import AMOUNT, TRAPS, Claimants, Giver, Worker
from endpoint import SimChain, SimGame
from seats import PACE, Life, Player, Slow
from story import AFTER, Cast, Story
from strangers import Hand
from tape import Tape
from world import FINAL, LAG, Account, Killed, World

import vgame.agents.roles as roles
from vgame import Bundle, Terms
from vgame.agents.client import close_job, post_job
from vgame.agents.retry import Retry
from vgame.chain.game import Game
from vgame.chain.records import ENDED, JobSpec, Phase
from vgame.errors import Abstain, ChainError, ContractError, NotYet, VgameError
from vgame.job.terms import INCLUSION, KEPT_OUT, count_moves, needed_budgets, needed_slot

T = TypeVar("T")
FEATURES = ("closings", "junk", "surges")
HIGHEST = 8  # times the least base fee
REWARD = ETHER // 2
PACES = (60, 300, 1_200)  # seconds between two commands of a payer
PATIENCE = 6  # refusals of a command, 30 seconds apart, after which a user gives up
SETTLED, OVER = {"paid", "returned"}, {Phase.CONVICTED, *ENDED}
POOR, IDLE, GONE = "send it some ether", "the contract owes", "there is no bonus"  # in errors


def terms(left: int) -> Terms:
    """Clocks that cover the possible faults here, and that `vgame trainer` accepts."""
    slot = 2 * PACE + 2 * BLOCK * (2 + LAG)
    budget = 40 * slot + left
    clocks = {"trainer_budget": budget, "auditor_budget": budget, "slot": slot}
    windows = {"accept_window": 1_800 + left, "claim_window": 1_800 + left, "challenge_window": 2_400 + left}
    return Terms(reward=REWARD, diverged_pay=REWARD // 3, trainer_bond=ETHER, auditor_bond=ETHER, **clocks, **windows)


def least_terms() -> Terms:
    """The smallest clocks that `check` accepts; with them the allowance for faults is 0."""
    of = (work().bundle, work().measured.bundle)
    slot = max(needed_slot(b, QUICK, INCLUSION) for b in of)
    moves = [count_moves(b) for b in of]
    needed = [needed_budgets(m, slot, INCLUSION) for m in moves]
    trainer, auditor = (max(budget[side] for budget in needed) + KEPT_OUT for side in (0, 1))
    challenge = max(m.auditor for m in moves) * INCLUSION + slot + 1
    clocks = {"trainer_budget": trainer, "auditor_budget": auditor, "slot": slot, "challenge_window": challenge}
    return terms(0).model_copy(update=clocks | {"claim_window": KEPT_OUT + 2})


class Street(World):
    """A world with a base fee that rises for a while."""

    def __init__(self, tape: Tape, inside: bool) -> None:
        super().__init__(tape, inside)
        self.enabled |= {name for name in FEATURES if tape.byte() & 1}
        self.high = 0.0

    def _base_fee(self, parent: Block) -> int:
        if self.on("surges", 0.8):
            self.high = self.now + BLOCK * self.tape.below(64)
        if self.high <= self.now:
            return min(super()._base_fee(parent), max(parent.base_fee * 7 // 8, 2 * self.least))
        return min(parent.base_fee * 9 // 8, HIGHEST * self.least)


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


class Bonuses(Story):
    """`patches`: (module, name, instead) of broken rules. Job 0 is the training."""

    player: type[User] = User

    def __init__(self, tape: Tape, inside: bool = True, patches: tuple[tuple[Any, str, Any], ...] = ()) -> None:
        self.world: Any = Street(tape, inside)
        world, self.patches, self.cast, self.until = self.world, patches, Cast(), 0.0
        self.roles = tape.pick((("trainer",), ("payer",), ("trainer", "payer")))
        self.pace, self.poor = tape.pick(PACES), tape.chance(10)
        if sharp := tape.chance(25):
            world.left, world.enabled = 0, (world.enabled - {"lag", "balancer"}) | {"accusers", "idle"}
        self.sharp, self.training = sharp, bundle(least_terms() if sharp else terms(world.left))
        self.spec = world.spec = JobSpec(**self.training.order)
        self.least = work().total + tape.pick((0, -1, 1, -work().total))
        self.trap = tape.pick(TRAPS) if "payer" not in self.roles and tape.chance(40) else ""
        self.stubborn, self.hasty, self.offered, self.cheats = tape.chance(50), tape.chance(30), None, 0
        self.lazy = "payer" not in self.roles and tape.chance(20)  # late; and no other account returns the bonus
        world.enabled -= {"closings", "junk"} if self.lazy else set()
        self.shown = ExitStack()
        self.shown.enter_context(installed())
        self.strangers: Any = Claimants(world, 12, self)
        self.players = {role: self.player(world, role, 2 + n) for n, role in enumerate(self.roles)}
        payer = self.players.get("payer")
        self.client = Hand(payer.account if payer else Account(world, 1))
        self.start = {role: self._wealth(role) for role in self.roles}
        self.granted = {hand.address: 1_000 * ETHER for hand in (self.client, *self.strangers.hands)}
        self.granted |= {player.account.address: self.start[role] for role, player in self.players.items()}
        world.begin(self.granted)
        self.strangers.begin()
        self.view = SimGame(SimChain(world, self.strangers.eth))
        self.jobs = [self.view.job_id(self.spec, self.client.address, n) for n in range(2)]
        world.strangers, world.deadline = self.strangers.act, self._deadline
        self.judge: Any = Award(self)

    def _wealth(self, role: str) -> int:
        """Enough money; or so little that a command has to refuse."""
        gas = 20_000_000 * 2 * HIGHEST * self.world.least
        if role == "payer":
            return REWARD + (AMOUNT // 2 if self.poor else AMOUNT + gas // 10)
        return ETHER + gas if self.poor else 2 * AMOUNT + gas

    def play(self) -> list[str]:
        with self.shown as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module, name, instead in self.patches:
                stack.enter_context(patch.object(module, name, instead))
            return super().play()

    def _begin(self, folder: Path) -> None:
        self.strangers.jobs.append(self.jobs[0])
        if "payer" not in self.roles:
            self.strangers.actors.append(Giver(self.strangers, self.client))
        if "trainer" not in self.roles:
            self.strangers.actors.append(Worker(self.strangers, self.strangers.free.pop()))
        lives = {"trainer": trainer_life(self), "payer": payer_life(self)}
        for role, player in self.players.items():
            player.life = lives[role]
            player.sit()

    def _over(self) -> bool:
        """The players have ended, and some time has passed in which a cheat could still be paid."""
        if not all(player.ended for player in self.players.values()):
            self.until = 0.0
            return False
        self.until = self.until or self.world.now + AFTER
        return self.world.now >= self.until

    def _deadline(self) -> float | None:
        """The end of a job's window; else of the bonus's window, unless a trainer may be waiting for a final block."""
        if (end := super()._deadline()) is not None:
            return end
        bonus = self.strangers.held()
        busy = [p for role, p in self.players.items() if role == "trainer" and not p.ended]
        if bonus is None or busy or not bonus.since or bonus.settled_at:
            return None
        end = bonus.since + bonus.window
        return float(end) if end + 8 * BLOCK >= self.world.tree.head.time else None


# ---- the honest ----


def trainer_life(story: Bonuses) -> Life:
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


def earned(player: User, story: Bonuses, identity: bytes) -> bool:
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


def payer_life(story: Bonuses) -> Life:
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


def promised(player: User, story: Bonuses) -> bytes:
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


__all__ = ["Bonuses"]
