"""Trees with content that is invalid or cannot be opened: a side that commits to them loses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import HONEST, JUNK, SETUP, Bluffer
from outcomes import Forged, caught, check_conviction, convicted_at, forced
from scene import Scene
from toy import ToyMachine

from vgame.chain.game import Game
from vgame.chain.records import Level
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import Tree, padding
from vgame.dispute.trainer import Trainer


class Bare(Trainer):
    """A machine with its trees only."""

    def __init__(self, machine: ToyMachine) -> None:
        self.machine = machine


class PaddedRun(Bluffer):
    """A trainer that claims the right final state under a run tree with content behind the last checkpoint."""

    def run_tree(self) -> Tree:
        return covered(Tree_.RUN, super().run_tree().levels[0], JUNK)


class Covering(Bluffer):
    """A trainer with other trees than its machine's: step or checkpoint, operator -> tree."""

    def __init__(self, game: Game, job: bytes, machine: ToyMachine, trees: dict[tuple[int, int], Tree]) -> None:
        super().__init__(game, job, machine, {"openLeaf"})
        self.trees = trees

    def segment_tree(self, checkpoint: int) -> Tree:
        return self.trees.get((checkpoint, -1)) or super().segment_tree(checkpoint)

    def tensor_tree(self, step: int, operator: int) -> Tree:
        return self.trees.get((step, operator)) or super().tensor_tree(step, operator)


def covered(kind: Tree_, leaves: list[bytes], *more: bytes) -> Tree:
    """A tree with a stated number of `leaves`, and more content behind them."""
    tree = Tree(kind, [*leaves, *more])
    tree.count = len(leaves)
    return tree


def test_padding_of_the_run_tree(scene: Scene) -> None:
    """I11."""
    check_conviction(caught(scene, SETUP, None, PaddedRun), "opening", (Level.RUN, 0, 0, 3))


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
    """I11: the last segment has three states, and a fourth leaf below a child that is not all padding. The lie is seen
    once the segment is posted. Children that are all padding cannot be posted at all."""
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
    "first word": (b"\1", (Level.ELEMENT, 600)),
    "last word": (bytes(4 * 39) + b"\1", (Level.ELEMENT, 639)),
    "a leaf of zeros": (bytes(4 * 41), (Level.TENSOR, 5)),
}


@pytest.mark.parametrize("where", PADDED_WORDS)
@pytest.mark.parametrize("carried", [False, True])
def test_padding_of_a_tensor(scene: Scene, where: str, carried: bool) -> None:
    """I11, in a state (that the trace agrees with), and only in a trace."""
    words, (level, index) = PADDED_WORDS[where]
    machine = Forged(SETUP, words={(6, 0): words}, carried=carried)
    played = caught(scene, SETUP, machine) if carried else forced(scene, SETUP, machine, 6)
    check_conviction(played, "opening", (level, 6, 0, index), Level.RUN if carried else Level.TRACE)
    assert played[0].client.verdict(played[0].id).height == 0


@pytest.mark.parametrize("leaf,named", [(5, (0, 5)), (6, (1, 3)), (7, (1, 3))])
def test_padding_leaves_of_a_tensor(scene: Scene, leaf: int, named: tuple[int, int]) -> None:
    """I11: a leaf of a pair with content, or the highest node over padding alone."""
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
def test_a_checkpoint_that_cannot_be_opened(scene: Scene, step: int, content: str) -> None:
    """Its segment can be posted, since the contract sees hashes only; the state in it cannot be revealed."""
    machine = Forged(SETUP, roots={step: UNOPENABLE[content]})
    check_conviction(caught(scene, SETUP, machine, Bluffer), "timeout", (Level.STATE, step, 0, 0))


@pytest.mark.parametrize("step", [4, 5, 7])
def test_a_state_between_checkpoints_that_cannot_be_opened(scene: Scene, step: int) -> None:
    machine = Forged(SETUP, roots={step: JUNK})
    played = forced(scene, SETUP, machine, step + 1, Bluffer)
    check_conviction(played, "timeout", (Level.STATE, step, 0, 0), Level.SEGMENT)


@pytest.mark.parametrize("tensor", [0, 2, 5])
def test_a_state_tensor_that_cannot_be_opened(scene: Scene, tensor: int) -> None:
    """The trace does not end in it: its own move convicts. If the trace contains it too, no side can continue."""
    leaves = {(Tree_.STATE, 6, tensor): JUNK}
    check_conviction(caught(scene, SETUP, Forged(SETUP, leaves), Bluffer), "opening", (Level.STATE, 6, 0, tensor))
    if tensor < 5:
        played = caught(scene, SETUP, Forged(SETUP, leaves | {(Tree_.TRACE, 6, tensor): JUNK}), Bluffer)
        check_conviction(played, "timeout", (Level.TENSOR, 6, tensor, 0))


def test_a_leaf_that_cannot_be_opened(scene: Scene) -> None:
    tree = covered(Tree_.TENSOR, [*Trainer.tensor_tree(Bare(HONEST), 6, 1).levels[0][:2], JUNK])
    machine = Forged(SETUP, {(Tree_.STATE, 6, 1): tree.root, (Tree_.TRACE, 6, 1): tree.root})
    played = caught(scene, SETUP, machine, Covering, trees={(6, 1): tree})
    check_conviction(played, "timeout", (Level.TENSOR, 6, 1, 2))


@pytest.mark.parametrize("step", [6, 8])
def test_a_repeated_checkpoint(scene: Scene, step: int) -> None:
    """Steps are skipped and the state is copied: it can be opened down to the tensor, in which the step's trace does
    not end."""

    class Lazy(Forged):
        def state(self, step_: int) -> list[bytes]:
            return super().state(3 if step_ == step else step_)

    check_conviction(caught(scene, SETUP, Lazy(SETUP)), "opening", (Level.STATE, step, 0, 0))
