"""How a game against a lie, or against a false accusation, is played and how it has to end."""

from __future__ import annotations

from typing import Any

from frauds import Forcer, Place
from scene import Play, Scene, Setup
from toy import Lies, ToyMachine

from vgame.chain.records import Level, Phase
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import padding
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer


class Forged(ToyMachine):
    """A machine with other leaves in its trees: (kind, step or checkpoint, leaf) -> hash; behind the last leaf that is
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
    """Play a lie that no checkpoint shows, until somebody makes the trainer open the step; dispute 1 is the honest
    auditor's."""
    play = scene.claimed(setup, lies, cls, **options)
    assert play.job.run_root == play.new_trainer().run_tree().root
    auditor = play.auditor()
    play.run_to_end(play.trainer, play.auditor(None, Forcer, step=step), auditor)
    return play, auditor


def convicted_at(play: Play) -> Place:
    v = play.client.verdict(play.id)
    return v.level, v.step, v.operator, v.index


def share(play: Play, number: int) -> int:
    """What is paid for knowing, if that dispute was the first: in the run tree, with something left of it, not for a
    timeout."""
    v, interval = play.client.verdict(play.id), play.setup.spec.interval
    before = v.step - (v.level is not Level.SEGMENT)
    left = v.index if v.level is Level.RUN else before // interval
    known = play.dispute(number).entry is Level.RUN and v.cause != "timeout" and left > 0
    return play.setup.spec.trainer_bond // 2 if known else 0  # gas is free here, so there are no stipends


def check_conviction(
    caught_: tuple[Play, Auditor], cause: str, place: Place | None = None, entry: Level = Level.RUN
) -> None:
    """The trainer lost all, the auditor has its bond and what its knowledge is worth, the client has its reward
    back."""
    (play, auditor), number = caught_, int(entry is not Level.RUN)
    spec = play.setup.spec
    assert play.phase is Phase.CONVICTED
    assert play.verdicts[-1] == ("Convicted", number, cause)
    assert play.dispute(number).entry is entry
    assert place is None or convicted_at(play) == place
    assert play.paid(auditor) == spec.auditor_bond + share(play, number)
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
