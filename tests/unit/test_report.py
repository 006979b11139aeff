"""The report of a demonstration, as a reader sees it: only what was played, bits with values, exact money, every word explained."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from vgame.chain.connection import artifact
from vgame.demo.dossier import Dossier, Move, Tree, with_value
from vgame.demo.picture import descent
from vgame.demo.report import MOVES, TITLES, exact_ether, write_report
from vgame.demo.result import Result

ETHER = 10**18
ONE = Dossier(
    "flipped-bit", "convicted", "element", 216, "107 map sub", 16384, "0xbd203954", "0xbd303954",
    [Move("challenge", "auditor", 130_679, "00", 132), Move("prove", "auditor", 237_676, "00", 3_396)],
    [Tree("run", 24, 21, "checkpoint 22 of 24")], {"auditor": ETHER, "cheat": -2 * ETHER, "burnt": ETHER},
    job="ab" * 32, contract="0x" + "cd" * 20, chain=31337,
)  # fmt: skip
ACCUSED = replace(ONE, name="accuse-and-idle", verdict="dismissed", decided_by="timeout", moves=[], descent=[])
ROOTS = ("program_root", "data_root", "initial_root", "scalar_root")
JOB = dict.fromkeys(ROOTS, "0" * 64) | {
    "model": "vgame.tasks.digits:task",
    "steps": 240,
    "interval": 10,
    "operators": 126,
}
MONEY = {"in": 3 * ETHER + 1, "out": ETHER, "credits": ETHER, "burnt": ETHER + 1, "balance": 2 * ETHER + 1}
HONEST = {
    "verdict": "final", "accuracy": 0.975, "trainer_root": "11", "auditor_root": "11", "devices_differ": True,
    "nearest_diverged_at": 3, "fp32_diverged_at": 1,
}  # fmt: skip


def text_of(result: Result, folder: Path) -> str:
    """What a browser shows, without the pictures."""
    write_report(result, folder / "report.html")
    page = (folder / "report.html").read_text()
    page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture
def single(tmp_path: Path) -> str:
    return text_of(Result({}, [ONE], [], True, 175.0, [], MONEY, JOB), tmp_path)


def test_one_attack_alone(single: str) -> None:
    for absent in ("honest", "0 of 0", "accusation", "Loss per"):
        assert absent not in single, absent
    assert "1 of 1 cheats convicted" in single and "one attempt to cheat" in single
    assert "one bit of one weight flipped" in single


def test_the_whole_story(tmp_path: Path) -> None:
    text = text_of(Result(HONEST, [ONE, ONE], [ACCUSED], True, 175.0, [2.0, 1.0], MONEY, JOB), tmp_path)
    for present in (
        "the honest trainer's claim",
        "97.5 %",
        "1 of 1 false accusations dismissed",
        "the attempts to cheat",
    ):
        assert present in text, present
    assert "accused by somebody who then does nothing" in text
    assert "job " + "ab" * 32 + " trainer's run root" in text


def test_where_and_when_it_was(single: str) -> None:
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC, chain 31337, contract 0x(cd){20} ?\.", single)
    assert "on the device default , the auditor on compatible" in single and "job " + "ab" * 32 in single


def test_bits_have_values(single: str) -> None:
    assert "0xbd203954 = -0.039117172" in single and "0xbd303954 = -0.04302342" in single
    assert with_value("0xffffffff", True) == "0xffffffff = -1"
    assert with_value("0x7fc00000", False) == "0x7fc00000 = nan"
    assert with_value("0x3dcccccd", False) == "0x3dcccccd = 0.1" != with_value("0x3dccccce", False)
    assert with_value(None, False) == ""


def test_money_is_exact(single: str) -> None:
    assert "money in = out + credits + burnt, to the wei" in single
    assert (
        "in 3.000000000000000001 = out 1 + credits 1 + burnt 1.000000000000000001; the contract's balance is 2.0"
        in single
    )
    assert [exact_ether(x) for x in (0, 10 * ETHER, ETHER // 2)] == ["0", "10", "0.5"]


def test_every_word_is_explained(single: str) -> None:
    words = single[single.index(" Words ") :]
    for word in (
        "root",
        "checkpoint",
        "trace",
        "leaf, element",
        "gas",
        "bond",
        "burnt",
        "credits",
        "challenge",
        "prove",
    ):
        assert f" {word} " in words, word
    assert MOVES["prove"] in words and MOVES["timeout"] not in words  # nobody's clock ran out


def test_every_attack_and_every_move_has_a_line() -> None:
    functions = {f["name"] for f in artifact("VerificationGame")["abi"] if f["type"] == "function"}
    moves = {
        f for f in functions if re.match(r"select|tie|openLeaf|reveal|prove$|challenge|post[SP]|postTrace|timeout", f)
    }
    assert set(MOVES) == moves
    assert all(TITLES.values()) and {"accuse-any-element", "accuse-and-idle"} < set(TITLES)


def test_a_verdict_by_blocks_shows_no_bits_that_nobody_computed() -> None:
    blocks = replace(ONE, exact_bits=None, part=3)
    assert (blocks.exact, blocks.facts()["exact_bits"], blocks.facts()["part"]) == ("by partial sum 3", None, 3)
    assert "by partial sum 3" in descent(blocks)
