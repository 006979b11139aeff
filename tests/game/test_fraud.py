"""Every place where a claim can be false, and every place where an accusation can be: the right side wins, at that very place.

One table of lies serves both: told by the trainer they convict it, believed by an auditor they get it dismissed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frauds import (
    HONEST,
    JUNK,
    SETUP,
    SUM,
    Bluffer,
    Case,
    Forcer,
    Mistaken,
    Place,
    name,
    place_of,
    state_lie,
    word_lie,
    wrong_word,
)  # fmt: skip
from scene import WIDE, Play, Scene, Setup
from toy import INFINITY, NAN, Kind, Lies, Operator, Program, Special, State, Stop, ToyMachine

from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import Tree, padding
from vgame.game.adversaries import FalseAccuser
from vgame.game.auditor import Auditor
from vgame.game.game import Game, Level, Phase, Status
from vgame.game.trainer import Trainer


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
    """Play a lie that no checkpoint shows, until somebody makes the trainer open the step; dispute 1 is the honest auditor's."""
    play = scene.claimed(setup, lies, cls, **options)
    assert play.job.run_root == play.new_trainer().run_tree().root
    auditor = play.auditor()
    play.run_to_end(play.trainer, play.auditor(None, Forcer, step=step), auditor)
    return play, auditor


def convicted_at(play: Play) -> Place:
    v = play.client.verdict(play.id)
    return v.level, v.step, v.operator, v.index


def check_conviction(
    caught_: tuple[Play, Auditor], cause: str, place: Place | None = None, entry: Level = Level.RUN
) -> None:
    """The trainer lost all, the auditor has its bond and half of the trainer's, the client has its reward back."""
    (play, auditor), number = caught_, int(entry is not Level.RUN)
    spec = play.setup.spec
    assert play.phase is Phase.CONVICTED
    assert play.verdicts[-1] == ("Convicted", number, cause)
    assert play.dispute(number).entry is entry
    assert place is None or convicted_at(play) == place
    assert play.paid(auditor) == spec.auditor_bond + spec.trainer_bond // 2
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


# ---- the table ----

STEPS = (1, 2, 3, 4, 6, 7, 8)  # first, middle and last of the segments 1-3, 4-6 and 7-8
ELEMENTS = {0: (0, 127, 128, 599), 1: (0, 255, 299), 2: (0, 128), SUM: (0, 4), 4: (0,)}
WORDS = [word_lie(6, o, e) for o, elements in ELEMENTS.items() for e in elements]
WORDS += [word_lie(s, 1, 7) for s in STEPS if s != 6]
WORDS += [word_lie(8, SUM, 2, block) for block in range(3)]
STATES = [state_lie(s, 1, 7) for s in STEPS] + [state_lie(6, t, 0) for t in (0, 2, SUM, 4, 5)] + [state_lie(8, 0, 599)]


# ---- lies of the trainer ----


@pytest.mark.parametrize("case", WORDS, ids=name)
def test_a_wrong_word_convicts_by_arithmetic(scene: Scene, case: Case) -> None:
    check_conviction(caught(scene, SETUP, case[0]), "element", case[1])


@pytest.mark.parametrize("case", STATES, ids=name)
def test_a_state_against_its_own_trace_convicts_by_opening(scene: Scene, case: Case) -> None:
    """I9: whoever shows the trace, it does not end in the state."""
    check_conviction(caught(scene, SETUP, case[0]), "opening", case[1])


@pytest.mark.parametrize("tensor", [0, 2, SUM, 4])
def test_a_wrong_state_between_checkpoints_is_seen_once_it_is_posted(scene: Scene, tensor: int) -> None:
    """These tensors are computed anew in each step, so nothing of the lie is left at the next checkpoint."""
    lies, place = state_lie(5, tensor, 0)
    check_conviction(forced(scene, SETUP, lies, 5), "opening", place, Level.SEGMENT)


@pytest.mark.parametrize("step", [1, 5, 8])
@pytest.mark.parametrize("operator", range(5))
def test_a_wrong_word_that_only_the_trace_shows(scene: Scene, step: int, operator: int) -> None:
    element = WIDE.operators[operator].elements - 1
    lies = Lies(shown={(step, operator, element): wrong_word(step, operator, element)}, block=1)
    played = forced(scene, SETUP, lies, step)
    check_conviction(played, "element", place_of(step, operator, element, 1), Level.TRACE)


@pytest.mark.parametrize("tensor", [1, 5])
def test_another_initial_state_cannot_be_posted(scene: Scene, tensor: int) -> None:
    """I8: S_0 is the job's, so the first segment cannot be posted and the clock decides."""
    played = caught(scene, SETUP, Lies(initial={(tensor, 0): 0}), Bluffer)
    check_conviction(played, "timeout", (Level.RUN, 0, 0, 0))
    assert not played[0].events("SegmentPosted")


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("case", [word_lie(8, 0, 599), word_lie(6, SUM, 4, 2), state_lie(6, 5, 199)], ids=name)
def test_any_depth_of_reveals(scene: Scene, depth: int, case: Case) -> None:
    cause = "opening" if case[1][0] is Level.STATE else "element"
    check_conviction(caught(scene, replace(SETUP, depth=depth), case[0]), cause, case[1])


@pytest.mark.parametrize("steps,interval", [(1, 1), (1, 5), (2, 1), (5, 5), (9, 2)])
@pytest.mark.parametrize("last", [False, True])
def test_any_shape_of_a_run(scene: Scene, steps: int, interval: int, last: bool) -> None:
    """Trees of one leaf, of two, full ones and padded ones."""
    lies, place = word_lie(steps if last else 1, 1, 299)
    check_conviction(caught(scene, replace(SETUP, steps=steps, interval=interval), lies), "element", place)


def test_a_program_of_one_operator_and_one_word(scene: Scene) -> None:
    """All trees have height 0: the trace root is the operator's output, and its root is the leaf."""
    setup = Setup(Program((Operator(1, Kind.CARRY, finite=True),), (State(1, 0),)), steps=3)
    lies = Lies(words={(2, 0, 0): int(setup.honest.output_words(2, 0)[0]) ^ 1})
    check_conviction(caught(scene, setup, lies), "element", (Level.ELEMENT, 2, 0, 0))


def test_frauds_that_cancel_out(scene: Scene) -> None:
    """The final state is right; a checkpoint on the way is not."""
    lies, place = word_lie(6, 0, 3)
    played = caught(scene, SETUP, lies)
    assert played[0].trainer.machine.checkpoints[-1] == HONEST.checkpoints[-1]
    check_conviction(played, "element", place)


def test_partial_sums_that_cancel_out(scene: Scene) -> None:
    """The word is right, two of its partial sums are not: whoever names one wins. The auditor's mistake looks like the first."""
    play = scene.claimed(SETUP, Lies(partials={(8, SUM, 2): (1, 2)}))
    lies, _ = word_lie(8, SUM, 2, 1)
    auditor = play.auditor(lies, Mistaken)
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]
    assert convicted_at(play) == place_of(8, SUM, 2, 2)


# ---- trees that hold what the format does not allow, or what cannot be opened ----


class Forged(ToyMachine):
    """A machine with other leaves in its trees: (kind, step or checkpoint, leaf) -> hash; behind the last leaf that is padding.

    roots: state roots by step; words: bytes appended to an output by (step, operator), and to the state tensor it becomes if `carried`.
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


class Bare(Trainer):
    """Only the trees of a machine."""

    def __init__(self, machine: ToyMachine) -> None:
        self.machine = machine


class PaddedRun(Bluffer):
    """It claims the right final state under a run tree with something behind its last checkpoint."""

    def run_tree(self) -> Tree:
        return covered(Tree_.RUN, super().run_tree().levels[0], JUNK)


class Covering(Bluffer):
    """It shows other trees than its machine has: step or checkpoint, operator -> tree."""

    def __init__(self, game: Game, job: bytes, machine: ToyMachine, trees: dict[tuple[int, int], Tree]) -> None:
        super().__init__(game, job, machine, {"openLeaf"})
        self.trees = trees

    def segment_tree(self, checkpoint: int) -> Tree:
        return self.trees.get((checkpoint, -1)) or super().segment_tree(checkpoint)

    def tensor_tree(self, step: int, operator: int) -> Tree:
        return self.trees.get((step, operator)) or super().tensor_tree(step, operator)


def covered(kind: Tree_, leaves: list[bytes], *more: bytes) -> Tree:
    """A tree that says it has `leaves`, with more behind them."""
    tree = Tree(kind, [*leaves, *more])
    tree.count = len(leaves)
    return tree


def test_padding_of_the_run_tree(scene: Scene) -> None:
    """I11."""
    check_conviction(caught(scene, SETUP, None, PaddedRun), "opening", (Level.RUN, 0, 0, 0))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("leaf", [6, 7])
@pytest.mark.parametrize("step", [3, 8])
def test_padding_of_a_state(scene: Scene, step: int, leaf: int, depth: int) -> None:
    """I11: the leaves, and the subtree above them."""
    setup = replace(SETUP, depth=depth)
    played = caught(scene, setup, Forged(setup, {(Tree_.STATE, step, leaf): JUNK}))
    check_conviction(played, "opening")
    assert convicted_at(played[0])[:2] == (Level.STATE, step)


def test_padding_of_a_segment(scene: Scene) -> None:
    """I11: the last segment has three states, and a fourth leaf below a child that is not all padding. The lie is seen once the segment is
    posted. Children that are all padding cannot be posted at all."""
    setup = replace(SETUP, depth=1)
    tree = covered(Tree_.SEGMENT, setup.honest.segment(3), JUNK)
    played = forced(scene, setup, None, 8, Covering, trees={(3, -1): tree})
    check_conviction(played, "opening", entry=Level.SEGMENT)
    assert convicted_at(played[0])[0] is Level.SEGMENT


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("leaf", [5, 6, 7])
def test_padding_of_a_trace(scene: Scene, leaf: int, depth: int) -> None:
    """I11: named by `select` where a subtree is all padding, by `selectOperator` at a leaf."""
    setup = replace(SETUP, depth=depth)
    played = forced(scene, setup, Forged(setup, {(Tree_.TRACE, 5, leaf): JUNK}), 5)
    check_conviction(played, "opening", entry=Level.TRACE)
    assert convicted_at(played[0])[:2] == (Level.TRACE, 5)


PADDED_WORDS = {  # operator 0 has 600 words: 40 of its leaf 4, and leaves 5 to 7, are padding
    "first word": (b"\1", (0, 4)),
    "last word": (bytes(4 * 39) + b"\1", (0, 4)),
    "a leaf of zeros": (bytes(4 * 41), (1, 2)),
}


@pytest.mark.parametrize("where", PADDED_WORDS)
@pytest.mark.parametrize("carried", [False, True])
def test_padding_of_a_tensor(scene: Scene, where: str, carried: bool) -> None:
    """I11, in a state (that the trace agrees with), and only in a trace."""
    words, (height, index) = PADDED_WORDS[where]
    machine = Forged(SETUP, words={(6, 0): words}, carried=carried)
    played = caught(scene, SETUP, machine) if carried else forced(scene, SETUP, machine, 6)
    check_conviction(played, "opening", (Level.TENSOR, 6, 0, index), Level.RUN if carried else Level.TRACE)
    assert played[0].client.verdict(played[0].id).height == height


@pytest.mark.parametrize("leaf,named", [(5, (1, 2)), (6, (3, 0)), (7, (3, 0))])
def test_padding_leaves_of_a_tensor(scene: Scene, leaf: int, named: tuple[int, int]) -> None:
    """I11: a leaf of the last pair, or the node above the last pair of leaves."""
    tree = covered(Tree_.TENSOR, Trainer.tensor_tree(Bare(HONEST), 6, 0).levels[0], *padding_up_to(leaf - 5), JUNK)
    machine = Forged(SETUP, {(Tree_.STATE, 6, 0): tree.root, (Tree_.TRACE, 6, 0): tree.root})
    played = caught(scene, SETUP, machine, Covering, trees={(6, 0): tree})
    check_conviction(played, "opening", (Level.TENSOR, 6, 0, named[1]))
    assert played[0].client.verdict(played[0].id).height == named[0]


def padding_up_to(leaves: int) -> list[bytes]:
    return [padding(Tree_.TENSOR, 0)] * leaves


UNOPENABLE = {"junk": JUNK, "zeros": bytes(32), "padding": padding(Tree_.STATE, 0)}


@pytest.mark.parametrize("content", UNOPENABLE)
@pytest.mark.parametrize("step", [3, 6, 8])
def test_a_checkpoint_that_nobody_can_open(scene: Scene, step: int, content: str) -> None:
    """Its segment can be posted, for the contract sees hashes; the state in it cannot be revealed."""
    machine = Forged(SETUP, roots={step: UNOPENABLE[content]})
    check_conviction(caught(scene, SETUP, machine, Bluffer), "timeout", (Level.STATE, step, 0, 0))


@pytest.mark.parametrize("step", [4, 5, 7])
def test_a_state_between_checkpoints_that_nobody_can_open(scene: Scene, step: int) -> None:
    machine = Forged(SETUP, roots={step: JUNK})
    played = forced(scene, SETUP, machine, step + 1, Bluffer)
    check_conviction(played, "timeout", (Level.STATE, step, 0, 0), Level.SEGMENT)


@pytest.mark.parametrize("tensor", [0, 2, 5])
def test_a_state_tensor_that_nobody_can_open(scene: Scene, tensor: int) -> None:
    """The trace does not end in it: its own move convicts. If the trace has it too, nobody can go on."""
    leaves = {(Tree_.STATE, 6, tensor): JUNK}
    check_conviction(caught(scene, SETUP, Forged(SETUP, leaves), Bluffer), "opening", (Level.STATE, 6, 0, tensor))
    if tensor < 5:
        played = caught(scene, SETUP, Forged(SETUP, leaves | {(Tree_.TRACE, 6, tensor): JUNK}), Bluffer)
        check_conviction(played, "timeout", (Level.TENSOR, 6, tensor, 0))


def test_a_leaf_that_nobody_can_open(scene: Scene) -> None:
    tree = covered(Tree_.TENSOR, [*Trainer.tensor_tree(Bare(HONEST), 6, 1).levels[0][:2], JUNK])
    machine = Forged(SETUP, {(Tree_.STATE, 6, 1): tree.root, (Tree_.TRACE, 6, 1): tree.root})
    played = caught(scene, SETUP, machine, Covering, trees={(6, 1): tree})
    check_conviction(played, "timeout", (Level.TENSOR, 6, 1, 2))


@pytest.mark.parametrize("step", [6, 8])
def test_a_repeated_checkpoint(scene: Scene, step: int) -> None:
    """Steps skipped, the state copied: it can be opened down to the tensor, which the step's trace does not end in."""

    class Lazy(Forged):
        def state(self, step_: int) -> list[bytes]:
            return super().state(3 if step_ == step else step_)

    check_conviction(caught(scene, SETUP, Lazy(SETUP)), "opening", (Level.STATE, step, 0, 0))


# ---- silence ----

SILENCE = {
    "reveal": ("timeout", (Level.RUN, 0, 0, 0)),
    "postSegment": ("timeout", (Level.RUN, 0, 0, 1)),
    "postTrace": ("timeout", (Level.SEGMENT, 3, 0, 3)),
    "tie": ("timeout", (Level.STATE, 6, 0, SUM)),
    "openLeaf": ("timeout", (Level.TENSOR, 6, SUM, 0)),
    "postPartials": ("timeout", (Level.ELEMENT, 6, SUM, 4)),
    "prove": ("element", (Level.BLOCK, 6, SUM, 4)),
}


@pytest.mark.parametrize("move", SILENCE)
def test_silence_does_not_help(scene: Scene, move: str) -> None:
    """Before its last opening it loses by the clock, after it by arithmetic."""
    lies, _ = state_lie(6, SUM, 4) if move == "tie" else word_lie(6, SUM, 4)
    play = scene.claimed(SETUP, lies, Bluffer, silent={move})
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    check_conviction((play, auditor), *SILENCE[move])


# ---- false accusations ----


@pytest.mark.parametrize("case", WORDS, ids=name)
def test_a_mistaken_word_is_dismissed_by_arithmetic(scene: Scene, case: Case) -> None:
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(case[0], Mistaken))
    check_dismissal(play, "element")
    d = play.dispute()
    assert (d.level, d.step, d.operator, d.index) == case[1]


@pytest.mark.parametrize("case", STATES, ids=name)
def test_a_mistaken_state_is_dismissed(scene: Scene, case: Case) -> None:
    """By the trace leaf that becomes the tensor, or by the state before, where the program leaves it alone."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(case[0], Mistaken))
    check_dismissal(play, "opening")
    d = play.dispute()
    assert (d.level, d.step, d.operator, d.index) == case[1]


def test_the_initial_state_cannot_be_contested(scene: Scene) -> None:
    """I11: what the spec fixes. The auditor's first difference is S_0."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(Lies(initial={(1, 0): 0}), Mistaken))
    check_dismissal(play, "timeout")
    d = play.dispute()
    assert (d.level, d.index) == (Level.RUN, 0) and play.events("SegmentPosted")


@pytest.mark.parametrize("step", range(1, 9))
def test_accusers_without_a_reason_lose(scene: Scene, step: int) -> None:
    """A1, A2: any path; the trainer gains from each."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(None, FalseAccuser, step_wanted=step))
    assert play.phase is Phase.FINAL and play.dispute().status is Status.DISMISSED
    assert play.paid(play.trainer) > SETUP.spec.trainer_bond + SETUP.spec.reward


def test_an_idle_accuser_loses_by_its_clock(scene: Scene) -> None:
    """A3."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(None, FalseAccuser, idle=True))
    check_dismissal(play, "timeout")


def test_an_honest_auditor_has_nothing_to_say_to_an_honest_claim(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    auditor = play.auditor()
    assert auditor.agrees()
    play.run_to_end(play.trainer, auditor)
    assert play.phase is Phase.FINAL and play.job.disputes == 0
    assert play.paid(play.trainer) == SETUP.spec.reward + SETUP.spec.trainer_bond


# ---- claims "diverged" ----

ENDS = (1, 3, 4, 6, 8)  # no checkpoint before it; last of a segment; first; with padding in the segment; last of all
BAD = (1, 130)  # the operator and the element that are not finite


def diverging(step: int, word: int = INFINITY) -> Setup:
    """A job whose run diverges at a step."""
    return replace(SETUP, program=replace(WIDE, specials=(Special(step, *BAD, word),)))


@pytest.mark.parametrize("step", ENDS)
@pytest.mark.parametrize("word", [INFINITY, NAN, INFINITY | 1 << 31])
def test_a_run_that_diverged_is_paid_as_agreed(scene: Scene, step: int, word: int) -> None:
    setup = diverging(step, word)
    play = scene.claimed(setup)
    assert play.job.diverged_at == step
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    assert play.phase is Phase.FINAL and play.job.disputes == 0
    assert play.paid(play.trainer) == setup.spec.trainer_bond + setup.spec.diverged_pay
    assert play.client.credits(play.client.wallet.address) == setup.spec.reward - setup.spec.diverged_pay


@pytest.mark.parametrize("step", ENDS)
def test_whoever_does_not_believe_in_the_divergence_loses(scene: Scene, step: int) -> None:
    play = scene.claimed(diverging(step))
    play.run_to_end(play.trainer, play.auditor(Lies(words={(step, *BAD): 1}), Mistaken))
    check_dismissal(play, "element")
    d = play.dispute()
    assert (d.level, d.step, d.operator, d.index) == (Level.ELEMENT, step, *BAD)


@pytest.mark.parametrize("step", ENDS)
def test_a_false_divergence(scene: Scene, step: int) -> None:
    """The claim's own trace holds the word, and the word is wrong."""
    played = caught(scene, SETUP, Lies(words={(step, *BAD): INFINITY}))
    assert played[0].job.diverged_at == step
    (play, auditor) = played
    assert play.verdicts == [("Convicted", 0, "element")] and play.dispute().entry is Level.TRACE
    assert convicted_at(play) == (Level.ELEMENT, step, *BAD)
    assert play.paid(auditor) == SETUP.spec.auditor_bond + SETUP.spec.trainer_bond // 2


@pytest.mark.parametrize("step", ENDS)
def test_a_hidden_divergence(scene: Scene, step: int) -> None:
    """The claim goes on beyond the word, with the arithmetic right: the word itself convicts."""
    played = caught(scene, diverging(step), Lies(endless=True))
    assert played[0].job.diverged_at == 0
    check_conviction(played, "opening", (Level.TENSOR, step, BAD[0], BAD[1] // 128))


@pytest.mark.parametrize("step", ENDS)
def test_a_divergence_that_is_computed_away(scene: Scene, step: int) -> None:
    """The last step's word, too: the state after it does not exist for the auditor."""
    played = caught(scene, diverging(step), Lies(words={(step, *BAD): 1}))
    check_conviction(played, "element", (Level.ELEMENT, step, *BAD))


@pytest.mark.parametrize("real,claimed", [(5, 7), (5, 6), (3, 4), (2, 8)])
def test_a_divergence_that_is_claimed_too_late(scene: Scene, real: int, claimed: int) -> None:
    """With the word shown and gone beyond, or computed away."""
    shown = Lies(words={(claimed, *BAD): INFINITY}, stop=Stop(claimed, *BAD))
    play, _ = caught(scene, diverging(real), shown)
    assert (play.verdicts, convicted_at(play)[:3]) == (
        [("Convicted", 0, "opening")],
        (Level.TENSOR, real, BAD[0]),
    )
    hidden = Lies(words={(real, *BAD): 1, (claimed, *BAD): INFINITY})
    play, _ = caught(scene, diverging(real), hidden)
    assert play.job.diverged_at == claimed
    assert (play.verdicts, convicted_at(play)) == ([("Convicted", 0, "element")], (Level.ELEMENT, real, *BAD))


@pytest.mark.parametrize("real,claimed", [(7, 5), (8, 1), (4, 3)])
def test_a_divergence_that_is_claimed_too_early(scene: Scene, real: int, claimed: int) -> None:
    play, _ = caught(scene, diverging(real), Lies(words={(claimed, *BAD): INFINITY}))
    assert (play.verdicts, convicted_at(play)) == ([("Convicted", 0, "element")], (Level.ELEMENT, claimed, *BAD))


LIES_BEFORE = {
    "a checkpoint": (word_lie(2, 1, 7), Level.RUN),
    "the partial segment": (word_lie(4, 1, 7), Level.SEGMENT),
    "the state before": (state_lie(4, 1, 7), Level.SEGMENT),
    "the step itself": (word_lie(5, 0, 7), Level.TRACE),
}


@pytest.mark.parametrize("where", LIES_BEFORE)
def test_a_right_divergence_with_a_lie_before_it(scene: Scene, where: str) -> None:
    """All three roots of the claim can be contested."""
    (lies, place), entry = LIES_BEFORE[where]
    play, auditor = caught(scene, diverging(5), lies)
    assert play.job.diverged_at == 5
    assert play.verdicts == [("Convicted", 0, "opening" if place[0] is Level.STATE else "element")]
    assert (convicted_at(play), play.dispute().entry) == (place, entry)
    assert play.paid(auditor) == SETUP.spec.auditor_bond + SETUP.spec.trainer_bond // 2


def test_the_right_step_with_another_word(scene: Scene) -> None:
    lies = Lies(shown={(5, 1, 131): NAN}, stop=Stop(5, 1, 131))
    play, _ = caught(scene, diverging(5), lies)
    assert (play.verdicts, convicted_at(play)) == ([("Convicted", 0, "element")], (Level.ELEMENT, 5, 1, 131))


def test_padding_of_the_partial_segment(scene: Scene) -> None:
    """I11."""
    setup = diverging(6)
    play, _ = caught(scene, setup, Forged(setup, {(Tree_.SEGMENT, 2, 3): JUNK}))
    assert play.verdicts == [("Convicted", 0, "opening")]
    assert (convicted_at(play)[0], play.dispute().entry) == (Level.SEGMENT, Level.SEGMENT)


@pytest.mark.parametrize("case", [word_lie(2, 1, 7), word_lie(4, 1, 7), word_lie(5, 2, 7)], ids=name)
def test_false_accusations_of_a_diverged_claim(scene: Scene, case: Case) -> None:
    play = scene.claimed(diverging(5))
    play.run_to_end(play.trainer, play.auditor(case[0], Mistaken))
    check_dismissal(play, "element")
