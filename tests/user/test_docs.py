"""The Python blocks of README and tutorial, run as a reader runs them: all of a page in one process, in an empty
folder."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_python_blocks_run(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    (tmp_path / "page.py").write_text("\n".join(blocks))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forked.run([sys.executable, "page.py"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "MATCH" in done.stdout or "True" in done.stdout


def test_the_api_page_has_every_public_name() -> None:
    import vgame

    named = set(re.findall(r"^::: vgame\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    assert named == set(vgame.__all__) - {"__version__"}


def test_every_page_is_in_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in site, f"mkdocs.yml does not name docs/{page.name}"
