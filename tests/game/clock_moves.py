"""A claim with a lie, and moves up to a certain second of a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from scene import Call, Scene

from vgame.chain.game import Game
from vgame.errors import ContractError


def at(scene: Scene, time: int) -> None:
    """The next transaction is in a block of this time."""
    assert time > scene.chain.now()
    scene.chain.node.next_time = time


@contextmanager
def branch(scene: Scene) -> Iterator[None]:
    """Context whose effects on the chain are undone."""
    node, ghost = scene.chain.node, scene.ghost
    point, memory = node.snapshot(), ghost.memory()
    yield
    node.revert(point)
    ghost.remember(memory)


def refused(call: Call, game: Game, error: str, *args: object) -> None:
    with pytest.raises(ContractError) as caught:
        call.send(game)
    assert (caught.value.name, caught.value.args_) == (error, args)
