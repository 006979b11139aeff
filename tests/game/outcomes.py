"""Play a game against a lie, or against a false accusation, and check its end."""

from __future__ import annotations

from typing import Any

from frauds import Curious, Forcer, Place
from scene import Play, Scene, Setup
from toy import Lies, ToyMachine

from vgame.chain.records import JobSpec, Level, Phase
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import padding
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer


class Forged(ToyMachine):
    """A machine with other leaves in its trees: (kind, step or checkpoint, leaf) -> hash; after the last leaf there is
    padding.

    roots: state roots by step; words: bytes appended to an output by (step, operator), and to the state tensor it
    becomes if `carried`.
    """

    def __init__(
        self,
        setup: Setup,
        leaves: dict[tuple[Tree_, int, int], bytes] | None = None,
        roots: dict[int, bytes] | None = None,
        words: dict[tuple[int, int], bytes] | None = None,
        carried: bool = False,
    ) -> None:
        super().__init__(setup.program, setup.seed, setup.steps, setup.interval)
        self.leaves, self.roots, self.more, self.carried = leaves or {}, roots or {}, words or {}, carried

    def _forge(self, kind: Tree_, where: int, leaves: list[bytes]) -> list[bytes]:
        for (k, w, leaf), node in self.leaves.items():
            if (k, w) == (kind, where):
                leaves = [*leaves, *[padding(kind, 0)] * (leaf + 1 - len(leaves))]
                leaves[leaf] = node
        return leaves

    def state_root(self, step: int) -> bytes:
        return self.roots.get(step) or super().state_root(step)

    def segment(self, checkpoint: int) -> list[bytes]:
        return self._forge(Tree_.SEGMENT, checkpoint, super().segment(checkpoint))

    def state(self, step: int) -> list[bytes]:
        leaves = super().state(step)
        if self.carried:
            leaves = [
                super(Forged, self).trace(step)[s.operator] if (step, s.operator) in self.more else leaf
                for s, leaf in zip(self.program.states, leaves, strict=True)
            ]
        return self._forge(Tree_.STATE, step, leaves)

    def trace(self, step: int) -> list[bytes]:
        return self._forge(Tree_.TRACE, step, super().trace(step))

    def words(self, step: int, operator: int) -> bytes:
        return super().words(step, operator) + self.more.get((step, operator), b"")


def caught(
    scene: Scene, setup: Setup, lies: Lies | ToyMachine | None, cls: type[Trainer] = Trainer, **options: Any
) -> tuple[Play, Auditor]:
    """Play a lie against one honest auditor."""
    play = scene.claimed(setup, lies, cls, **options)
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    return play, auditor


def forced(
    scene: Scene,
    setup: Setup,
    lies: Lies | ToyMachine,
    step: int,
    cls: type[Trainer] = Trainer,
    **options: Any,
) -> tuple[Play, Auditor]:
    """Play a lie that no checkpoint shows, until an accomplice makes the trainer open the step; dispute 1 belongs to an
    auditor that checks all posts."""
    play = scene.claimed(setup, lies, cls, **options)
    assert play.job.run_root == play.new_trainer().run_tree().root
    auditor = play.auditor(cls=Curious)
    play.run_to_end(play.trainer, play.auditor(None, Forcer, step=step), auditor)
    return play, auditor


def convicted_at(play: Play) -> Place:
    v = play.client.verdict(play.id)
    return v.level, v.step, v.operator, v.index, v.part


def prize(spec: JobSpec, cause: str) -> int:
    """The winner's part of a convicted trainer's bond; after a timeout at most the payment of an auditor's timeout."""
    return (min(spec.trainer_bond, spec.auditor_bond) if cause == "timeout" else spec.trainer_bond) // 2


def check_conviction(
    caught_: tuple[Play, Auditor], cause: str, place: Place | None = None, entry: Level = Level.RUN
) -> None:
    """The trainer lost its bond, the auditor has its bond and the prize, the client has its reward back."""
    (play, auditor), number = caught_, int(entry is not Level.RUN)
    spec = play.setup.spec
    assert play.phase is Phase.CONVICTED
    assert play.verdicts[-1] == ("Convicted", number, cause)
    assert play.dispute(number).entry is entry
    assert place is None or convicted_at(play) == (*place, 0)[:5]  # the first part by default
    assert play.paid(auditor) == spec.stake + prize(spec, cause)
    assert play.paid(play.trainer) == (number == 1 and ("Dismissed", 0, "timeout") in play.verdicts) * (
        spec.auditor_bond // 2
    )
    assert play.client.credits(play.client.wallet.address) == spec.reward


def check_dismissal(play: Play, cause: str) -> None:
    """The claim is final, the trainer has its reward, its bond and half of each lost bond."""
    spec, lost = play.setup.spec, play.disputes()
    pay = spec.diverged_pay if play.job.diverged_at else spec.reward
    assert play.phase is Phase.FINAL
    assert [c for _, _, c in play.verdicts] == [cause] * len(lost) != []
    assert play.paid(play.trainer) == spec.trainer_bond + pay + len(lost) * (spec.auditor_bond // 2)
