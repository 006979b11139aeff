"""The time at which the key is revealed, by a node's finality."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from exchange import DELIVERY, KEY_WINDOW
from scene import Scene
from test_delivery_agents import Sides

from vgame.chain import final
from vgame.chain.final import MOMENT
from vgame.chain.records import Phase
from vgame.delivery import looks
from vgame.delivery.rules import WORST_INCLUSION
from vgame.errors import ChainError

LATEST = KEY_WINDOW - min(WORST_INCLUSION, KEY_WINDOW // 2)  # seconds after the confirmation


@pytest.fixture
def sides(scene: Scene, tmp_path: Path) -> Sides:
    sides = Sides(scene, tmp_path)
    sides.claim()
    return sides


@pytest.fixture
def finalized(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Set the node's answer to a query for the finalized block."""
    monkeypatch.setattr(scene.chain, "is_development", False)
    for module in (final, looks):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=scene.chain.now))

    def set_answer(answer: Callable[[], Any]) -> None:
        usual = scene.chain.node.methods["eth_getBlockByNumber"]
        monkeypatch.setitem(
            scene.chain.node.methods,
            "eth_getBlockByNumber",
            lambda number, full=False: answer() if number == "finalized" else usual(number, full),
        )

    return set_answer


def http(status: int) -> Callable[[], Any]:
    def fail() -> Any:
        response = requests.Response()
        response.status_code = status
        raise requests.HTTPError("for url http://127.0.0.1/v3/secret", response=response)

    return fail


def key_after(sides: Sides) -> int:
    """Seconds between the beginning of the key window and the key; the trainer looks every 10."""
    begun = sides.game.exchange(sides.play.id).key_from
    for _ in range(400):
        with suppress(ChainError):
            sides.trainer.step()
        if sides.play.phase is not Phase.DELIVERING:
            assert sides.play.phase is Phase.REVEALED
            return sides.game.exchange(sides.play.id).key_at - begun
        sides.play.advance(10)
    raise AssertionError(sides.play.phase)


@pytest.mark.parametrize("confirmed", [True, False])
def test_late_finality_does_not_delay_the_key_beyond_its_window(sides: Sides, finalized, confirmed: bool) -> None:
    """Otherwise reward and bond would be lost."""
    long_ago = sides.play.scene.chain.node.blocks[1]
    finalized(lambda: long_ago)
    if confirmed:
        assert sides.receive() is None
    assert LATEST <= key_after(sides) <= LATEST + 30
    assert sides.receive() is not None
    sides.until(Phase.FINAL)
    assert sides.game.credits(sides.trainer.address) == DELIVERY.spec.reward + DELIVERY.spec.trainer_bond


@pytest.mark.parametrize("answer", [http(400), http(403), lambda: None, lambda: {"number": "0x1"}, lambda: "no"])
def test_a_node_without_finality(sides: Sides, finalized, answer: Callable[[], Any]) -> None:
    """For every way in which the node refuses the query."""
    finalized(answer)
    assert KEY_WINDOW // 2 <= key_after(sides) <= KEY_WINDOW // 2 + 30


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_that_fails_at_the_query_for_finality(sides: Sides, finalized, status: int) -> None:
    """The failure may be temporary, so nothing is taken for final; at the latest moment the newest blocks decide."""
    finalized(http(status))
    assert LATEST + MOMENT <= key_after(sides) <= LATEST + MOMENT + 30


def test_no_key_before_the_newest_block_shows_the_confirmation(sides: Sides, finalized) -> None:
    """Not even if a node declares every block final."""
    future = sides.play.scene.chain.node.blocks[-1] | {"timestamp": hex(2**40)}
    finalized(lambda: future)
    sides.play.advance(DELIVERY.spec.confirm_window - 10 - (sides.play.scene.chain.now() - sides.play.job.since))
    begun = sides.game.exchange(sides.play.id).key_from
    while sides.play.scene.chain.now() < begun:
        assert not sides.trainer.step()
        sides.play.advance(1)
    assert KEY_WINDOW // 2 <= key_after(sides) <= KEY_WINDOW // 2 + 30
