"""docs/dispute.md is a program whose games end as they do on the contracts: the same verdict at the same place."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
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
    module = ModuleType("page")
    module.__dict__["__name__"] = "page"
    exec(compile(CODE, "docs/dispute.md", "exec", dont_inherit=True), module.__dict__)
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
    found = page.play(page.cheat, page.honest, silent=True)
    play, _ = caught(scene, setup_of(page), page.cheat, Bluffer, silent=("reveal",))
    assert play.verdicts == [("Convicted", 0, "timeout")] and found.verdict == ("convicted", "timeout")


def test_the_page_shows_what_it_prints(page: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CODE, "docs/dispute.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert f"```\n{capsys.readouterr().out}```" in PAGE
    assert len(CODE.splitlines()) <= 300


def at_element(page: ModuleType) -> Any:
    """The game in which the honest auditor has named the wrong word."""
    g = page.Game(initial=page.honest.state_root(0))
    g.claim(page.run_tree(page.cheat.checkpoints, len(page.cheat.checkpoints)).root)
    g.challenge()
    while g.level is not None:
        page.accuse(g, page.honest) if g.turn == "auditor" else page.defend(g, page.cheat)
    return g


@pytest.mark.parametrize("damage", [0, -1, 200])
def test_a_damaged_proof_decides_nothing(page: ModuleType, damage: int) -> None:
    g = at_element(page)
    trace = page.Tree(page.In.TRACE, page.honest.trace(g.step))
    proof = page.honest.prove(g.step, g.operator, g.element, None, lambda operator: trace.path(0, operator)).proof
    header, words, siblings, path = page.decode([page.PROOF_TYPE], proof)[0]
    words = words[:damage] + bytes([words[damage] ^ 1]) + words[damage:][1:]
    with pytest.raises(page.Refused):
        g.prove(_encoded(page, header, words, siblings, path), *page.before(g, page.honest))
    with pytest.raises(page.Refused):
        g.prove(proof, page.honest.state_root(g.step), page.before(g, page.honest)[1])
    assert not g.verdict


def _encoded(page: ModuleType, *parts: Any) -> bytes:
    from eth_abi import encode

    return encode([page.PROOF_TYPE], [parts])


def test_moves_out_of_turn_and_other_content_are_refused(page: ModuleType) -> None:
    g = page.Game(initial=page.honest.state_root(0))
    g.claim(page.run_tree(page.cheat.checkpoints, 3).root)
    g.challenge()
    for wrong in (lambda: g.select(0), lambda: g.reveal(bytes(32), bytes(32)), lambda: g.finalize(), g.timeout):
        with pytest.raises(page.Refused):
            wrong()
    g.now += 401
    with pytest.raises(page.Refused):
        page.defend(g, page.cheat)
