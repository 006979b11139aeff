"""Every place at which a claim or an accusation can be false: the right side wins, at that very place. One table of
lies for both: a lie claimed by the trainer convicts it, a lie in an auditor's run gets it dismissed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import HONEST, SETUP, SUM, Bluffer, Case, Forcer, Mistaken, name, place_of, state_lie, word_lie, wrong_word
from outcomes import caught, check_conviction, check_dismissal, convicted_at, forced
from scene import WIDE, Scene, Setup
from toy import Kind, Lies, Operator, Program, State

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.records import Level, Phase, Status
from vgame.dispute.auditor import Auditor

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
    """I9: any account can prove that the trace does not end in the state."""
    check_conviction(caught(scene, SETUP, case[0]), "opening", case[1])


@pytest.mark.parametrize("tensor", [0, 2, SUM, 4])
def test_a_wrong_state_between_checkpoints_is_found_once_it_is_posted(scene: Scene, tensor: int) -> None:
    """These tensors are computed anew in each step, so no trace of the lie is left at the next checkpoint."""
    lies, place = state_lie(5, tensor, 0)
    check_conviction(forced(scene, SETUP, lies, 5), "opening", place, Level.SEGMENT)


@pytest.mark.parametrize("step", [1, 5, 8])
@pytest.mark.parametrize("operator", range(5))
def test_a_wrong_word_in_the_trace_only(scene: Scene, step: int, operator: int) -> None:
    element = WIDE.operators[operator].elements - 1
    lies = Lies(shown={(step, operator, element): wrong_word(step, operator, element)}, block=1)
    played = forced(scene, SETUP, lies, step)
    check_conviction(played, "element", place_of(step, operator, element, 1), Level.TRACE)


@pytest.mark.parametrize("step", [1, 5, 8])
def test_differences_outside_checkpoints_are_not_disputed(scene: Scene, step: int) -> None:
    """The claim is right; its trainer's posts in disputes of others cause no work for an auditor."""
    play = scene.claimed(SETUP, Lies(shown={(step, 1, 0): wrong_word(step, 1, 0)}))
    assert play.job.run_root == play.new_trainer().run_tree().root
    forcer, auditor = play.auditor(None, Forcer, step=step), play.auditor()
    assert play.run_to_end(play.trainer, forcer, auditor) is Phase.FINAL
    assert play.events("TracePosted") and play.paid(auditor) == 0
    assert {d.auditor for d in play.disputes()} == {forcer.address}


@pytest.mark.parametrize("tensor", [1, 5])
def test_another_initial_state_cannot_be_posted(scene: Scene, tensor: int) -> None:
    """I8: S_0 is the job's, so the first segment cannot be posted and the clock decides."""
    played = caught(scene, SETUP, Lies(initial={(tensor, 0): 0}), Bluffer)
    check_conviction(played, "timeout", (Level.RUN, 0, 0, 0, 0))
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
    check_conviction(caught(scene, setup, lies), "element", (Level.ELEMENT, 2, 0, 0, 0))


def test_frauds_that_cancel_out(scene: Scene) -> None:
    """The final state is right; a checkpoint on the way is not."""
    lies, place = word_lie(6, 0, 3)
    played = caught(scene, SETUP, lies)
    assert played[0].trainer.machine.checkpoints[-1] == HONEST.checkpoints[-1]
    check_conviction(played, "element", place)


def test_partial_sums_that_cancel_out(scene: Scene) -> None:
    """The word is right, two of its partial sums are not: an auditor that selects one wins. The auditor's mistake looks
    like the first."""
    play = scene.claimed(SETUP, Lies(partials={(8, SUM, 2): (1, 2)}))
    lies, _ = word_lie(8, SUM, 2, 1)
    auditor = play.auditor(lies, Mistaken)
    play.run_to_end(play.trainer, auditor)
    assert play.verdicts == [("Convicted", 0, "element")]
    assert convicted_at(play) == place_of(8, SUM, 2, 2)


# ---- silence ----

NULL_PROGRESS = {
    "reveal": ("timeout", (Level.RUN, 0, 0, 0, 0)),
    "postSegment": ("timeout", (Level.RUN, 0, 0, 1, 0)),
    "postTrace": ("timeout", (Level.SEGMENT, 3, 0, 3, 0)),
    "tie": ("timeout", (Level.STATE, 6, 0, SUM, 0)),
    "openLeaf": ("timeout", (Level.TENSOR, 6, SUM, 0, 0)),
    "postPartials": ("timeout", (Level.ELEMENT, 6, SUM, 4, 0)),
    "prove": ("element", (Level.PARTIAL, 6, SUM, 4, 0)),
}


@pytest.mark.parametrize("move", NULL_PROGRESS)
def test_silence_does_not_help(scene: Scene, move: str) -> None:
    """Before its last opening the trainer loses by the clock, after it by arithmetic."""
    lies, _ = state_lie(6, SUM, 4) if move == "tie" else word_lie(6, SUM, 4)
    play = scene.claimed(SETUP, lies, Bluffer, silent={move})
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    check_conviction((play, auditor), *NULL_PROGRESS[move])


# ---- false accusations ----


@pytest.mark.parametrize("case", WORDS, ids=name)
def test_a_mistaken_word_is_dismissed_by_arithmetic(scene: Scene, case: Case) -> None:
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(case[0], Mistaken))
    check_dismissal(play, "element")
    d = play.dispute()
    assert (d.level, d.step, d.operator, d.index, d.part) == case[1]


@pytest.mark.parametrize("case", STATES, ids=name)
def test_a_mistaken_state_is_dismissed(scene: Scene, case: Case) -> None:
    """By the trace leaf that becomes the tensor, or by the state before if the program leaves it unchanged."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(case[0], Mistaken))
    check_dismissal(play, "opening")
    d = play.dispute()
    assert (d.level, d.step, d.operator, d.index, d.part) == case[1]


def test_the_initial_state_cannot_be_contested(scene: Scene) -> None:
    """I11: the spec fixes this state. The auditor's first difference is S_0."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(Lies(initial={(1, 0): 0}), Mistaken))
    check_dismissal(play, "timeout")
    d = play.dispute()
    assert (d.level, d.index) == (Level.RUN, 0) and play.events("SegmentPosted")


@pytest.mark.parametrize("step", range(1, 9))
def test_accusers_without_a_reason_lose(scene: Scene, step: int) -> None:
    """A1, A2: on any path; the trainer gains from each accuser."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(None, FalseAccuser, step_wanted=step))
    assert play.phase is Phase.FINAL and play.dispute().status is Status.DISMISSED
    assert play.paid(play.trainer) > SETUP.spec.trainer_bond + SETUP.spec.reward


def test_an_idle_accuser_loses_by_its_clock(scene: Scene) -> None:
    """A3."""
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer, play.auditor(None, FalseAccuser, idle=True))
    check_dismissal(play, "timeout")


def test_an_honest_auditor_does_not_dispute_an_honest_claim(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    auditor = play.auditor()
    assert auditor.agrees()
    play.run_to_end(play.trainer, auditor)
    assert play.phase is Phase.FINAL and play.job.disputes == 0
    assert play.paid(play.trainer) == SETUP.spec.reward + SETUP.spec.trainer_bond


@pytest.mark.parametrize(("lies", "right"), [(word_lie(6, SUM, 4, 1)[0], False), (None, True)])
def test_a_verdict_by_blocks_contains_no_bits(scene: Scene, lies: Lies | None, right: bool) -> None:
    """The contract has computed one partial sum, not the word."""
    play = scene.claimed(SETUP, lies)
    auditor = play.auditor(None if lies else word_lie(6, SUM, 4, 1)[0], Auditor if lies else Mistaken)
    play.run_to_end(play.trainer, auditor)
    decided = play.events("Adjudicated", "PartialAdjudicated")
    assert [(name, a["operator"], a["element"], a["part"], a["right"]) for name, a in decided] == [
        ("PartialAdjudicated", SUM, 4, 1, right)
    ]
