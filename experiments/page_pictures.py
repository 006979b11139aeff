"""Pictures of the page for the docs, from a report of `vgame demo`: docs/images/*.png. Needs Playwright and a chromium.

python experiments/page_pictures.py vgame-report.html
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from vgame.watch.static import write_page

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
HEIGHT = 900


def state_of(report: Path) -> dict[str, Any]:
    """The state in a report."""
    found = re.search(r'<script type="application/json" id="state">(.*?)</script>', report.read_text(), re.S)
    assert found is not None, f"{report} is no report of vgame demo"
    return json.loads(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    state = state_of(parser.parse_args().report)
    job = next(
        key.split("/")[1] for key, record in state.items() if key.startswith("dispute/") and record["status"] == "won"
    )
    views = {"jobs": "#/", "job": f"#/job/{job}", "dispute": f"#/job/{job}/dispute/0"}
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        page = Path(folder) / "page.html"
        write_page(state, page)
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, scheme, width in (
            ("jobs", "light", 1000),
            ("job", "light", 1000),
            ("dispute", "light", 1000),
            ("dispute", "dark", 360),
        ):
            tab = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
            tab.goto(page.as_uri() + views[name])
            tab.locator("main h1").wait_for()
            tab.screenshot(path=IMAGES / (f"page-{name}.png" if width > 360 else f"page-{name}-narrow.png"))
        browser.close()


if __name__ == "__main__":
    main()
