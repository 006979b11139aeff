"""A signed move can reach another state than that of its decision: the contract refuses it, or it is harmless. Every
call of an honest player in some story of a small game is repeated at every state of every story. If the contract
accepts it, the game is played to its end, and honest players get exactly their due."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bearers import (
    ACCUSED,
    ACCUSED_AT_ITS_END,
    DIVERGING,
    FRAUDS,
    HONEST,
    SEGMENTS,
    SMALL,
    TRACES,
    Harm,
    Replay,
    Stage,
    Story,
    auditor,
    cheat,
    flipped,
    record,
    trainer,
)
from clock_moves import branch, refused
from frauds import Bluffer, Forcer
from revm_calls import ENTRIES
from scene import Call, Play, Scene, Setup
from toy import INFINITY, Lies
from wide import of_many

from vgame.chain.records import Level
from vgame.commit.merkle import Kind, Tree


@pytest.fixture(autouse=True)
def free_gas(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gas is free on this chain; its price is read at every look."""
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (0, 0))


X, Y = (auditor(Lies(words=flipped(step, 1, 7))) for step in (3, 4))
STEPS = [
    Story("two steps", players | {"trainer": trainer()}, turns=False)
    for players in ({"X": X, "Y": Y}, {"Y": Y, "X": X})
]
BOTH_TRACES = [Story(name, HONEST | {"trainer": trainer(machine, Bluffer)}) for name, machine in TRACES.items()]
BOTH_SEGMENTS = [
    Story(name, {"trainer": trainer(machine, Bluffer), "X": auditor(cls=Forcer, step=2)} | HONEST, turns=False)
    for name, machine in SEGMENTS.items()
]

# ---- moves that would be harmful at another state, one by one ----


def test_a_trace_is_accepted_at_its_own_step_only(scene: Scene) -> None:
    """Two accomplices contest two steps of one segment; after the trainer's signature a reorganisation swaps their
    blocks."""
    stage, (before, after) = Stage(scene, SMALL), STEPS
    with branch(scene):
        signed = stage.until(before, "postTrace")
        assert [d.step + d.index for d in stage.play.disputes()] == [3, 4]
    stage.until(after, "postTrace")
    here = stage.play.dispute(signed.args[1])
    assert [d.step + d.index for d in stage.play.disputes()] == [4, 3]
    refused(signed, stage.games["trainer"], "Elsewhere", here.position, signed.args[2])
    stage.run(after)
    stage.judge(after)
    posts = [stage.play.client.trace_root(stage.play.id, step) for step in (3, 4)]
    assert posts == [Tree(Kind.TRACE, SMALL.honest.trace(step)).root for step in (3, 4)]


def test_a_selection_of_a_state_is_bound_to_the_trace_that_was_read(scene: Scene) -> None:
    """With the honest trace, the state is wrong; with the trace that fits the state, the trace is wrong."""
    stage, (own, right) = Stage(scene, SMALL), BOTH_TRACES
    with branch(scene):
        signed = stage.until(right, "selectState")
    stage.until(own, "selectOperator")
    here = stage.play.client.trace_root(stage.play.id, 3)
    assert stage.play.dispute(0).position == signed.args[2] and here != signed.args[3]
    refused(signed, stage.games["auditor"], "BadProof", signed.args[3], here)
    stage.run(own)
    stage.judge(own)


def test_a_selection_of_a_trace_is_bound_to_the_segment_that_was_read(scene: Scene) -> None:
    """The trace is wrong below the right segment, and right below another one."""
    stage, (right, other) = Stage(scene, SMALL), BOTH_SEGMENTS
    with branch(scene):
        signed = stage.until(right, "challenge")
        read = stage.play.client.segment_root(stage.play.id, 1)
    assert signed.args[1] == Level.TRACE and stage.until(other, "challenge").args[1] == Level.SEGMENT
    assert stage.play.client.trace_root(stage.play.id, 2) == signed.args[3]
    refused(signed, stage.games["auditor"], "BadProof", read, stage.play.client.segment_root(stage.play.id, 1))
    stage.run(other)
    stage.judge(other)


def test_a_challenge_names_the_step_of_divergence(scene: Scene) -> None:
    """Two claims have the same run root and end at different steps."""
    stage = Stage(scene, SMALL)
    early = flipped(1, 1, 128)
    three, four = (
        Story("ends", {"trainer": cheat(Lies(words=early | {(step, 1, 0): INFINITY}))} | HONEST) for step in (3, 4)
    )
    with branch(scene):
        signed = stage.until(four, "challenge")
        root = stage.play.job.run_root
    stage.until(three, "challenge")
    assert signed.args[1] == Level.RUN and stage.play.job.run_root == root
    refused(signed, stage.games["auditor"], "WrongDivergence", 3, 4)
    stage.run(three)
    stage.judge(three)


# ---- all of them ----

BASES = {
    "an honest trainer": (SMALL, ACCUSED),
    "an honest trainer whose run diverged": (DIVERGING, ACCUSED_AT_ITS_END),
    "an honest auditor": (SMALL, FRAUDS),
}


def replayed(
    scene: Scene,
    setup: Setup,
    stories: list[Story],
    singly: bool = False,
    altered: Callable[[Play, Call], Call] = lambda play, call: call,
) -> list[Replay]:
    stage = Stage(scene, setup)
    signed = record(stage, stories)
    replays = [Replay(stage, story, signed, altered, singly) for story in stories]
    for replay in replays:
        replay.run()
        print(f"{replay.story.name}: {replay.states} states, {replay.refused} refused, {replay.accepted}")
    return replays


@pytest.mark.parametrize("base", of_many(BASES, "an honest trainer whose run diverged"))
def test_every_call_of_an_honest_player_at_every_other_state(scene: Scene, base: str) -> None:
    replays = replayed(scene, *BASES[base])
    assert all(r.states > 10 and r.refused > 50 for r in replays)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("base", BASES)
def test_every_single_opening_at_every_other_state(scene: Scene, base: str) -> None:
    """Openings are stored by content; otherwise a player makes all remaining ones at once."""
    replayed(scene, *BASES[base], singly=True)


# ---- contracts with fewer checks ----


def without_position(play: Play, call: Call) -> Call:
    """The call for a contract that does not compare positions."""
    named = [i["name"] for i in ENTRIES[call.name]["inputs"]][2:3] == ["place"]
    return call.but(2, play.dispute(call.args[1]).position) if named else call


def without_trace(play: Play, call: Call) -> Call:
    """The call for a contract that does not compare the trace of a `selectState`."""
    if call.name != "selectState":
        return call
    d = play.dispute(call.args[1])
    step = d.step + (d.index if d.level is Level.SEGMENT else 0)
    return call.but(3, play.client.trace_root(play.id, step) or bytes(32))


def without_basis(play: Play, call: Call) -> Call:
    """The call for a contract that does not compare the other fields of a challenged root."""
    if call.name != "challenge" or call.args[1] != Level.TRACE:
        return call
    segment = play.client.segment_root(play.id, (call.args[2] - 1) // play.setup.interval + 1) or bytes(32)
    return call.but(4, (play.job.diverged_at, segment, bytes(32)))


@pytest.mark.parametrize(
    ("altered", "stories"), [(without_position, STEPS), (without_trace, BOTH_TRACES), (without_basis, BOTH_SEGMENTS)]
)
def test_the_named_target_makes_a_move_harmless(
    scene: Scene, altered: Callable[[Play, Call], Call], stories: list[Story]
) -> None:
    """Damaged twins: with fewer checks in the contract, an honest player loses in some story."""
    replayed(scene, SMALL, stories)
    with pytest.raises(Harm):
        replayed(scene, SMALL, stories, altered=altered)
