"""The report of a demonstration: only the parts that were played, exact money, and the page with every dispute."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

from rich.console import Console

from vgame.demo.dossier import Dossier, Move, with_value
from vgame.demo.report import exact_ether, story_record, write_report
from vgame.demo.result import Prize, Result, Sale
from vgame.demo.screen import COLUMNS, Screen
from vgame.demo.story import as_expected

ROOT = Path(__file__).resolve().parents[2]

ETHER = 10**18
ONE = Dossier(
    "flipped-bit", "convicted", "element", 216, "107 map sub", 16384, "0xbd203954", "0xbd303954",
    [Move("challenge", "auditor", 130_679, "00", 132), Move("prove", "auditor", 237_676, "00", 3_396)],
    {"auditor": ETHER, "cheat": -2 * ETHER, "burnt": ETHER}, job="ab" * 32, contract="0x" + "cd" * 20, chain=31337,
)  # fmt: skip
ACCUSED = replace(ONE, name="accuse-and-idle", verdict="dismissed", decided_by="timeout", moves=[])
JOB = {"model": "vgame.tasks.digits:task", "steps": 240, "interval": 10, "operators": 126}
MONEY = {"in": 3 * ETHER + 1, "out": ETHER, "credits": ETHER, "burnt": ETHER + 1, "balance": 2 * ETHER + 1}
HONEST = {
    "verdict": "final", "accuracy": 0.975, "trainer_root": "11", "auditor_root": "11", "devices_differ": True,
    "nearest_diverged_at": None, "fp32_diverged_at": 1,
}  # fmt: skip
SINGLE = Result({}, [ONE], [], True, 175.0, [], MONEY, JOB)
WHOLE = Result(HONEST, [ONE, replace(ONE, verdict="final")], [ACCUSED], True, 175.0, [2.0, 1.0], MONEY, JOB)


def text_of(result: Result) -> str:
    record = story_record(result)
    cards = [f"{card['value']} {card['label']}" for card in record["cards"]]
    return " | ".join(
        [record["title"], record["text"], *cards, *(f"{name}: {value}" for name, value in record["facts"])]
    )


def test_one_attack_alone() -> None:
    text = text_of(SINGLE)
    for absent in ("honest", "0 of 0", "accusation", "accuracy", "part at"):
        assert absent not in text, absent
    assert "1 of 1 cheats convicted" in text and "one attempt to cheat" in text


def test_the_whole_demonstration() -> None:
    text = text_of(WHOLE)
    for present in (
        "the honest trainer's claim",
        "97.5 %",
        "1 of 1 false accusations dismissed",
        "the attempts to cheat",
        "step 1",
    ):
        assert present in text, present
    assert "Mode nearest (binary64, rounded): did not differ within the run" in text


def test_deliveries_are_counted_and_a_wrong_end_fails_the_demonstration() -> None:
    sold = Sale("no-key", "keeps the key", "undelivered", "no key", [], 0, {"cheat": -1, "burnt": 1}, True)
    played = replace(SINGLE, exchanges=[sold, replace(sold, right=False)])
    assert "1 of 2 deliveries ended as they must" in text_of(played)
    assert not as_expected(played) and as_expected(replace(played, exchanges=[sold]))


def test_a_bonus_with_a_wrong_total_fails_the_demonstration() -> None:
    paid, missed = Prize("half", 20, 26, "paid", ""), Prize("all", 41, 26, "returned", "NotTrained")
    assert as_expected(replace(SINGLE, prizes=[paid, missed]))
    assert not as_expected(replace(SINGLE, prizes=[replace(paid, outcome="returned")]))
    assert not as_expected(replace(SINGLE, prizes=[replace(missed, outcome="paid")]))
    assert "2 of 2 bonuses by accuracy ended as they must: 1 paid, 1 returned" in text_of(
        replace(SINGLE, prizes=[paid, missed])
    )


def test_an_omitted_comparison_is_not_reported() -> None:
    """The short demonstration has no comparison."""
    honest = {k: v for k, v in HONEST.items() if not k.endswith("_diverged_at")}
    assert "part" not in text_of(replace(WHOLE, honest=honest)).split("Money")[0].split("Devices")[1]


def test_failures_are_marked() -> None:
    cards = {card["label"]: card for card in story_record(replace(WHOLE, conserved=False))["cards"]}
    assert cards["cheats convicted"]["value"] == "1 of 2" and cards["cheats convicted"]["good"] is False
    assert [c["good"] for label, c in cards.items() if label.startswith("money")] == [False]


def test_bits_are_shown_with_their_values() -> None:
    assert with_value("0xffffffff", True) == "0xffffffff = -1"
    assert with_value("0x7fc00000", False) == "0x7fc00000 = nan"
    assert with_value("0x3dcccccd", False) == "0x3dcccccd = 0.1" != with_value("0x3dccccce", False)
    assert with_value(None, False) == ""


def test_money_is_exact() -> None:
    assert "money in = out + credits + burnt, to the wei" in text_of(SINGLE)
    texts = (
        "in 3.000000000000000001 = out 1 + credits 1 + burnt 1.000000000000000001; the contract's balance is "
        "2.000000000000000001"
    )
    assert texts in text_of(SINGLE)
    assert [exact_ether(x) for x in (0, 10 * ETHER, ETHER // 2)] == ["0", "10", "0.5"]


def test_a_verdict_by_blocks_shows_no_uncomputed_bits() -> None:
    blocks = replace(ONE, exact_bits=None, part=3)
    assert (blocks.exact, blocks.facts()["exact_bits"], blocks.facts()["part"]) == ("by partial sum 3", None, 3)


def test_the_report_is_the_page_with_the_state_and_the_story(tmp_path: Path) -> None:
    write_report(WHOLE, {"game": {"chain": 31337}}, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    data = re.search(r'<script type="application/json" id="state">(.*?)</script>', page, re.S)
    assert data is not None
    state = json.loads(data[1])
    assert state["game"] == {"chain": 31337} and state["story"]["cards"] == story_record(WHOLE)["cards"]


def printed(result: Result) -> str:
    """The screen's output for a result: its verdicts, then the table."""
    screen = Screen()
    screen.console = Console(file=StringIO(), width=200, highlight=False)
    for dossier in (*result.accusations, *result.attacks):
        screen.verdict(dossier)
    screen.table(result)
    return screen.console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_has_five_columns_within_100_characters() -> None:
    long = replace(ONE, name="wrong-learning-rate", operator="120 map mul optimizer block.3.attention.output.bias")
    table = printed(replace(WHOLE, attacks=[long])).partition("Verdicts")[2].partition("money in")[0]
    lines = table.splitlines()[1:]
    assert max(map(len, lines)) <= 100 and lines[1].count("┃") == 1 + len(COLUMNS) == 6
    assert "wrong-learning-rate" in table and "element 16384" in re.sub(r"\s+", " ", table)


VERDICT = re.compile(
    r"  (convicted|dismissed) by \w+ at step \d+, .+, element \d+: claimed 0x\w{8} = \S+, exact 0x\w{8} = \S+"
)
MONEY_LINE = re.compile(
    r"  money in [\d.]+ = out [\d.]+ \+ credits [\d.]+ \+ burnt [\d.]+ ether: conserved; \d+ seconds"
)


def test_the_readme_shows_the_current_output() -> None:
    readme = (ROOT / "README.md").read_text()
    block = readme.partition("  watch it: ")[2].partition("```")[0].splitlines()
    ours = printed(WHOLE).splitlines()
    for shape, start in ((VERDICT, ("  convicted", "  dismissed")), (MONEY_LINE, ("  money in",))):
        for lines in (block, ours):
            found = [line for line in lines if line.startswith(start) and "timeout" not in line]
            assert found and all(shape.fullmatch(line) for line in found if "bits" not in line), found
    heading = [line.split() for line in ours if line.startswith("┃")]
    assert heading[0] in [line.split() for line in block if line.startswith("┃")]
