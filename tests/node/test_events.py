"""Events are found from the game's block on, for all ranges that an endpoint accepts, and read once if nothing
changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frauds import LIE, SETUP
from providers import RANGE, Provider, Truth, pass_blocks, truth
from proxy import Request
from scene import Play
from web3 import Web3

from vgame.chain.events import Events
from vgame.chain.records import Phase
from vgame.commit.trees import reveal_depth
from vgame.errors import NotYet, VgameError


def test_events_are_read_from_the_deployment_on_and_once(provider: Provider, born: int) -> None:
    game = provider.game()
    jobs = provider.jobs(game)
    assert len(jobs) >= 2 and len(set(jobs)) == len(jobs)
    assert min(first for first, _ in provider.requested) == born
    assert all(last - first < RANGE for first, last in provider.requested)
    assert provider.jobs(game) == jobs
    assert len(provider.requested) <= 2 and min(first for first, _ in provider.requested) > born + RANGE


def test_events_of_a_job_are_searched_from_its_first_block_on(provider: Provider, born: int) -> None:
    """All unsettled blocks are searched too: a reorganisation moves events, and an endpoint can name any block."""
    game = provider.game()
    jobs = provider.jobs(game)
    game.begun = {jobs[0]: born + RANGE, jobs[1]: 10**9}
    provider.requested.clear()
    assert not game.events("JobCreated", jobs[0])
    assert min(first for first, _ in provider.requested) == born + RANGE
    young = provider.scene.post(SETUP).id
    game.begun[young] = 10**9
    assert [e.args["job"] for e in game.events("JobCreated", young)] == [young]


def test_old_events_are_read_over_several_looks(provider: Provider, born: int) -> None:
    game = provider.game()
    job = provider.jobs(game)[0]
    game.ranges, looks = 1, 0
    while True:
        provider.requested.clear()
        try:
            found = game.events("JobCreated", job)
            break
        except NotYet:
            looks += 1
            assert len(provider.requested) == 1 and looks <= provider.ranges
    assert looks >= 2 and [e.args["job"] for e in found] == [job]
    late = provider.game()  # the block is known only after the first look
    late.ranges = 1
    with pytest.raises(NotYet):
        late.events("ClaimPosted", job)
    late.begun[job] = 10**9
    assert late.events("ClaimPosted", job) == []


def test_single_events_are_searched_backwards(provider: Provider, born: int) -> None:
    """A move that needs a recent opening does not wait for a scan from the claim on."""
    game = provider.game()
    jobs = provider.jobs(game)

    topics = (Web3.to_hex(game._topic("JobCreated")),)

    def found(job: bytes) -> list[bytes]:
        provider.requested.clear()
        return [e.args["job"] for e in game._events.find(topics, born, {"job": job})]

    young = provider.scene.post(SETUP).id
    assert found(young) == [young] and len(provider.requested) == 1
    assert found(jobs[0]) == [jobs[0]] and len(provider.requested) >= 3
    assert found(bytes(32)) == [] and min(first for first, _ in provider.requested) == born
    assert found(bytes(32)) == [] and min(first for first, _ in provider.requested) > born + 2 * RANGE
    assert found(jobs[0]) == [jobs[0]]  # a failed search for another job hides no events


def test_a_node_revealed_by_others_at_other_heights_is_found(provider: Provider) -> None:
    """A node's hash holds no height, so the contract accepts the same children at another height: an event of the same
    node, younger than the right one. It must not hide the right one."""
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
def test_ranges_shrink_after_an_endpoints_refusal(provider: Provider, born: int, most: int) -> None:
    game, jobs = provider.game(), provider.jobs(provider.game())
    provider.most = most
    assert provider.jobs(game) == jobs
    taken = [(first, last) for first, last in provider.requested if last - first < most]
    assert [n for first, last in taken for n in range(first, last + 1)] == list(range(born, taken[-1][1] + 1))
    assert len(provider.requested) < 3 * len(taken) + 10


@pytest.mark.parametrize(
    "code",
    [
        pytest.param({"result": "0x"}, id="a node that shows no code at old blocks"),
        pytest.param({"error": {"code": -32000, "message": "missing trie node"}}, id="a node that refuses"),
        pytest.param({"result": None}, id="a node that returns null"),
    ],
)
def test_all_events_are_found_if_the_deployment_is_not_shown(provider: Provider, born: int, code: Request) -> None:
    game, jobs = provider.game(), provider.jobs(provider.game())
    provider.code = code
    assert provider.jobs(game) == jobs
    assert min(first for first, _ in provider.requested) == 0


def test_a_recent_deployment_is_not_taken_for_settled(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reorganisation may still move it to another block: the remembered start lies behind the settled block."""
    play = provider.scene.post(SETUP)
    pass_blocks(provider.scene, RANGE + 1)
    monkeypatch.setattr(Events, "SETTLED", 10**9)
    assert play.id in provider.jobs(provider.game())
    assert min(first for first, _ in provider.requested) == 1


def test_an_outage_in_a_long_scan_repeats_only_unread_parts(provider: Provider, born: int) -> None:
    game, jobs, honest = provider.game(), provider.jobs(provider.game()), provider.answer
    seen = []

    def away(query: Request, truth: Truth) -> Request:
        text = honest(query, truth)
        seen.append(query["method"])
        return {"error": {"code": -32000, "message": "away"}} if seen.count("eth_getLogs") > 2 else text

    provider.handler.lie = staticmethod(away)
    with pytest.raises(VgameError, match="refused a request"):
        game.events("JobCreated")
    provider.handler.lie = staticmethod(honest)
    assert provider.jobs(game) == jobs
    assert min(first for first, _ in provider.requested) == born + 2 * RANGE


def test_logs_that_lag_behind_are_found_later(provider: Provider, born: int) -> None:
    game, honest = provider.game(), provider.answer
    provider.handler.lie = staticmethod(
        lambda query, truth: {"result": []} if query["method"] == "eth_getLogs" else honest(query, truth)
    )
    game._events.SETTLED = 10**9
    assert game.events("JobCreated") == []
    provider.handler.lie = staticmethod(honest)
    assert provider.jobs(game) == truth(provider)


def test_a_reorganisation_behind_the_settled_block(provider: Provider, born: int) -> None:
    """For any depth: cached events are read again."""
    chain = provider.scene.chain
    snapshot = chain.web3.provider.make_request("evm_snapshot", [])["result"]
    undone: Play = provider.scene.post(SETUP)
    pass_blocks(provider.scene)
    game = provider.game()
    assert undone.id in provider.jobs(game)
    assert chain.web3.provider.make_request("evm_revert", [snapshot])["result"]
    pass_blocks(provider.scene, 4 * RANGE)
    assert provider.jobs(game) == truth(provider) and undone.id not in truth(provider)
