"""All openings of a dispute are found by their timestamp in the state, on each chain."""

from __future__ import annotations

from typing import Any

import pytest
from frauds import SETUP, SUM, word_lie
from scene import Scene

from vgame.chain.records import Event, Level
from vgame.commit.merkle import Kind, leaf_hash
from vgame.errors import NotYet


def test_contents_of_a_dispute(scene: Scene) -> None:
    play = scene.claimed(SETUP, word_lie(6, SUM, 4, 1)[0])
    play.run_to_end(play.trainer, play.auditor())
    game, seen = play.client, set()
    segments, traces = ((level, range(1, 8)) for level in (Level.SEGMENT, Level.TRACE))
    posted = {post.root: post.at for kind, where in (segments, traces) for post in game.posts(play.id, kind, where)}
    for name, args in play.events("Revealed", "LeafOpened"):
        level, height = (args["kind"], args["height"]) if name == "Revealed" else (Level.TENSOR, 0)
        time = game.opened(play.id, level, height, args["node"]) or posted[args["node"]]

        def check(event: Event, args: dict[str, Any] = args) -> dict[str, Any] | None:
            return event.args if event.args == args else None

        assert game.content(name, play.id, time, check, args["node"], key=(level, height)) == args
        with pytest.raises(NotYet):
            game.content(name, play.id, time + 1, check, args["node"])
        if name == "LeafOpened":
            assert leaf_hash(Kind.TENSOR, args["words"]) == args["node"]
        seen.add(name)
    job = game.job(play.id)
    assert game.content("ClaimPosted", play.id, job.claimed_at, lambda e: e.args["runRoot"]) == job.run_root
    assert game.content("JobCreated", play.id, job.created_at, lambda e: e.args["client"]) == job.client
    assert seen == {"Revealed", "LeafOpened"}
