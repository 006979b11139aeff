"""Old events are read again, some ranges at a time, and kept if that fails."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from frauds import SETUP
from providers import RANGE, Provider, Truth, pass_blocks, truth
from proxy import Request
from web3 import Web3

from vgame.chain import events
from vgame.chain.events import Block, Events
from vgame.errors import EndpointError, VgameError


def test_a_search_backwards_continues_after_an_outage(provider: Provider, born: int) -> None:
    """One request in ten fails: a search that started again each time would not reach an early opening."""
    game, honest = provider.game(), provider.answer
    jobs, topics = provider.jobs(game), (Web3.to_hex(game._topic("JobCreated")),)
    left = [0]

    def fails(query: Request, truth: Truth) -> Request:
        left[0] -= query["method"] == "eth_getLogs"
        away = query["method"] == "eth_getLogs" and left[0] < 0
        return {"error": {"code": -32000, "message": "away"}} if away else honest(query, truth)

    provider.handler.lie = staticmethod(fails)
    looks, found = 0, []
    while not found and looks <= provider.ranges:
        looks, left[0], game._events.range = looks + 1, 3, RANGE
        with suppress(VgameError):
            found = game._events.find(topics, born, {"job": jobs[0]})
    assert [e.args["job"] for e in found] == [jobs[0]] and looks > 1


def test_missing_data_are_searched_for_again(provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs lag. Some ranges are searched at a time, and the last block of a long search must be available."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Events, "AGAIN", 1)
    game = provider.game()
    jobs, topics = provider.jobs(game), (Web3.to_hex(game._topic("JobCreated")),)
    nothing = lambda query, truth: {"result": []} if query["method"] == "eth_getLogs" else honest(query, truth)  # noqa: E731
    provider.handler.lie = staticmethod(nothing)
    assert game._events.find(topics, born, {"job": jobs[0]}) == []
    provider.handler.lie = staticmethod(honest)
    now[0] = Events.TRUSTED - 1.0
    assert game._events.find(topics, born, {"job": jobs[0]}) == []
    now[0] += 2.0
    looks = 0
    while not (found := game._events.find(topics, born, {"job": jobs[0]})):
        looks += 1
        assert looks <= provider.ranges
    assert found[0].args["job"] == jobs[0] and looks >= 2


def test_old_ranges_are_read_again_in_small_parts(
    provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading all at once would delay a move by a scan of the whole chain, once an hour. Unused entries are dropped."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Events, "AGAIN", 1)
    game = provider.game()

    def lags(query: Request, truth: Truth) -> Request:
        text = honest(query, truth)
        return text | {"result": []} if query["method"] == "eth_getLogs" and provider.requested[-1][0] == born else text

    provider.handler.lie = staticmethod(lags)
    known = provider.jobs(game)  # without the jobs of the first range
    game.events("ClaimPosted")
    provider.handler.lie = staticmethod(honest)
    everything = truth(provider)
    assert len(known) < len(everything)
    now[0] = Events.TRUSTED - 1.0
    assert provider.jobs(game) == known
    now[0] += 2.0
    looks = 0
    while (found := provider.jobs(game)) == known:
        looks += 1
        assert len(provider.requested) <= 4 and looks <= provider.ranges
    assert found == everything and looks >= 2
    game.events("ClaimPosted")
    now[0] += Events.TRUSTED + 1.0  # an outage: no request was possible
    provider.jobs(game)
    assert len(game._events._past) == 2
    for _ in range(2):
        now[0] += Events.TRUSTED + 1.0
        provider.jobs(game)
    assert len(game._events._past) == 1


@pytest.mark.parametrize("name", ["read", "find"])
def test_unreadable_values_are_kept(provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An auditor must still read new events an hour after its start if an endpoint keeps no old logs."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    game, tried = provider.game(), [0]
    known, topics = provider.jobs(game), (Web3.to_hex(game._topic("JobCreated")),)
    assert game._events.find(topics, born, {"job": bytes(32)}) == []
    bound = provider.scene.chain.web3.eth.block_number - 2 * RANGE

    def pruned(query: Request, truth: Truth) -> Request:
        if query["method"] == "eth_getLogs" and int(query["params"][0]["fromBlock"], 16) < bound:
            tried[0] += 1
            return {"error": {"code": -32000, "message": "history of that block is not available"}}
        return honest(query, truth)

    provider.handler.lie = staticmethod(pruned)
    now[0] += Events.TRUSTED + 1.0
    young = provider.scene.post(SETUP).id
    if name == "read":
        look = lambda: provider.jobs(game) == [*known, young]  # noqa: E731
    else:
        look = lambda: not game._events.find(topics, born, {"job": bytes(32)})  # noqa: E731
    assert look() and tried[0]
    tried[0] = 0
    assert look() and not tried[0]
    now[0] += Events.LATER
    assert look() and tried[0]


def test_values_that_the_endpoint_no_longer_serves_are_kept(
    provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that answers without its old logs must not make an auditor forget posts."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    game = provider.game()
    known = provider.jobs(game)
    bound = provider.scene.chain.web3.eth.block_number

    def pruned(query: Request, truth: Truth) -> Request:
        old = query["method"] == "eth_getLogs" and int(query["params"][0]["fromBlock"], 16) < bound - 2 * RANGE
        return {"result": []} if old else honest(query, truth)

    provider.handler.lie = staticmethod(pruned)
    for _ in range(3):
        now[0] += Events.TRUSTED + 1.0
        for _ in range(provider.ranges):
            assert provider.jobs(game) == known


def test_values_are_read_again_at_every_look(provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ranges, for endpoints that keep few blocks; orders of other accounts are not decoded again for a day."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Events, "RANGE", 10_000)
    game = provider.game()
    known = provider.jobs(game)

    def pruned(query: Request, truth: Truth) -> Request:
        newest = provider.scene.chain.web3.eth.block_number
        if query["method"] == "eth_getLogs" and int(query["params"][0]["fromBlock"], 16) < newest - 3 * RANGE:
            return {"error": {"code": 4444, "message": "pruned history unavailable"}}
        return honest(query, truth)

    now[0] += Events.LATER
    assert provider.jobs(game) == known
    provider.handler.lie = staticmethod(pruned)
    for _ in range(6):
        pass_blocks(provider.scene, RANGE)
        now[0] += Events.LATER
        assert provider.jobs(game) == known
    young = provider.scene.post(SETUP).id
    assert provider.jobs(game) == [*known, young] and len(provider.requested) <= 2


def test_a_lagging_newest_block_discards_no_events(
    provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reply of a node that is a quarter of an hour behind must not cause a scan of the whole chain. If the lag
    lasts, the settled block was wrong and is discarded."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    game = provider.game()
    known = provider.jobs(game)
    old = provider.scene.chain.web3.provider.make_request("eth_getBlockByNumber", [hex(born + 1), False])["result"]

    def lags(query: Request, truth: Truth) -> Request:
        latest = query["method"] == "eth_getBlockByNumber" and query["params"][0] == "latest"
        return truth() | {"result": old} if latest else honest(query, truth)

    provider.handler.lie = staticmethod(lags)
    with pytest.raises(EndpointError, match=f"shows block {born + 1} as the newest.*it lags"):
        provider.jobs(game)
    provider.handler.lie = staticmethod(honest)
    assert provider.jobs(game) == known and len(provider.requested) <= 2
    game._events._settled = Block(10**6, bytes(32), 0)
    for passed in (0.0, Events.LATER / 2, Events.LATER / 2 - 1):
        now[0] += passed
        with pytest.raises(EndpointError, match="it lags"):
            provider.jobs(game)
    now[0] += 1.0
    assert provider.jobs(game) == known
