"""Views with times, and lists page by page: all data for decisions without a scan of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from frauds import LIE, SETUP, SUM
from scene import Play, Scene, due
from toy import INFINITY, Lies, Special

import vgame.chain.game
from vgame.chain.records import Level, Position, Post
from vgame.commit.merkle import Kind, Tree, leaf_hash

NOTHING = Post(bytes(32), bytes(32), 0)


def pages(view: Callable[[int, int], Any], total: int) -> None:
    """Any page of any size is that part of the whole list, with the number of all."""
    whole, count = view(0, 2**256 - 1)
    assert count == total == len(whole)
    for first in (0, 1, total - 1, total, total + 1, 2**256 - 1):
        for size in (0, 1, 2, total, 2**256 - 1):
            found, count = view(first, size)
            assert (list(found), count) == (list(whole)[first : first + size], total)


def test_the_orders_of_a_client_page_by_page(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    wallet, other = scene.wallet(), scene.post(SETUP)
    game = scene.game(wallet)
    assert game.orders_of(wallet.address) == []
    plays = [scene.post(SETUP, wallet) for _ in range(5)]
    pages(lambda first, count: game._call("ordersOf", wallet.address, first, count), 5)
    for size in (1, 2, 5, 200):
        monkeypatch.setattr(vgame.chain.game, "PAGE", size)
        assert game.orders_of(wallet.address) == [p.id for p in plays]
    assert game.orders_of(other.client.wallet.address) == [other.id]


def test_the_claims_of_a_program_in_the_order_of_the_claims(scene: Scene) -> None:
    """An order without a claim is not listed; a conviction changes nothing."""
    view, root = scene.game(), SETUP.program.root
    special = replace(SETUP, program=replace(SETUP.program, specials=(Special(5, 1, 0, 1),)))
    first, second, silent = scene.post(SETUP), scene.post(SETUP), scene.post(SETUP)
    foreign = scene.claimed(special)
    for play in (second, first):
        play.trainer = play.new_trainer(LIE if play is second else None)
        play.trainer.accept()
        play.trainer.claim()
    silent.new_trainer().accept()
    third = scene.claimed(SETUP, Lies(words={(5, 1, 130): INFINITY}))
    auditor = second.auditor()
    second.run_to_end(second.trainer, auditor)
    assert view.claims_of(root) == [second.id, first.id, third.id]
    assert view.claims_of(special.program.root) == [foreign.id] and view.claims_of(bytes(32)) == []
    pages(lambda first, count: view._call("claimsOf", root, first, count), 3)


def played(scene: Scene, until: str) -> tuple[Play, dict[str, int]]:
    """A dispute up to a move, and the second of each kind of call."""
    play, times = scene.claimed(SETUP, LIE), {}
    auditor = play.auditor()
    for _ in range(60):
        for player in (auditor, play.trainer):
            if (call := due(player)) and call.name == until:
                return play, times
            if call:
                play.advance(7)
                call.send(player.game)
                times[call.name] = scene.chain.now()
    raise AssertionError(until)


def test_posted_roots_and_their_times(scene: Scene) -> None:
    play, times = played(scene, "prove")
    game, d, trainer = play.client, play.dispute(), play.trainer
    segment = Post(trainer.segment_tree(2).root, bytes(32), times["postSegment"])
    assert game.posts(play.id, Level.SEGMENT, [1, 2, 3, 2**255]) == [NOTHING, segment, NOTHING, NOTHING]
    trace = Post(trainer.trace_tree(6).root, bytes(32), times["postTrace"])
    assert game.posts(play.id, Level.TRACE, [6, 5, 6]) == [trace, NOTHING, trace]
    leaves = [leaf_hash(Kind.PARTIAL, p) for p in trainer.machine.partials(6, SUM, 4)]
    element = replace(d, level=Level.ELEMENT, part=0)
    partials = Post(Tree(Kind.PARTIAL, leaves).root, bytes(32), times["postPartials"])
    assert game.posts(play.id, Level.ELEMENT, [element.position, d.position]) == [partials, NOTHING]
    assert game.posts(play.id, Level.ELEMENT, []) == []
    other = scene.claimed(SETUP, LIE)
    assert other.client.posts(other.id, Level.SEGMENT, [2]) == [NOTHING]


def test_roots_of_a_diverged_claim_have_the_time_of_the_claim(scene: Scene) -> None:
    play = scene.claimed(SETUP, Lies(words={(5, 1, 130): INFINITY}))
    claimed, trainer = play.job.claimed_at, play.trainer
    assert claimed == scene.chain.now()
    play.advance(50)
    found = [play.client.posts(play.id, *place)[0] for place in ((Level.SEGMENT, [2]), (Level.TRACE, [5]))]
    assert found == [Post(tree.root, bytes(32), claimed) for tree in (trainer.segment_tree(2), trainer.trace_tree(5))]


@pytest.mark.parametrize("until", ["select", "selectElement", "selectPartial"])
def test_times_of_the_openings_a_dispute_waits_for(scene: Scene, until: str) -> None:
    """A second dispute at the same place has the same time, although it began later."""
    play, times = played(scene, until)
    opening = {"select": "reveal", "selectElement": "openLeaf", "selectPartial": "postPartials"}
    first, after = play.client.disputes(play.id)[0], scene.chain.now()
    assert first.opened_at == times[opening[until]] == after
    if until != "select":
        return
    play.advance(30)
    second = play.auditor()
    due(second).send(second.game)
    late = play.client.disputes(play.id)[1]
    assert (late.opened_at, late.dispute.turn_at) == (first.opened_at, scene.chain.now())
    call = due(second)
    call.send(second.game)
    assert play.client.disputes(play.id)[1].opened_at == 0  # the segment is not posted yet


def test_every_selection_names_its_position(scene: Scene) -> None:
    """For a partial sum, its number too."""
    play, _ = played(scene, "prove")
    places = [a["place"] for _, a in play.events("Selected")]
    d = play.dispute()
    element = replace(d, level=Level.ELEMENT, part=0)
    assert (d.level, d.part > 0, places[-2:]) == (Level.PARTIAL, True, [element.position, d.position])
    assert [Position.of(place).level for place in places] == sorted(Position.of(place).level for place in places)
    assert play.events("Selected")[-1][1]["node"] == d.node


@pytest.mark.parametrize(
    "place",
    [
        Position(Level.PARTIAL, 255, 255, 2**24 - 1, 2**32 - 1, 2**40 - 1),
        Position(Level.RUN, 0, 0, 0, 0, 0),
        Position(Level.TENSOR, 3, 7, 5, 9, 2**39),
    ],
)
def test_a_position_is_one_word(place: Position) -> None:
    assert Position.of(place.word) == place and place.word < 2**120


def test_times_of_a_job(scene: Scene) -> None:
    """No later call overwrites one."""
    play = scene.post(SETUP)
    times = [scene.chain.now()]
    play.trainer = play.new_trainer()
    for move in (play.trainer.accept, play.trainer.claim):
        play.advance(10)
        move()
        times.append(scene.chain.now())
    play.pass_window()
    play.run_to_end(play.trainer)
    job = play.job
    assert [job.created_at, job.accepted_at, job.claimed_at] == times
    assert (job.nonce, job.name) == (scene.nonce, "a toy job")
