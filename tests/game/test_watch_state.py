"""The page's state of a game, read from a chain on which real agents play over the toy machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from exchange import COMPLAINT, offered
from frauds import LIE, SETUP, SUM
from revm_node import RevmNode
from scene import Play, Scene

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.errors import ChainError
from vgame.watch.differences import LONGEST, apply, difference, shown
from vgame.watch.money import BURNT, CONTRACT, Flow, balances, flows, owed
from vgame.watch.reader import Reader


def reader(scene: Scene) -> Reader:
    return Reader(Game(scene.chain, scene.address))


def job_of(state: dict[str, Any], play: Play) -> dict[str, Any]:
    return state[f"job/{play.id.hex()}"]


def dispute_of(state: dict[str, Any], play: Play, number: int = 0) -> dict[str, Any]:
    return state[f"dispute/{play.id.hex()}/{number}"]


def moves_of(state: dict[str, Any], play: Play, number: int | None = None) -> list[dict[str, Any]]:
    every = [record for key, record in state.items() if key.startswith(f"move/{play.id.hex()}/")]
    return [m for m in every if number is None or number in m["disputes"]]


def test_a_dispute_is_shown_move_by_move(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    auditor, watched = play.auditor(), reader(scene)
    narrow, kinds = [], []
    for _ in range(60):
        moved = play.trainer.step() | auditor.step()
        state = watched.look()
        if f"dispute/{play.id.hex()}/0" in state:
            record = dispute_of(state, play)
            narrow.append(record["narrowed"])
            kinds.append(record["trees"][-1]["kind"])
            assert all(0 <= t["low"] < t["high"] <= t["leaves"] for t in record["trees"]), record["trees"]
        if not moved:
            break
    assert play.phase is Phase.CONVICTED
    assert narrow == sorted(narrow) and narrow[0] == 0 and narrow[-1] > 10
    assert list(dict.fromkeys(kinds)) == ["run", "segment", "trace", "tensor", "leaf", "blocks"] or kinds[-1] in (
        "leaf",
        "blocks",
    )


def about_to(name: str, scene: Scene) -> Callable[[], object]:
    """A game in which the next move changes amounts: that move."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    call = play.run_until(name, auditor, play.trainer)
    return lambda: call.send(auditor.game)


@pytest.mark.parametrize("name", ["challenge", "prove", "withdraw"])
@pytest.mark.parametrize("undone", [False, True])
def test_a_look_shows_one_block_despite_changes_between_its_requests(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str, undone: bool
) -> None:
    """After a move before any request, or an undone block, the look shows the state before it or the state after it."""
    move, node = about_to(name, scene), scene.chain.node
    watched = reader(scene)
    before, start = watched.look(), node.snapshot()
    move()
    after = reader(scene).look()
    node.revert(start)
    assert before != after
    when, requests = 0, 1
    while when < requests:
        when, start = when + 1, node.snapshot()
        if undone:
            move()
        change = partial(node.revert, start) if undone else move
        with monkeypatch.context() as patch:
            state, requests = interrupted(watched, patch, node, when, change)
        assert state["game"]["agrees"] and state in (before, after), when
        if not undone or requests < when:
            node.revert(start)
    assert when > 9


def interrupted(
    watched: Reader, patch: pytest.MonkeyPatch, node: RevmNode, when: int, change: Callable[[], object]
) -> tuple[dict[str, Any], int]:
    """A look with an interruption before one request; returns the number of requests."""
    calls, real = 0, node.handle

    def handle(method: str, params: list[Any]) -> dict[str, Any]:
        nonlocal calls
        if (calls := calls + 1) == when:
            change()
        return real(method, params)

    patch.setattr(node, "handle", handle)
    return watched.look(), calls


def test_a_verdict_names_place_cause_and_words(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    play.run_to_end(play.trainer, play.auditor())
    state = reader(scene).look()
    record, verdict = dispute_of(state, play), job_of(state, play)["verdict"]
    assert (record["status"], record["verdict"], record["cause"]) == ("won", "convicted", verdict["cause"])
    assert (record["step"], record["operator"], record["element"]) == (6, SUM, 4)
    assert record["turn"] is None and job_of(state, play)["phase"] == "convicted"
    assert [s for *_, s in job_of(state, play)["strip"]].count("convicted") == 1


def test_every_move_of_a_dispute_is_shown_with_its_gas(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    play.run_to_end(play.trainer, play.auditor())
    state = reader(scene).look()
    all_moves, node = moves_of(state, play), scene.chain.node
    assert {m["transaction"] for m in all_moves} == {
        e.transaction.removeprefix("0x") for e in play.client.events(job=play.id)
    }
    for move in all_moves:
        assert move["gas"] == int(node.receipts["0x" + move["transaction"]]["gasUsed"], 16) > 0
    names = [m["name"] for m in moves_of(state, play, 0)]
    assert names[0] == "challenge" and {"reveal", "select", "postSegment", "postTrace", "openLeaf"} <= set(names)
    assert dispute_of(state, play)["gas"] == sum(m["gas"] for m in moves_of(state, play, 0))


def test_a_reveal_counts_for_every_dispute_at_its_node(scene: Scene) -> None:
    """Two disputes of one lie share every opening; an accuser on another path does not."""
    play = scene.claimed(SETUP, LIE)
    first, second = play.auditor(), play.auditor()
    play.run(play.trainer, first, second)
    shared = [m["disputes"] for m in moves_of(reader(scene).look(), play) if m["name"] == "reveal"]
    assert [0, 1] in shared
    other = scene.claimed(SETUP)
    accuser = other.auditor(None, FalseAccuser, step_wanted=1)
    other.run(other.trainer, accuser)
    assert all(m["disputes"] == [0] for m in moves_of(reader(scene).look(), other) if m["name"] == "reveal")


@pytest.mark.parametrize("how", ["final", "convicted", "dismissed", "expired"])
def test_money_follows_from_the_events_to_the_wei(scene: Scene, how: str) -> None:
    play = scene.post(SETUP) if how == "expired" else scene.claimed(SETUP, LIE if how == "convicted" else None)
    if how == "expired":
        play.advance(SETUP.spec.accept_window + 1)
        play.client.send("expire", play.id)
    else:
        players = {
            "final": [],
            "convicted": [play.auditor()],
            "dismissed": [play.auditor(None, FalseAccuser, step_wanted=6)],
        }
        play.run_to_end(play.trainer, *players[how])
    watched = reader(scene)
    state = watched.look()
    assert state["game"]["agrees"]
    paid = flows(play.job, [e for e in watched.game.events() if e.args.get("job") == play.id])
    assert sum(balances(paid).values()) == 0
    assert balances(paid)[BURNT] == int(state["game"]["burnt"])
    assert int(job_of(state, play)["held"]) == balances(paid)[CONTRACT] >= 0


def test_a_wrong_rule_of_money_is_detected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer)
    watched = reader(scene)
    assert watched.look()["game"]["agrees"]
    monkeypatch.setattr(
        "vgame.watch.reader.owed", lambda *a: owed(*a) + owed([Flow(CONTRACT, play.trainer.address, 1, "", "")], [])
    )
    assert not watched.look()["game"]["agrees"]


def test_removals_and_additions_between_two_reads_are_a_difference(scene: Scene) -> None:
    """Also if a reorganisation removed disputes."""
    play, watched = scene.claimed(SETUP, LIE), reader(scene)
    point = scene.chain.node.snapshot()
    before = watched.look()
    play.run_to_end(play.trainer, play.auditor())
    after = watched.look()
    change = difference(before, after)
    assert apply(before, change) == after and not change["gone"]
    scene.chain.node.revert(point)
    back = difference(after, watched.look())
    assert any(key.startswith("dispute/") for key in back["gone"])
    assert apply(after, json.loads(json.dumps(back))) == watched.look()


def test_the_difference_of_two_states_leads_from_one_to_the_other() -> None:
    draw = random.Random(1)

    def state() -> dict[str, Any]:
        return {
            f"k{draw.randrange(9)}": draw.choice([1, "a", {"b": draw.randrange(3)}, [draw.randrange(3)], None])
            for _ in range(6)
        }

    for _ in range(300):
        old, new = state(), state()
        assert apply(old, difference(old, new)) == new
        assert difference(new, new) == {"set": {}, "gone": []}


def test_transactions_are_looked_up_within_a_budget_the_newest_first(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    play.run_to_end(play.trainer, play.auditor())
    watched = reader(scene)
    watched.budget = 5
    state = watched.look()
    known = ["gas" in m for m in moves_of(state, play)]
    assert 0 < known.count(True) <= 5 and known[-1] and not known[0] and not state["game"]["complete"]
    for _ in range(20):
        state = watched.look()
    assert all("gas" in m for m in moves_of(state, play)) and state["game"]["complete"]


def test_a_job_that_has_ended_is_not_read_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    play = scene.claimed(SETUP)
    play.run_to_end(play.trainer)
    watched = reader(scene)
    before = watched.look()
    monkeypatch.setattr(watched.game, "job", None)  # a request would raise
    assert watched.look() == before | {"game": watched.look()["game"]}


def test_an_unreachable_node_is_an_error_and_not_a_state(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = reader(scene)

    def away(*_: Any) -> Any:
        raise ChainError("no answer from the node")

    monkeypatch.setattr(watched.game, "events", away)
    with pytest.raises(ChainError):
        watched.look()


@pytest.mark.parametrize(
    ("untrusted", "expected"),
    [("conv1", "conv1"), ("<b>", "<b>"), ("a\u202eb", "a\\u202eb"), ("x\ny\x1b[2J", "x y\\x1b[2J"), ("é漢", "é漢")],
)
def test_untrusted_text_is_shown_as_text(untrusted: str, expected: str) -> None:
    assert shown(untrusted) == expected


def test_a_long_text_is_cut() -> None:
    text = shown("m" * 2**20)
    assert text.startswith("m" * LONGEST + "…") and "1,048,576" in text and len(text) < LONGEST + 40


def test_a_delivery_in_progress_is_shown(scene: Scene, tmp_path: Path) -> None:
    """The current window, the client's confirmation, its requests."""
    x = offered(scene, tmp_path).finalize()
    look = reader(scene)
    job = job_of(look.look(), x.play)
    assert (job["phase"], job["window_name"]) == ("delivering", "confirm_window")
    assert job["delivery"] == {"confirmed_at": 0, "key_at": 0, "open": 0, "deposits": "0"}
    x.confirm()
    confirmed, job = scene.chain.now(), job_of(look.look(), x.play)
    assert (job["window_name"], job["delivery"]["confirmed_at"]) == ("key_window", confirmed)
    x.reveal()
    assert job_of(look.look(), x.play)["window_name"] == "complaint_window"
    x.play.advance(COMPLAINT + 1)
    x.close(Phase.REVEALED)
    job = job_of(look.look(), x.play)
    assert (job["phase"], job["window_name"], job["delivery"]) == ("final", None, None)
