"""Claims "diverged": right ones are paid as agreed, false, hidden, early and late ones convict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import JUNK, SETUP, Case, Mistaken, name, state_lie, word_lie
from outcomes import Forged, caught, check_conviction, check_dismissal, convicted_at, prize
from scene import WIDE, Scene, Setup
from toy import INFINITY, NAN, Lies, Special, Stop

from vgame.chain.records import Level, Phase
from vgame.commit.merkle import Kind as Tree_

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
def test_a_challenger_of_a_true_divergence_loses(scene: Scene, step: int) -> None:
    play = scene.claimed(diverging(step))
    play.run_to_end(play.trainer, play.auditor(Lies(words={(step, *BAD): 1}), Mistaken))
    check_dismissal(play, "element")
    d = play.dispute()
    assert (d.level, d.step, d.operator, d.index) == (Level.ELEMENT, step, *BAD)


@pytest.mark.parametrize("step", ENDS)
def test_a_false_divergence(scene: Scene, step: int) -> None:
    """The claim's own trace holds the non-finite word, and that word is wrong."""
    played = caught(scene, SETUP, Lies(words={(step, *BAD): INFINITY}))
    assert played[0].job.diverged_at == step
    (play, auditor) = played
    assert play.verdicts == [("Convicted", 0, "element")] and play.dispute().entry is Level.TRACE
    assert convicted_at(play) == (Level.ELEMENT, step, *BAD, 0)
    assert play.paid(auditor) == SETUP.spec.stake + prize(SETUP.spec, "element")


@pytest.mark.parametrize("step", ENDS)
def test_a_hidden_divergence(scene: Scene, step: int) -> None:
    """The claim continues after the word with right arithmetic: the word itself convicts."""
    played = caught(scene, diverging(step), Lies(endless=True))
    assert played[0].job.diverged_at == 0
    check_conviction(played, "opening", (Level.ELEMENT, step, *BAD, 0))


@pytest.mark.parametrize("step", ENDS)
def test_a_divergence_replaced_by_a_finite_word(scene: Scene, step: int) -> None:
    """Also in the last step; the auditor has no state after it."""
    played = caught(scene, diverging(step), Lies(words={(step, *BAD): 1}))
    check_conviction(played, "element", (Level.ELEMENT, step, *BAD, 0))


@pytest.mark.parametrize("real,claimed", [(5, 7), (5, 6), (3, 4), (2, 8)])
def test_a_divergence_claimed_too_late(scene: Scene, real: int, claimed: int) -> None:
    """With the word shown in the trace, or replaced by a finite one."""
    shown = Lies(words={(claimed, *BAD): INFINITY}, stop=Stop(claimed, *BAD))
    play, _ = caught(scene, diverging(real), shown)
    assert (play.verdicts, convicted_at(play)[:3]) == (
        [("Convicted", 0, "opening")],
        (Level.ELEMENT, real, BAD[0]),
    )
    hidden = Lies(words={(real, *BAD): 1, (claimed, *BAD): INFINITY})
    play, _ = caught(scene, diverging(real), hidden)
    assert play.job.diverged_at == claimed
    assert (play.verdicts, convicted_at(play)) == ([("Convicted", 0, "element")], (Level.ELEMENT, real, *BAD, 0))


@pytest.mark.parametrize("real,claimed", [(7, 5), (8, 1), (4, 3)])
def test_a_divergence_claimed_too_early(scene: Scene, real: int, claimed: int) -> None:
    play, _ = caught(scene, diverging(real), Lies(words={(claimed, *BAD): INFINITY}))
    assert (play.verdicts, convicted_at(play)) == ([("Convicted", 0, "element")], (Level.ELEMENT, claimed, *BAD, 0))


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
    assert play.paid(auditor) == SETUP.spec.stake + prize(SETUP.spec, "element")


def test_the_right_step_with_another_word(scene: Scene) -> None:
    lies = Lies(shown={(5, 1, 131): NAN}, stop=Stop(5, 1, 131))
    play, _ = caught(scene, diverging(5), lies)
    assert (play.verdicts, convicted_at(play)) == ([("Convicted", 0, "element")], (Level.ELEMENT, 5, 1, 131, 0))


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
