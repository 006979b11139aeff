"""Events are found from the block that made the game on, whatever ranges an endpoint takes, and read once where nothing
changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP
from lying import LIE
from proxy import LyingProxy, Request, served
from scene import Play, Scene
from web3 import Web3

from vgame.chain import events
from vgame.chain.connection import Chain
from vgame.chain.events import Events
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.commit.trees import reveal_depth
from vgame.errors import NotYet, VgameError

RANGE = 20
Truth = Callable[[], Request]


@dataclass
class Provider:
    """An endpoint with limits: `most` blocks per request; `code` says what it answers about old code."""

    scene: Scene
    handler: Any
    url: str
    most: int = 10**9
    code: Any = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    def answer(self, asked: Request, truth: Truth) -> Request:
        match asked["method"]:
            case "eth_getLogs":
                first, last = (int(asked["params"][0][k], 16) for k in ("fromBlock", "toBlock"))
                self.asked.append((first, last))
                if last - first >= self.most:
                    return {"error": {"code": -32005, "message": "block range is too large"}}
            case "eth_getCode" if self.code is not None and asked["params"][1] != "latest":
                return self.code
        return truth()

    def game(self) -> Game:
        return Game(Chain(self.url), self.scene.address)

    @property
    def ranges(self) -> int:
        """As many as the whole chain has, and one. Its length depends on the tests before."""
        return int(self.scene.chain.web3.eth.block_number) // RANGE + 2

    def jobs(self, game: Game) -> list[bytes]:
        self.asked.clear()
        return [e.args["job"] for e in game.events("JobCreated")]


def pass_blocks(scene: Scene, count: int = 3 * RANGE) -> None:
    for _ in range(count):
        scene.chain.advance(1)


@pytest.fixture
def provider(some_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setattr(Events, "RANGE", RANGE)
    monkeypatch.setattr(Events, "MARGIN", 4)
    monkeypatch.setattr(Events, "SETTLED", 5)
    with served(LyingProxy, some_scene.chain.url) as (handler, url):
        provider = Provider(some_scene, handler, url)
        handler.lie = staticmethod(provider.answer)
        yield provider


@pytest.fixture(scope="module")
def born(some_scene: Scene) -> int:
    """The block of the game's deployment, by the definition; two jobs and many blocks later."""
    codes = (bytes(some_scene.chain.web3.eth.get_code(some_scene.address, n)) for n in range(10**6))
    block = next(n for n, code in enumerate(codes) if code)
    assert block > 2  # the parts come first
    some_scene.post(SETUP)
    pass_blocks(some_scene)
    some_scene.post(SETUP)
    return block


def truth(provider: Provider) -> list[bytes]:
    return [e.args["job"] for e in provider.scene.game().events("JobCreated")]


def test_events_are_read_from_the_deployment_on_and_once(provider: Provider, born: int) -> None:
    game = provider.game()
    jobs = provider.jobs(game)
    assert len(jobs) >= 2 and len(set(jobs)) == len(jobs)
    assert min(first for first, _ in provider.asked) == born
    assert all(last - first < RANGE for first, last in provider.asked)
    assert provider.jobs(game) == jobs
    assert len(provider.asked) <= 2 and min(first for first, _ in provider.asked) > born + RANGE


def test_events_of_a_job_are_looked_for_where_it_began(provider: Provider, born: int) -> None:
    """And in all that is not settled, for a reorganisation moves events, and an endpoint can name any block."""
    game = provider.game()
    jobs = provider.jobs(game)
    game.begun = {jobs[0]: born + RANGE, jobs[1]: 10**9}
    provider.asked.clear()
    assert not game.events("JobCreated", jobs[0])
    assert min(first for first, _ in provider.asked) == born + RANGE
    young = provider.scene.post(SETUP).id
    game.begun[young] = 10**9
    assert [e.args["job"] for e in game.events("JobCreated", young)] == [young]


def test_old_events_are_read_in_as_many_looks_as_it_takes(provider: Provider, born: int) -> None:
    game = provider.game()
    job = provider.jobs(game)[0]
    game.ranges, looks = 1, 0
    while True:
        provider.asked.clear()
        try:
            found = game.events("JobCreated", job)
            break
        except NotYet:
            looks += 1
            assert len(provider.asked) == 1 and looks <= provider.ranges
    assert looks >= 2 and [e.args["job"] for e in found] == [job]
    late = provider.game()  # the block is known only after the first look
    late.ranges = 1
    with pytest.raises(NotYet):
        late.events("ClaimPosted", job)
    late.begun[job] = 10**9
    assert late.events("ClaimPosted", job) == []


def test_what_is_said_once_is_looked_for_backwards(provider: Provider, born: int) -> None:
    """A move that needs what was opened just now does not wait for a scan from the claim on."""
    game = provider.game()
    jobs = provider.jobs(game)

    topics = (Web3.to_hex(game._topic("JobCreated")),)

    def found(job: bytes) -> list[bytes]:
        provider.asked.clear()
        return [e.args["job"] for e in game._events.find(topics, born, {"job": job})]

    young = provider.scene.post(SETUP).id
    assert found(young) == [young] and len(provider.asked) == 1
    assert found(jobs[0]) == [jobs[0]] and len(provider.asked) >= 3
    assert found(bytes(32)) == [] and min(first for first, _ in provider.asked) == born
    assert found(bytes(32)) == [] and min(first for first, _ in provider.asked) > born + 2 * RANGE
    assert found(jobs[0]) == [jobs[0]]  # what was not found of another one hides nothing


def test_a_search_backwards_goes_on_after_an_outage(provider: Provider, born: int) -> None:
    """Else who opens a node early had an auditor that begins late search for ever where every tenth request fails."""
    game, honest = provider.game(), provider.answer
    jobs, topics = provider.jobs(game), (Web3.to_hex(game._topic("JobCreated")),)
    left = [0]

    def fails(asked: Request, truth: Truth) -> Request:
        left[0] -= asked["method"] == "eth_getLogs"
        away = asked["method"] == "eth_getLogs" and left[0] < 0
        return {"error": {"code": -32000, "message": "away"}} if away else honest(asked, truth)

    provider.handler.lie = staticmethod(fails)
    looks, found = 0, []
    while not found and looks <= provider.ranges:
        looks, left[0], game._events.range = looks + 1, 3, RANGE
        with suppress(VgameError):
            found = game._events.find(topics, born, {"job": jobs[0]})
    assert [e.args["job"] for e in found] == [jobs[0]] and looks > 1


def test_what_was_not_found_is_looked_for_again(provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs lag. Some ranges at a time, and the last block of a long search has to be there."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Events, "AGAIN", 1)
    game = provider.game()
    jobs, topics = provider.jobs(game), (Web3.to_hex(game._topic("JobCreated")),)
    nothing = lambda asked, truth: {"result": []} if asked["method"] == "eth_getLogs" else honest(asked, truth)  # noqa: E731
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


def test_a_node_that_a_stranger_reveals_at_other_heights_is_found(provider: Provider) -> None:
    """A node's hash holds no height, so the contract takes the same children at another one: an event of the same node,
    younger than the right one, which it must not hide."""
    scene = provider.scene
    play = scene.claimed(replace(SETUP, terms={"trainer_budget": 9_000, "auditor_budget": 9_000}), LIE)
    auditor, stranger, seen = play.auditor(), scene.game(scene.wallet()), 0
    others = 0
    for _ in range(100):
        if play.phase is Phase.CONVICTED:
            break
        play.trainer.step()
        opened = stranger.events("Revealed", play.id)
        pass_blocks(scene, 2 * RANGE if len(opened) > seen else 0)  # the right one is in another range
        for args in (e.args for e in opened[seen:]):
            depth = reveal_depth(args["height"], SETUP.depth)
            for height in (h for h in range(1, 7) if h != args["height"] and reveal_depth(h, SETUP.depth) == depth):
                stranger.send("reveal", play.id, args["kind"], height, args["children"])
                others += 1
        seen = len(stranger.events("Revealed", play.id))
        auditor.step()
    assert play.phase is Phase.CONVICTED and others >= 4


@pytest.mark.parametrize("most", [1, 7])
def test_ranges_shrink_where_an_endpoint_refuses(provider: Provider, born: int, most: int) -> None:
    game, jobs = provider.game(), provider.jobs(provider.game())
    provider.most = most
    assert provider.jobs(game) == jobs
    taken = [(first, last) for first, last in provider.asked if last - first < most]
    assert [n for first, last in taken for n in range(first, last + 1)] == list(range(born, taken[-1][1] + 1))
    assert len(provider.asked) < 3 * len(taken) + 10


@pytest.mark.parametrize(
    "code",
    [
        pytest.param({"result": "0x"}, id="a pruned node that says so of every old state"),
        pytest.param({"error": {"code": -32000, "message": "missing trie node"}}, id="one that refuses"),
        pytest.param({"result": None}, id="one that says nothing"),
    ],
)
def test_a_deployment_that_is_not_shown_hides_nothing(provider: Provider, born: int, code: Request) -> None:
    game, jobs = provider.game(), provider.jobs(provider.game())
    provider.code = code
    assert provider.jobs(game) == jobs
    assert min(first for first, _ in provider.asked) == 0


def test_a_deployment_that_is_not_old_yet(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it may still move to another block: what is remembered begins behind the settled one."""
    play = provider.scene.post(SETUP)
    pass_blocks(provider.scene, RANGE + 1)
    monkeypatch.setattr(Events, "SETTLED", 10**9)
    assert play.id in provider.jobs(provider.game())
    assert min(first for first, _ in provider.asked) == 1


def test_an_outage_in_a_long_scan_costs_what_was_not_read(provider: Provider, born: int) -> None:
    game, jobs, honest = provider.game(), provider.jobs(provider.game()), provider.answer
    seen = []

    def away(asked: Request, truth: Truth) -> Request:
        told = honest(asked, truth)
        seen.append(asked["method"])
        return {"error": {"code": -32000, "message": "away"}} if seen.count("eth_getLogs") > 2 else told

    provider.handler.lie = staticmethod(away)
    with pytest.raises(VgameError, match="refused a request"):
        game.events("JobCreated")
    provider.handler.lie = staticmethod(honest)
    assert provider.jobs(game) == jobs
    assert min(first for first, _ in provider.asked) == born + 2 * RANGE


def test_logs_that_lag_behind_are_found_later(provider: Provider, born: int) -> None:
    game, honest = provider.game(), provider.answer
    provider.handler.lie = staticmethod(
        lambda asked, truth: {"result": []} if asked["method"] == "eth_getLogs" else honest(asked, truth)
    )
    game._events.SETTLED = 10**9
    assert game.events("JobCreated") == []
    provider.handler.lie = staticmethod(honest)
    assert provider.jobs(game) == truth(provider)


def test_what_was_read_long_ago_is_read_again_in_small_parts(
    provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it all at once let a move wait for a scan of the whole chain, once an hour. What nobody asks for is
    forgotten."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Events, "AGAIN", 1)
    game = provider.game()

    def lags(asked: Request, truth: Truth) -> Request:
        told = honest(asked, truth)
        return told | {"result": []} if asked["method"] == "eth_getLogs" and provider.asked[-1][0] == born else told

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
        assert len(provider.asked) <= 4 and looks <= provider.ranges
    assert found == everything and looks >= 2
    game.events("ClaimPosted")
    now[0] += Events.TRUSTED + 1.0  # an outage: nobody could ask
    provider.jobs(game)
    assert len(game._events._past) == 2
    for _ in range(2):
        now[0] += Events.TRUSTED + 1.0
        provider.jobs(game)
    assert len(game._events._past) == 1


@pytest.mark.parametrize("name", ["read", "find"])
def test_what_cannot_be_read_again_stands(
    provider: Provider, born: int, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An hour after its start an auditor heard of nothing more where an endpoint keeps no old logs."""
    honest, now = provider.answer, [0.0]
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    game, tried = provider.game(), [0]
    known, topics = provider.jobs(game), (Web3.to_hex(game._topic("JobCreated")),)
    assert game._events.find(topics, born, {"job": bytes(32)}) == []
    bound = provider.scene.chain.web3.eth.block_number - 2 * RANGE

    def pruned(asked: Request, truth: Truth) -> Request:
        if asked["method"] == "eth_getLogs" and int(asked["params"][0]["fromBlock"], 16) < bound:
            tried[0] += 1
            return {"error": {"code": -32000, "message": "history of that block is not available"}}
        return honest(asked, truth)

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


def test_a_reorganisation_behind_the_settled_block(provider: Provider, born: int) -> None:
    """Whatever its depth: what was remembered is read again."""
    chain = provider.scene.chain
    snapshot = chain.web3.provider.make_request("evm_snapshot", [])["result"]
    undone: Play = provider.scene.post(SETUP)
    pass_blocks(provider.scene)
    game = provider.game()
    assert undone.id in provider.jobs(game)
    assert chain.web3.provider.make_request("evm_revert", [snapshot])["result"]
    pass_blocks(provider.scene, 4 * RANGE)
    assert provider.jobs(game) == truth(provider) and undone.id not in truth(provider)
