"""scripts/analyse.py: a finding without a reason is reported, and so is a reason without its finding."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from analyse import Finding, Reason, compare, enclosing, reviewed  # noqa: E402

CAST = Finding("forge lint", "unsafe-typecast", "contracts/A.sol", "move: uint8(height)")
CLOCK = Finding("slither", "timestamp", "contracts/B.sol", "B.late: now > until")
REASONS = [
    Reason("forge lint", "unsafe-typecast", "below 64", "contracts/A.sol", ("move: uint8(height)",)),
    Reason("slither", "timestamp", "seconds are enough"),
]


def test_reviewed_findings_are_silent() -> None:
    assert compare({CAST, CLOCK}, REASONS) == []


def test_a_new_finding_is_reported() -> None:
    for other in (
        Finding(CAST.tool, CAST.kind, CAST.file, "move: uint8(index)"),
        Finding(CAST.tool, CAST.kind, "contracts/B.sol", CAST.place),
        Finding("slither", CAST.kind, CAST.file, CAST.place),
    ):
        (line,) = compare({CAST, CLOCK, other}, REASONS)
        assert line.startswith("no reason: ") and other.place in line and other.file in line


def test_a_stale_reason_is_reported() -> None:
    assert compare({CAST}, REASONS) == ["stale: slither, timestamp, every file"]
    assert "stale: forge lint, unsafe-typecast, contracts/A.sol, 'move: uint8(height)'" in compare({CLOCK}, REASONS)


def test_places_are_named_by_their_function() -> None:
    source = "contract A {\n    constructor() {}\n    function move(uint256 a)\n        external\n    {\n        "
    assert (
        enclosing(source) == "move" and enclosing(source[:40]) == "constructor" and enclosing("contract A {") == "top"
    )


def test_every_reason_is_a_sentence_about_one_tool() -> None:
    reasons = reviewed()
    assert {reason.tool for reason in reasons} == {"forge lint", "slither"}
    assert all(len(reason.reason.split()) > 4 and (ROOT / (reason.file or "contracts")).exists() for reason in reasons)
