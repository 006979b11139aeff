"""Adversaries: each an honest player plus one named patch. The demo, the drills and the tests play the same ones.

The false computation is a patch from computation.py (by name, so that this module needs no torch); the behaviour in the
game is here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vgame.chain.game import Game
from vgame.chain.records import Dispute, Level, Phase
from vgame.commit.machine import Machine
from vgame.commit.merkle import Kind
from vgame.commit.words import LEAF_WORDS
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView, Entry, Node
from vgame.dispute.trainer import Trainer
from vgame.errors import ContractError


@dataclass(frozen=True, slots=True)
class Attack:
    """A named way to cheat: `patch`, the change of the computation, and `silent`, the moves that the trainer never
    makes."""

    name: str
    title: str
    patch: str
    silent: frozenset[str] = field(default_factory=lambda: frozenset({"prove"}))


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("poisoned-sample", "one training sample replaced", "poisoned_sample"),
        Attack("backdoor-trigger", "a trigger stamped on some images, their labels changed", "backdoor_trigger"),
        Attack("wrong-order", "one batch not shuffled as ordered", "wrong_order"),
        Attack("wrong-learning-rate", "the learning rate of one step doubled", "wrong_learning_rate"),
        Attack("skipped-steps", "three steps skipped, the state copied", "skipped_steps"),
        Attack("flipped-bit", "one bit of one weight flipped", "flipped_bit"),
        Attack("wrong-activation", "one activation inside a step halved", "wrong_activation"),
        Attack("inconsistent-trace", "a state that does not follow from its own trace", "inconsistent_trace"),
        Attack("other-initial-state", "training started from other weights", "other_initial_state"),
        Attack(
            "silent-before-leaf",
            "stops answering before it opens the leaf",
            "wrong_activation",
            frozenset({"openLeaf", "prove"}),
        ),
        Attack("silent-after-leaf", "stops answering after it opened the leaf", "wrong_activation"),
        Attack("false-divergence", "claims that the job diverged", "false_divergence"),
    )
}


#: For a job in mode `logged`; its patch is vgame.attacks.tampered_log.Tampering.
TAMPERED_LOG = Attack("tampered log", "values steered by directions of rounding far from any midpoint", "tampered_log")


class CheatingTrainer(Trainer):
    """A trainer that never makes some moves."""

    def __init__(self, game: Game, job: bytes, machine: Machine, silent: frozenset[str]) -> None:
        super().__init__(game, job, machine)
        self.silent = silent

    def attempt(self, name: str, *args: object, value: int = 0) -> bool:
        return False if name in self.silent else super().attempt(name, *args, value=value)

    def step(self) -> bool:
        """Answer as long as possible; a move that the contract refuses is ignored."""
        try:
            return super().step()
        except ContractError:
            return False


class FalseAccuser(Auditor):
    """Disputes an honest claim along an arbitrary path; `step_wanted` leads it to one training step.

    It uses only the revealed nodes and the program.
    """

    def __init__(self, game: Game, job: bytes, machine: Machine, *, idle: bool = False, step_wanted: int = 0) -> None:
        super().__init__(game, job, machine)
        self.idle, self.step_wanted = idle, step_wanted
        self.dice = random.Random(f"{job.hex()} {idle} {step_wanted}")
        self.accused = False

    def challenge(self, view: ClaimView) -> bool:
        if self.accused or self.game.chain.now() > view.job.since + view.job.spec.challenge_window:
            return False
        bond = view.job.spec.stake
        basis = view.basis(Entry(Level.RUN))
        self.game.send("challenge", self.id, int(Level.RUN), 0, view.job.run_root, basis, value=bond)
        self.accused = True
        return True

    def moves(self, view: ClaimView) -> list[tuple[int, Callable[[], bool]]]:
        return [] if self.idle else super().moves(view)

    def others(self, view: ClaimView) -> bool:
        return not (self.idle and view.job.phase is Phase.CLAIMED) and super().others(view)

    def move(self, view: ClaimView, number: int, d: Dispute) -> bool:
        """Any legal move; the contract refuses nodes that cannot be contested."""
        if d.level is Level.TENSOR and d.height == 0:
            element = min(d.index * LEAF_WORDS + self.dice.randrange(LEAF_WORDS), d.elements - 1)
            return self.name("selectElement", number, d, element, view.leaf(d.node))
        if d.level is Level.ELEMENT:
            partials = view.partials(d)
            return self.select_partial(number, d, partials, self.dice.randrange(len(partials)))
        node = view.base(d)
        for index in self.order(node):
            try:
                return self.select(number, d, node, index)
            except ContractError as error:
                if error.name != "NothingToContest":
                    raise
        return False

    def order(self, node: Node) -> Sequence[int]:
        """Indices of the children in the order of the tries: first the one above the wanted step, then at random."""
        count = len(node.children)
        indices = self.dice.sample(range(count), count)
        if self.step_wanted and node.kind in (Kind.RUN, Kind.SEGMENT):
            checkpoint = (self.step_wanted - 1) // self.machine.interval
            leaf = checkpoint if node.kind is Kind.RUN else self.step_wanted - checkpoint * self.machine.interval
            indices = [(leaf >> node.base) - node.first, *indices]
        return indices

    def prove(self, view: ClaimView, number: int, d: Dispute) -> bool:
        """Never prove: a proof would only show that the trainer is right."""
        return False
