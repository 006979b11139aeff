"""docs/paper.md matches docs/paper.json. (CI runs scripts/paper.py --quick itself.)"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from paper_tables import TABLES, fill, tables  # noqa: E402


@pytest.fixture
def found() -> dict:
    return json.loads((ROOT / "docs/paper.json").read_text())


def test_the_page_holds_the_tables_of_the_json(found: dict) -> None:
    """The page's tables equal the script's output for the JSON file; the pictures exist."""
    page = (ROOT / "docs/paper.md").read_text()
    assert set(tables(found)) == set(TABLES) and fill(page, found) == page
    for name in ("divergence", "storage"):
        assert f"(paper-{name}.svg)" in page and (ROOT / f"docs/paper-{name}.svg").exists()


def test_tables_are_put_between_their_marks_only(found: dict) -> None:
    page = "before\n<!-- storage -->\nold\n<!-- end of storage -->\nafter\n"
    filled = fill(page, found)
    assert filled.startswith("before\n<!-- storage -->\n\n| step | b |") and "old" not in filled
    assert filled.endswith("<!-- end of storage -->\nafter\n") and fill(filled, found) == filled


def test_the_papers_claims_match_the_measurements(found: dict) -> None:
    """No tensor differs in a mode that replicates by proof or by its log; the sparse log is small enough."""
    for job, one in found["divergence"].items():
        for mode in ("correct", "proven", "logged"):
            run = one["modes"].get(mode, {"parted": None, "distance": {}})
            assert run["parted"] is None and not any(run["distance"].values()), (job, mode)
        assert one["modes"].get("fp32", {"parted": 1})["parted"] == 1
    for by_bits in found["corrections"].values():
        assert all(one["parted"] is None for one in by_bits.values())
    for job, one in found["time"].items():
        for window in ("adaptive", "proven"):
            trainer, auditor = (one["ratio"][f"{side}, {window}"][1] for side in ("trainer", "auditor"))
            assert trainer <= 1.5 and auditor <= 1.6, (job, window)
    for by_bits in found["large"].values():
        adaptive, proven = by_bits["32"]["adaptive"], by_bits["32"]["proven"]
        assert 100 * adaptive["file"] <= adaptive["packed"] and 20 * proven["file"] <= proven["packed"]
