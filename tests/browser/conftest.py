"""A real browser for the tests of the page. Needs the extra `watch`, Playwright, and a chromium; skipped with a message
without them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "game"), str(ROOT / "tests" / "twin")]


QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


def chromium() -> str | None:
    """VGAME_CHROMIUM, or the one that Debian installs."""
    return os.environ.get("VGAME_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the page is not tested: Playwright is not installed"
    )
    if (path := chromium()) is None:
        pytest.skip(
            "the page is not tested: there is no chromium (apt-get install chromium, or name one in VGAME_CHROMIUM)"
        )
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(params=["light"])
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A tab; its errors and violations of its policy are failures."""
    context = browser.new_context(viewport={"width": 1100, "height": 900}, color_scheme=request.param)
    tab, wrong = context.new_page(), []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    tab.wrong = wrong
    yield tab
    context.close()
    assert not [w for w in wrong if "ERR_CONNECTION" not in w and "ERR_INCOMPLETE" not in w], wrong
