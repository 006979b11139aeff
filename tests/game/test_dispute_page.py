"""docs/dispute.md is a program; its games end as on the contracts, with the same verdict at the same place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from eth_abi import encode
from frauds import Bluffer, Mistaken
from outcomes import caught, convicted_at
from scene import Scene, Setup
from toy import Lies

from vgame.chain.records import Level, Phase

PAGE = (Path(__file__).resolve().parents[2] / "docs/dispute.md").read_text()
CODE = "".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LIES = {
    "a word of operator 0": Lies(words={(4, 0, 299): 0}),
    "a word of operator 1": Lies(words={(6, 1, 100): 0x3F800000}),
    "a word of the last step": Lies(words={(12, 1, 128): 1}),
    "a carried tensor": Lies(state={(8, 0, 200): 5}),
    "a tensor left alone": Lies(state={(6, 2, 7): 1}),
}


@pytest.fixture(scope="module")
def page() -> ModuleType:
    return program(CODE)


def program(code: str) -> ModuleType:
    module = ModuleType("page")
    module.__dict__["__name__"] = "page"
    exec(compile(code, "docs/dispute.md", "exec", dont_inherit=True), module.__dict__)
    return module


def setup_of(page: ModuleType) -> Setup:
    return Setup(page.PROGRAM, page.STEPS, page.INTERVAL, depth=1, seed=page.SEED)


def place(g: Any) -> tuple[Any, ...]:
    """Level, step, operator, index as the contract names them."""
    if g.verdict[1] == "element":
        return Level.ELEMENT, g.step, g.operator, g.element
    return Level.STATE, g.step, 0, g.index


@pytest.mark.parametrize("name", LIES)
def test_a_cheat_is_convicted_where_the_contracts_convict_it(scene: Scene, page: ModuleType, name: str) -> None:
    found = page.play(page.machine(LIES[name]), page.honest)
    play, _ = caught(scene, setup_of(page), LIES[name])
    assert play.verdicts == [("Convicted", 0, found.verdict[1])] and found.verdict[0] == "convicted"
    assert convicted_at(play)[:4] == place(found)


@pytest.mark.parametrize("name", LIES)
def test_a_false_accuser_is_dismissed_as_by_the_contracts(scene: Scene, page: ModuleType, name: str) -> None:
    found = page.play(page.honest, page.machine(LIES[name]))
    play = scene.claimed(setup_of(page))
    play.run_to_end(play.trainer, play.auditor(LIES[name], Mistaken))
    assert play.phase is Phase.FINAL
    assert play.verdicts == [("Dismissed", 0, found.verdict[1])] and found.verdict[0] == "dismissed"


def test_silence_loses_by_the_clock(scene: Scene, page: ModuleType) -> None:
    found = page.play(page.cheat, page.honest, silent="reveal")
    play, _ = caught(scene, setup_of(page), page.cheat, Bluffer, silent=("reveal",))
    assert play.verdicts == [("Convicted", 0, "timeout")] and found.verdict == ("convicted", "timeout")


@pytest.mark.parametrize("name", [name for name in LIES if "operator" in name])
def test_the_auditor_calls_the_referee_if_the_trainer_stops(page: ModuleType, name: str) -> None:
    found = page.play(page.machine(LIES[name]), page.honest, silent="prove")
    assert found.verdict == ("convicted", "element")


ONE_OPERATOR = "(Operator(300, Reads.CARRY, operand=0),)", "(State(300, operator=0),)", "12, 4"
ONE_CHECKPOINT = "(Operator(300, Reads.CARRY, operand=0),)", "(State(300, operator=0), State(9))", "3, 3"
ONE_LEAF = "(Operator(5, Reads.CARRY, operand=0), Operator(128, Reads.CHAIN))", "(State(9, operator=0),)", "4, 1"


@pytest.mark.parametrize("size", [ONE_OPERATOR, ONE_CHECKPOINT, ONE_LEAF])
@pytest.mark.parametrize("lies", [Lies(words={(3, 0, 4): 1}), Lies(state={(2, 0, 3): 1})], ids=["word", "state"])
def test_games_with_trees_of_one_leaf_end_as_on_the_contracts(
    scene: Scene, size: tuple[str, str, str], lies: Lies
) -> None:
    code = re.sub(r"^OPERATORS = .*", f"OPERATORS = {size[0]}", CODE, flags=re.MULTILINE)
    code = re.sub(r"^STATES = .*", f"STATES = {size[1]}", code, flags=re.MULTILINE)
    page = program(code.replace("Program(OPERATORS, STATES), 7, 12, 4", f"Program(OPERATORS, STATES), 7, {size[2]}"))
    found = page.play(page.machine(lies), page.honest)
    play, _ = caught(scene, setup_of(page), lies)
    assert play.verdicts == [("Convicted", 0, found.verdict[1])] and found.verdict[0] == "convicted"
    assert convicted_at(play)[:4] == place(found)


def test_the_page_shows_the_printed_output(page: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CODE, "docs/dispute.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert f"```\n{capsys.readouterr().out}```" in PAGE
    assert len(CODE.splitlines()) <= 300


def points(page: ModuleType, trainer: Any, auditor: Any) -> Iterator[Any]:
    """The game before each move of a dispute."""
    g = page.Game(initial=page.honest.state_root(0))
    g.claim(page.run_tree(trainer.checkpoints, len(trainer.checkpoints)).root)
    g.challenge()
    while g.due:
        g.now += 5
        yield g
        page.accuse(g, auditor) if g.turn == "auditor" else page.defend(g, trainer)


def at_element(page: ModuleType) -> Any:
    """The game in which the honest auditor has named the wrong word."""
    return next(g for g in points(page, page.cheat, page.honest) if g.due == "prove")


def flipped(content: bytes, place: int) -> bytes:
    place %= len(content)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


#: Damaged part -> (words, siblings, path, state before, its path), damaged.
DAMAGES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "first byte": lambda w, s, p, t, q: (flipped(w, 0), s, p, t, q),
    "last byte": lambda w, s, p, t, q: (flipped(w, -1), s, p, t, q),
    "a word too many": lambda w, s, p, t, q: (w + bytes(4), s, p, t, q),
    "a sibling": lambda w, s, p, t, q: (w, (flipped(s[0], 3), *s[1:]), p, t, q),
    "a sibling too few": lambda w, s, p, t, q: (w, s[:-1], p, t, q),
    "path in the trace": lambda w, s, p, t, q: (w, s, (flipped(p[0], 9),), t, q),
    "path too long": lambda w, s, p, t, q: (w, s, (*p, bytes(32)), t, q),
    "state before": lambda w, s, p, t, q: (w, s, p, flipped(t, 0), q),
    "its path": lambda w, s, p, t, q: (w, s, p, t, [*q[:-1], flipped(q[-1], 0)]),
    "its path too short": lambda w, s, p, t, q: (w, s, p, t, q[:-1]),
}


def test_a_damaged_proof_decides_nothing(page: ModuleType) -> None:
    g = at_element(page)
    proof, prior, path = page.evidence(g, page.honest)
    header, *opened = page.decode([page.PROOF_TYPE], proof)[0]
    for name, damage in DAMAGES.items():
        *parts, other, other_path = damage(*opened, prior, path)
        with pytest.raises(page.Refused):
            g.prove(encode([page.PROOF_TYPE], [(header, *parts)]), other, other_path)
        assert g.due == "prove" and not g.verdict, name
    g.prove(encode([page.PROOF_TYPE], [(header, *opened)]), prior, path)
    assert g.verdict == ("convicted", "element")


def attempts(page: ModuleType, g: Any) -> dict[str, list[Callable[[], None]]]:
    """Moves at a point of a dispute, by name: each is refused, unless it is due and equals the players' call."""
    zero, known = bytes(32), getattr(g, "children", (bytes(32), bytes(32)))
    segment = page.Tree(page.Kind.SEGMENT, page.honest.segment(1))
    ends = segment.path(0, 0), segment.path(0, page.INTERVAL)
    return {
        "": [g.challenge, g.finalize, g.timeout, lambda: g.claim(zero)],
        "reveal": [lambda: g.reveal(*known)],
        "select": [lambda: g.select(0), lambda: g.select(1)],
        "post_segment": [lambda: g.post_segment(segment.node(0, 0), [], segment.node(0, 4), segment.root, *ends)],
        "post_trace": [lambda: g.post_trace(zero)],
        "contest": [lambda: g.contest(page.Kind.STATE), lambda: g.contest(page.Kind.TRACE)],
        "tie": [lambda: g.tie(g.node, [], zero, [])],
        "open_leaf": [lambda: g.open_leaf(page.leaf_bytes(page.honest.words(1, 0), 0))],
        "select_element": [lambda: g.select_element(0)],
        "prove": [lambda: g.prove(b"", zero, [])],
    }


WRONG: dict[str, list[Callable[[Any, Any], None]]] = {
    "reveal": [lambda page, g: g.reveal(bytes(32), bytes(32))],
    "select": [lambda page, g: g.select(2), lambda page, g: g.select(-1)],
    "contest": [lambda page, g: g.contest(page.Kind.TENSOR), lambda page, g: g.contest(page.Kind.SEGMENT)],
    "open_leaf": [lambda page, g: g.open_leaf(bytes(512)), lambda page, g: g.open_leaf(b"")],
    "select_element": [lambda page, g: g.select_element(page.LEAF_WORDS), lambda page, g: g.select_element(-1)],
    "tie": [lambda page, g: g.tie(bytes(32), [], bytes(32), [])],
}


@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("guilty", [True, False])
def test_every_other_move_is_refused_and_changes_nothing(page: ModuleType, name: str, guilty: bool) -> None:
    """Also the clocks: a refused move costs no time."""
    liar = page.machine(LIES[name])
    seen = set()
    for g in points(page, *((liar, page.honest) if guilty else (page.honest, liar))):
        seen.add(g.due)
        before = deepcopy(vars(g))
        others = [call for move, calls in attempts(page, g).items() if move != g.due for call in calls]
        wrong = [partial(call, page, g) for call in WRONG.get(g.due, [])]
        for call in [*others, *wrong]:
            with pytest.raises(page.Refused):
                call()
            assert vars(g) == before
    assert seen >= {"reveal", "select", "post_segment", "post_trace", "contest"}


@pytest.mark.parametrize(("step", "side", "why"), [(5, 0, "S_0 is agreed"), (12, 1, "padding")])
def test_padding_and_the_agreed_state_cannot_be_contested(page: ModuleType, step: int, side: int, why: str) -> None:
    refused = 0
    for g in points(page, page.machine(Lies(words={(step, 1, 9): 1})), page.honest):
        padded = g.due == "select" and (2 * g.index + 1) << (g.height - 1) >= g.count
        agreed = g.due == "select" and (g.level, g.height, g.index) == (page.Kind.SEGMENT, 1, 0)
        if padded if side else agreed:
            before = deepcopy(vars(g))
            with pytest.raises(page.Refused, match=why):
                g.select(side)
            assert vars(g) == before
            refused += 1
    assert refused


def test_after_the_time_of_a_side_only_a_timeout_is_left(page: ModuleType) -> None:
    for g in points(page, page.cheat, page.honest):
        late = deepcopy(g)
        late.now += 401
        with pytest.raises(page.Refused, match="too late"):
            page.accuse(late, page.honest) if late.turn == "auditor" else page.defend(late, page.cheat)
        late.timeout()
        assert late.verdict == ("dismissed" if g.turn == "auditor" else "convicted", "timeout")


def test_a_claim_is_paid_once(page: ModuleType) -> None:
    g = page.play(page.honest, page.honest)
    for call in (g.finalize, g.challenge, lambda: g.claim(bytes(32))):
        with pytest.raises(page.Refused):
            call()
