"""A story in which each role is played by two processes with two nodes, one of which may become hostile for ever.

In: a tape. Out: one sentence for each failure of an honest player, none if there is no failure. The two processes of a
role have one key ("start the same role elsewhere"), or two: a trainer and its delegate, two auditors.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from branches import BLOCK, START
from endpoint import SimChain, SimGame
from frauds import SETUP
from hostile import Guest
from judge import Judge, honest_root
from scene import ETHER, NAME, Call
from seats import Life, Player, Slow, auditor_life, table, trainer_life
from story import AFTER, PLAYED, Cast, Story, terms
from strangers import Hand, Strangers
from tape import Tape
from world import DEEPEST, Account, World

import vgame.agents.roles as roles
from vgame.agents.order import find_order
from vgame.chain.records import LOST, JobSpec, Phase, Status
from vgame.dispute.delegate import Delegate
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError

Patches = tuple[tuple[Any, str, Any], ...]
SETTLED = (DEEPEST + 1) * BLOCK  # seconds after which no reorganisation undoes a block
GAS_MONEY = 100 * ETHER  # for the gas that a hostile node wastes


def naming(delegate: str, trainer: type[Trainer]) -> type[Trainer]:
    """A trainer that names its delegate before it claims, as `vgame job delegate` does."""

    def claim(self: Trainer) -> bool:
        if not self.game.is_delegate(self.id, delegate):
            return self.attempt("setDelegate", self.id, delegate, True)
        return trainer.claim(self)

    return type("Naming", (trainer,), {"claim": claim})


def delegate_life(job: bytes) -> Life:
    """`vgame trainer --delegate`, over the toy machine."""

    def life(player: Player) -> None:
        world, game, machine = player.world, player.game(), Slow(player.world, table())
        bundle: Any = SimpleNamespace(order=asdict(world.spec))
        find_order(game, bundle, job)
        delegate: Any = Delegate(game, job, machine)
        delegate.terms = JobSpec(**bundle.order)
        store = SimpleNamespace(folder=Path("run"))
        computation: Any = SimpleNamespace(run_root=honest_root(), store=store)
        world.clock.sleep(20)
        roles.play(delegate, computation, player.reporter, 1.0)

    return life


def later(life: Life, seconds: float) -> Life:
    """A life that begins only when the other process of the role has played for a while."""

    def begun(player: Player) -> None:
        if player.lives == 1:
            player.world.clock.sleep(seconds)
        life(player)

    return begun


class Several(Story):
    """`players`: the processes whose accounts must lose nothing; `seconds`: the second processes of their roles.
    `patches`: (module, name, replacement) of broken rules."""

    def __init__(self, tape: Tape, inside: bool = True, patches: Patches = ()) -> None:
        self.world = world = World(tape, inside)
        self.patches, self.cast, self.until = patches, Cast(), 0.0
        self.roles = tape.pick((("trainer",), ("auditor",), ("trainer", "auditor")))
        self.shared = {role for role in self.roles if tape.below(2)}  # roles with one key for both processes
        self.turned = bool(tape.below(2))  # whether the trainer's node is the hostile one, not its delegate's
        self.cheats = 1 + tape.below(3) if "auditor" in self.roles else 0
        self.spec = world.spec = terms(world, max(1, self.cheats))
        self.client, self.strangers = Hand(Account(world, 1)), Strangers(world, 24)
        self.players, self.seconds = dict[str, Player](), dict[str, Player]()
        for n, role in enumerate(self.roles):
            self._cast(role, n)
        self.start = {role: self._wealth(role) for role in self.roles}
        rich = {hand.address: 1000 * ETHER for hand in (self.client, *self.strangers.hands)}
        rich |= {player.account.address: GAS_MONEY for player in self.seconds.values()}
        world.begin(rich | {player.account.address: self.start[role] for role, player in self.players.items()})
        self.strangers.begin()
        self.view = SimGame(SimChain(world, self.strangers.eth))
        self.jobs = [self.view.job_id(self.spec, self.client.address, n) for n in range(1 + self.cheats)]
        world.strangers, world.deadline = self.strangers.act, self._deadline
        self.judge: Any = Bench(self)

    def _cast(self, role: str, n: int) -> None:
        """Make both processes of a role; one of them is a guest at a hostile node."""
        name = role + " 2" if role in self.shared or role == "auditor" else "delegate"
        turned = name == "delegate" and self.turned
        other = 2 + n if role in self.shared else 10 + n
        self.players[role] = (Guest if turned else Player)(self.world, role, 2 + n)
        self.seconds[role] = (Player if turned else Guest)(self.world, name, other)
        if name == "delegate":
            self.cast = Cast(trainer=naming(self.seconds[role].account.address, Trainer))
        if turned:
            self.players[role].ready = self._is_settled

    def fair(self, role: str) -> Player:
        """The process of the role whose node stays honest."""
        first, second = self.players[role], self.seconds[role]
        return second if isinstance(first, Guest) else first

    def guests(self) -> list[Guest]:
        return [p for p in (*self.players.values(), *self.seconds.values()) if isinstance(p, Guest)]

    def _is_settled(self) -> bool:
        """Whether no reorganisation can undo the claim any more. Only the trainer can claim; afterwards a delegate is
        enough."""
        job, block = self.strangers.job(self.jobs[0]), self.world.tree.head
        return job.claimed_at > 0 and block.time > job.claimed_at + SETTLED

    def _wealth(self, role: str) -> int:
        usual = super()._wealth(role)
        if role == "auditor":
            self.rich |= role in self.shared
        return usual + GAS_MONEY * (role in self.shared)

    def play(self) -> list[str]:
        with ExitStack() as stack:
            for module, name, instead in self.patches:
                stack.enter_context(patch.object(module, name, instead))
            try:
                return super().play()
            except (RuntimeError, ContractError) as error:
                return [f"the world ends: {error}"]  # more transactions than the EVM supports

    def _begin(self, folder: Path) -> None:
        mine = self.jobs if "trainer" in self.roles else self.jobs[1:]
        for n, job in enumerate(self.jobs):
            if job in mine:
                args = (astuple(self.spec), n, NAME, SETUP.program.header)
                self.strangers.send(self.client, Call("createJob", args, self.spec.reward))
        self.strangers.jobs += mine
        for job in self.jobs[1:]:
            self.strangers.cheat(job)
        for role in self.roles:
            self._sit(role, mine, folder)

    def _sit(self, role: str, mine: list[bytes], folder: Path) -> None:
        for player in (self.players[role], self.seconds[role]):
            if role == "auditor":
                (folder / player.name).mkdir()
                player.life = auditor_life(mine, folder / player.name)
            else:
                player.life = (delegate_life if player.name == "delegate" else trainer_life)(self.jobs[0])
            seconds = BLOCK * self.world.tape.below(20) * self.world.tape.below(2)
            if player is self.fair(role) and self.world.allows(seconds):
                player.life = later(player.life, seconds)
            player.sit()

    def _over(self) -> bool:
        """The fair trainer has ended, and some time has passed in which its end could prove wrong; a guest may never
        end."""
        ended = "trainer" not in self.roles or bool(self.fair("trainer").ended)
        ended &= self.world.now > START + self.spec.accept_window
        if not ended or [job for job in self.jobs[1:] if self.strangers.job(job).phase in PLAYED]:
            self.until = 0.0
            return False
        self.until = self.until or self.world.now + AFTER * (1 + self.cheats)
        return self.world.now >= self.until


class Bench(Judge):
    """The verdict on such a story."""

    story: Several

    def found(self) -> list[str]:
        found = super().found()
        found += [text for player in self.story.seconds.values() for text in player.reporter.unforeseen]
        if self.world.inside:
            found += [text for guest in self.story.guests() for text in guest.vain()]
            if "auditor" in self.story.roles and "auditor" not in self.story.shared:
                found += self._second()
        return found

    def _loss(self, role: str) -> list[str]:
        """A delegate makes no withdrawals, so credits may be left."""
        left = self.story.fair(role) is self.story.players[role]
        return [text for text in super()._loss(role) if left or "in the contract" not in text]

    def _second(self) -> list[str]:
        """An auditor behind a hostile node loses at most the stakes of disputes about false claims, by its clock."""
        story, found, lost = self.story, [], 0
        account = story.seconds["auditor"].account.address
        for number, name in enumerate(story.jobs):
            job = story.view.job(name)
            if job.phase is Phase.NONE:
                continue
            mine = [s.dispute for s in story.view.all_disputes(name) if s.dispute.auditor == account]
            lost += sum(story.spec.stake for d in mine if d.status in {*LOST, Status.OPEN})
            if mine and story.strangers.lies.get(name, -1) == -1:
                found.append(f"job {number}: the second auditor disputed the right claim")
            if any(d.status is Status.DISMISSED for d in mine):
                found.append(f"job {number}: the second auditor's dispute was dismissed")
            if len(mine) > 1:
                found.append(f"job {number}: the second auditor staked {len(mine)} times")
        owned = self.world.tree.balance(account) + story.view.credits(account) + self._fees(account)
        if owned + lost < GAS_MONEY:
            found.append(f"the second auditor has lost {GAS_MONEY - owned - lost} wei")
        return found


__all__ = ["Several"]
