"""A chain with a price of gas, and what an account gains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from frauds import SETUP as FREE
from frauds import SUM, word_lie
from scene import ETHER, Play, Scene, fast_scene

from vgame.chain.records import Phase
from vgame.dispute.auditor import Auditor

FEE = ETHER // 50 + 1
SETUP = replace(FREE, terms={"fee": FEE})
SPEC = SETUP.spec
LIE = word_lie(6, SUM, 4, 1)[0]
FIRST = word_lie(3, SUM, 4, 1)[0]  # in the first checkpoint: nothing is left of it
PRICE = 1000 * 2**14  # in wei; it has 16 bits
MOVE = 50_000 * PRICE
POOL = SPEC.trainer_bond // 2


@pytest.fixture(scope="module")
def deployed_scene() -> Scene:
    """A game that sees a base fee."""
    scene = fast_scene()
    scene.chain.node.show_base_fee(scene.address)
    return scene


@pytest.fixture(autouse=True)
def a_price_of_gas(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.chain.node, "base_fee", PRICE)


def gained(play: Play, player: Auditor) -> int:
    """What a player has beyond its bonds and fees."""
    return play.paid(player) - SPEC.stake * sum(d.auditor == player.address for d in play.disputes())


def rounds(play: Play) -> Iterator[int]:
    """Until the claim is convicted."""
    for number in range(100):
        if play.phase is not Phase.CLAIMED:
            return
        yield number
    raise AssertionError("no conviction")


def stipend(play: Play, number: int) -> int:
    return (play.dispute(number).moves + 2) * MOVE
