"""One story: orders, an honest trainer or auditor or both, strangers, and a verdict.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from branches import BLOCK, START
from endpoint import SimChain, SimGame
from frauds import SETUP
from judge import Judge
from scene import ETHER, NAME, Call
from seats import PACE, Player, auditor_life, trainer_life
from strangers import Hand, Strangers
from tape import Tape
from world import LAG, Account, World

import vgame.agents.auditor_service
import vgame.agents.roles as roles
import vgame.agents.staking
from vgame.chain.records import ZERO_ADDRESS, JobSpec, Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer

MOVES = 9  # of a side, at most
WINDOWS = {"accept_window": 600, "claim_window": 1200, "challenge_window": 1800}
PLAYED = {Phase.ACCEPTED, Phase.CLAIMED}
SEEN = 8 * BLOCK  # until all players have seen the end of a window
AFTER = 10 * BLOCK  # for reorganisations that undo the end
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # files in memory
END = 60_000  # seconds after which the story ends in any case


@dataclass(frozen=True)
class Cast:
    """The classes of the honest players."""

    trainer: type[Trainer] = Trainer
    auditor: type[Auditor] = Auditor


def terms(world: World, claims: int, looks: int = 0) -> JobSpec:
    """The smallest clocks that cover the possible faults (vgame.job.terms): one block until a move is included, one
    more until it is seen; the same again for each block that nodes may lag, and for each of `looks` that show
    nothing."""
    lag = looks + (LAG if world.enabled & {"lag", "balancer"} else 0)
    inclusion = 2 * BLOCK * (1 + lag)
    slot = 2 * PACE + inclusion
    budgets = 2 * MOVES * slot + MOVES * inclusion, claims * (MOVES * slot + 2 * MOVES * inclusion)
    clocks = {"slot": slot, "trainer_budget": budgets[0] + world.left, "auditor_budget": budgets[1] + world.left}
    return replace(SETUP.spec, **WINDOWS, **clocks)


class Story:
    """`inside`: whether the clocks cover all faults. Job 0 is the honest trainer's, the others are cheats'."""

    player: type[Player] = Player
    looks = 0  # consecutive looks that may show nothing

    def __init__(self, tape: Tape, inside: bool = True, cast: Cast = Cast()) -> None:
        self.world = world = World(tape, inside)
        self.cast, self.until = cast, 0.0
        self.roles = tape.pick((("trainer",), ("auditor",), ("trainer", "auditor")))
        self.cheats = 1 + tape.below(3) if "auditor" in self.roles else 0
        self.spec = world.spec = terms(world, max(1, self.cheats), self.looks)
        self.client, self.strangers = Hand(Account(world, 1)), Strangers(world, 24)
        self.players = {role: self.player(world, role, 2 + n) for n, role in enumerate(self.roles)}
        self.start = {role: self._wealth(role) for role in self.roles}
        rich = {hand.address: 1000 * ETHER for hand in (self.client, *self.strangers.hands)}
        world.begin(rich | {player.account.address: self.start[role] for role, player in self.players.items()})
        self.strangers.begin()
        self.view = SimGame(SimChain(world, self.strangers.eth))
        self.jobs = [self.view.job_id(self.spec, self.client.address, n) for n in range(1 + self.cheats)]
        world.strangers, world.deadline = self.strangers.act, self._deadline
        self.judge = Judge(self)

    def _wealth(self, role: str) -> int:
        """Enough money; or less, in which case the player has to refuse."""
        price = 5 * self.world.least + self.world.tip
        if role == "trainer":
            gas = (8_450_000, 4_600_000, 4_460_000, 5_000_000, 4_500_000, 4_450_000, 300_000, 3_000_000)
            return self.spec.trainer_bond + self.world.tape.pick(gas) * price
        self.rich = not self.world.tape.chance(20)
        stakes = self.cheats * self.spec.stake + (1 + self.cheats) * 2 * 2_000_000 * price
        return stakes if self.rich else stakes // 2

    def play(self) -> list[str]:
        """Play the story to its end; returns the failures."""
        world, service, staking = self.world, vgame.agents.auditor_service, vgame.agents.staking
        usual = roles.Trainer, service.Auditor, staking.auditor_shortcomings
        roles.Trainer, service.Auditor = self.cast.trainer, self.cast.auditor
        staking.auditor_shortcomings = lambda *_: []  # clocks are long enough
        try:
            with world.clock.installed(), TemporaryDirectory(dir=MEMORY) as folder:
                self._begin(Path(folder))
                world.run(world.now + END, self._over)
                return self.judge.found()
        finally:
            roles.Trainer, service.Auditor, staking.auditor_shortcomings = usual
            world.end()

    def _begin(self, folder: Path) -> None:
        mine = self.jobs if "trainer" in self.roles else self.jobs[1:]
        for n, job in enumerate(self.jobs):
            if job in mine:
                args = (astuple(self.spec), n, NAME, SETUP.program.header)
                self.strangers.send(self.client, Call("createJob", args, self.spec.reward))
        self.strangers.jobs += mine
        for job in self.jobs[1:]:
            self.strangers.cheat(job)
        lives = {"trainer": trainer_life(self.jobs[0]), "auditor": auditor_life(mine, folder)}
        for role, player in self.players.items():
            player.life = lives[role]
            player.sit()

    def _over(self) -> bool:
        """The trainer and all jobs have ended, and some time has passed in which an end could be undone."""
        ended = all(player.ended for role, player in self.players.items() if role == "trainer")
        ended &= self.world.now > START + self.spec.accept_window
        self.strangers.stolen = [job for job in self.jobs[:1] if ended and self._is_stolen(job)]
        open_ = [job for job in self.jobs[1:] + self.strangers.stolen if self.strangers.job(job).phase in PLAYED]
        if not ended or open_:
            self.until = 0.0
            return False
        self.until = self.until or self.world.now + AFTER * (1 + self.cheats)
        return self.world.now >= self.until

    def _is_stolen(self, job: bytes) -> bool:
        """Whether a stranger has accepted the job, by a copy of the trainer's transaction."""
        trainer = self.strangers.job(job).trainer
        return trainer != ZERO_ADDRESS and all(player.account.address != trainer for player in self.players.values())

    def _deadline(self) -> float | None:
        """The next end of a window or of a clock."""
        ends, now = [], self.world.tree.head.time
        for job in self.strangers.jobs:
            state = self.strangers.job(job)
            window = {Phase.CREATED: "accept_window", Phase.ACCEPTED: "claim_window", Phase.CLAIMED: "challenge_window"}
            if state.phase in window:
                ends.append(state.since + getattr(state.spec, window[state.phase]))
            if state.phase is Phase.CLAIMED and state.open:
                ends += [s.deadline for s in self.strangers.disputes(job) if s.turn is not None]
        later = [end for end in ends if end + SEEN >= now]
        return min(later) if later else None


__all__ = ["Cast", "Story"]
