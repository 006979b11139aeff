"""The lists of pages are whole: each move of the game in docs/protocol.md, each alarm in docs/operations.md."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOMES = {"Auditor": "auditor", "Trainer": "trainer", "Player": "player"}
MOVES = r"function (\w+)\([^)]*\) external(?! view)"


def rows() -> dict[tuple[str, ...], tuple[str, str]]:
    """(Python, Solidity) by the moves of a row."""
    lines = re.findall(r"^\| (`.*`) \| ([^|]*) \| ([^|]*) \|$", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE)
    return {tuple(re.findall(r"\w+", moves)): (python, solidity) for moves, python, solidity in lines}


def test_each_move_of_the_interface_has_one_row() -> None:
    calls = re.findall(MOVES, (ROOT / "contracts/IMoves.sol").read_text())
    assert len(calls) > 14 and sorted(move for moves in rows() for move in moves) == sorted(calls)


def test_its_functions_make_the_move() -> None:
    for moves, (python, _) in rows().items():
        homes = {}
        for kind, name in re.findall(r"`(Auditor|Trainer|Player)\.(\w+)`", python):
            assert hasattr(getattr(import_module(f"vgame.dispute.{HOMES[kind]}"), kind), name), (kind, name)
            homes[kind] = (ROOT / f"vgame/dispute/{HOMES[kind]}.py").read_text()
        assert homes and all(any(f'"{move}"' in text for text in homes.values()) for move in moves), moves


def test_its_checks_exist() -> None:
    named = [pair for _, solidity in rows().values() for pair in re.findall(r"`(\w+)\.(\w+)`", solidity)]
    assert len(named) > 10
    for contract, function in named:
        assert f"function {function}(" in (ROOT / f"contracts/{contract}.sol").read_text(), (contract, function)


def test_each_alarm_has_one_row() -> None:
    kinds = re.findall(r'Alarm\("(\w+)"', (ROOT / "vgame/agents/status.py").read_text())
    section = (ROOT / "docs/operations.md").read_text().partition("| kind |")[2].partition("\n\n")[0]
    assert len(kinds) > 5 and sorted(kinds) == sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
