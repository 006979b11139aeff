"""scripts/paper.py in a few steps: the same code that fills docs/paper.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from paper_tables import TABLES, tables  # noqa: E402


def test_the_reproduction_runs(tmp_path: Path) -> None:
    (tmp_path / "paper.md").write_text("before\n<!-- storage -->\nold\n<!-- end of storage -->\nafter\n")
    command = [sys.executable, ROOT / "scripts/paper.py", "--quick", "--out", tmp_path]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads((tmp_path / "paper.json").read_text())
    run = found["divergence"]["digits"]["modes"]["proven"]
    assert run["parted"] is None and set(run["distance"].values()) == {0.0} and run["entries"] > 0
    step = found["storage"]["digits"]["32"]["proven"]
    assert 0 < step["entries"] < 1e-3 * step["sums"] and 20 * step["file"] < step["sums"] / 5 <= step["packed"]
    assert set(found["time"]["digits"]["ratio"]) >= {"trainer", "auditor", "program binary64", "PyTorch binary64"}
    page = (tmp_path / "paper.md").read_text()
    assert (
        page.startswith("before\n<!-- storage -->\n\n| step | b |")
        and page.endswith("<!-- end of storage -->\nafter\n")
        and "old" not in page
    )
    assert (tmp_path / "paper-divergence.svg").read_text().count("<svg") == 1


def test_docs_paper_holds_the_tables_of_the_json() -> None:
    """The page's tables are what the script makes of the JSON beside it; the pictures are there."""
    page, found = (ROOT / "docs/paper.md").read_text(), json.loads((ROOT / "docs/paper.json").read_text())
    made = tables(found)
    assert set(made) == set(TABLES)
    for name, text in made.items():
        assert f"<!-- {name} -->\n\n{text}\n\n<!-- end of {name} -->" in page, name
    for name in ("divergence", "storage"):
        assert f"(paper-{name}.svg)" in page and (ROOT / f"docs/paper-{name}.svg").exists()
