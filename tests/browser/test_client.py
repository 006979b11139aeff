"""The page for a client who paid: names, money, times, the next step, the weights, and every wei of a conviction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from frauds import LIE, SETUP
from scene import fast_scene
from test_page import Stage

from vgame.chain.records import Phase


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(fast_scene())
    yield made
    made.server.stop()


def show(stage: Stage, page: Any, view: str = "#/") -> str:
    """The text of a view, as it stands now."""
    stage.look()
    page.goto("about:blank")
    page.goto(stage.server.url + view)
    page.locator("main h1:not(:text('Connecting'))").wait_for()
    return page.inner_text("main")


def own_run(play: Any) -> dict[str, Any]:
    return {
        "name": "own", "folder": "/a/very/long/way/to/the/folder/of/a/run", "steps": 8, "done": 8, "checkpoints": 3,
        "losses": [[1, 2.0], [8, 0.5]], "root": "aa", "jobs": [play.id.hex()], "jobs_agree": {},
    }  # fmt: skip


def own(stage: Stage, address: str) -> None:
    stage.extra = {"role/account 0": {"name": "Own account", "doing": "", "address": address, "credits": "0"}}


def test_accounts_have_names_or_roles(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    play.run(play.trainer, auditor)
    own(stage, play.client.wallet.address)
    stage.reader.names[auditor.address] = "Ann"
    text = show(stage, page, f"#/job/{play.id.hex()}")
    assert re.search(r"own account, client 0x\w+…\w{4}", text) and re.search(r"trainer 0x\w+…\w{4}", text)
    assert "Ann" in text and "auditor 0x" not in text
    assert play.job.name and page.locator("h1", has_text=play.job.name).count() == 1


def test_your_money_the_next_step_and_the_weights(stage: Stage, page: Any) -> None:
    play = stage.scene.post(SETUP)
    own(stage, play.client.wallet.address)
    view, reward = f"#/job/{play.id.hex()}", SETUP.spec.reward / 10**18
    text = show(stage, page, view)
    assert re.search(rf"Your money: {reward:g} ether locked; back by .*, unless a trainer accepts", text)
    assert "Next: a trainer accepts by" in text and "not contested" not in text and "Get the weights" not in text
    play.trainer = play.new_trainer()
    play.trainer.accept()
    assert "back or paid by" in show(stage, page, view) and "Next: the trainer claims by" in page.inner_text("main")
    play.trainer.claim()
    text = show(stage, page, view)
    assert (
        re.search(r"Next: it becomes final at .*, unless an auditor disputes it", text)
        and "not contested so far" in text
    )
    play.run_to_end(play.trainer)
    text = show(stage, page, view)
    assert play.phase is Phase.FINAL and f"Your money: {reward:g} ether paid." in text
    assert "Next: nothing. The claim is final and paid." in text
    assert f"vgame check model.safetensors --rpc URL --game {stage.scene.address} --job {play.id.hex()}" in text


def test_times_are_local_with_their_age_and_block(stage: Stage, browser: Any) -> None:
    play = stage.scene.claimed(SETUP)
    stage.look()
    context = browser.new_context(timezone_id="Asia/Kathmandu")  # UTC + 5:45
    tab = context.new_page()
    tab.goto(f"{stage.server.url}#/job/{play.id.hex()}")
    tab.get_by_role("heading", name="Transactions").wait_for()
    move = next(r for k, r in stage.hub.state.items() if k.startswith("move/"))
    cell = tab.locator("td[data-label=When]").last
    utc, local = cell.locator("span[title]").first.get_attribute("title"), cell.inner_text()
    minutes = move["time"] // 60 + 5 * 60 + 45
    assert (
        utc.endswith("UTC") and f"{minutes // 60 % 24:02}:{minutes % 60:02}" in local and re.search(r"ago|now", local)
    )
    assert tab.locator("td[data-label=Block]").last.inner_text() == f"{move['block']:,}"
    assert tab.locator("td[data-label=Transaction] span").last.get_attribute("title") == move["transaction"]
    context.close()


@pytest.mark.parametrize("auditors", [1, 3])
def test_every_wei_of_a_conviction_is_shown(stage: Stage, page: Any, auditors: int) -> None:
    play = stage.scene.claimed(SETUP, LIE)
    play.run(play.trainer, *(play.auditor() for _ in range(auditors)))
    assert play.phase is Phase.CONVICTED
    text = show(stage, page, f"#/job/{play.id.hex()}")
    assert "What becomes of every wei" in text and "convicted: the contract computed" not in text
    page.goto(f"{stage.server.url}#/job/{play.id.hex()}")
    flows = [r for k, r in stage.hub.state.items() if k.startswith("flow/")]
    paid = sum(int(f["wei"]) for f in flows if f["payee"] == "contract")
    rows = page.evaluate(
        "() => { const paid = (t) => t.caption.textContent.startsWith('Paid into');"
        " const t = [...document.querySelectorAll('table')].find(paid);"
        " const wei = c => { const s = c.querySelector('.about'); return s ? s.title : c.textContent; };"
        " return [...t.tBodies[0].rows].map(r => wei(r.cells[1])); }"
    )
    digits = [row.removesuffix(" ether").partition(".") for row in rows]
    assert sum(int(whole + rest.ljust(18, "0")) for whole, _, rest in digits) == paid and len(rows) >= 3


def test_windows_of_no_seconds_are_not_shown(stage: Stage, page: Any) -> None:
    play = stage.scene.post(SETUP)
    text = show(stage, page, f"#/job/{play.id.hex()}")
    assert not re.search(r"\b(?<!\d)0 seconds", text) and "confirm window" in text
    assert page.locator("tr", has_text="confirm window").locator("td").nth(1).inner_text() == "none"


def test_an_own_run_has_one_heading(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP)
    stage.extra = {"run/0": own_run(play)}
    for view, heading in (("#/roles", "Run own"), (f"#/job/{play.id.hex()}", "Own run")):
        show(stage, page, view)
        assert [h for h in page.locator("main h2").all_inner_texts() if "un" in h and "own" in h.lower()] == [heading]
        text = page.inner_text("main")
        assert "8 steps of 8 are computed, 3 checkpoints committed." in text
        assert page.locator("main svg polyline").count() == 1  # its losses


def test_roles_that_train_are_shown_before_there_is_an_order(stage: Stage, page: Any) -> None:
    stage.extra = {
        f"role/{n} cheat": {"name": f"{n} cheat", "doing": "train", "done": 3 + n, "total": 60} for n in range(5)
    } | {"role/idle": {"name": "idle", "doing": "ended"}}
    text = show(stage, page)
    assert "At work" in text and all(f"{n} cheat" in text for n in range(5)) and "idle" not in text


WIDTHS = (390, 800, 1440)
NARROW = """() => [...document.querySelectorAll('main *')].filter((e) => {
  const own = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join(' ');
  if (own.length < 6 || e.closest('.unseen, svg, .bits') || !e.getClientRects().length) return false;
  const range = document.createRange(); range.selectNodeContents(e);
  const lines = new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size;
  const words = own.split(/\\s+/).length;
  return lines > words + 2 && own.length / lines < 6;
}).map((e) => e.outerHTML.slice(0, 160))"""
TALL = """() => [...document.querySelectorAll('tbody tr')].filter((r) => r.getBoundingClientRect().height > 150)
  .map((r) => `${r.getBoundingClientRect().height} ${r.textContent}`)"""
BROKEN = """() => [...document.querySelectorAll('td .mono')].filter((e) => e.textContent.includes('…') &&
  e.getClientRects().length > 1).map((e) => e.textContent)"""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_is_readable_at_every_width(stage: Stage, page: Any, tmp_path: Any, width: int) -> None:
    """No sideways scrolling, no text with one letter per line; a screenshot of each view is kept."""
    play = stage.scene.claimed(SETUP, LIE)
    play.run(play.trainer, play.auditor(), play.auditor())
    own(stage, play.client.wallet.address)
    stage.extra["run/0"] = own_run(play)
    page.set_viewport_size({"width": width, "height": 900})
    job = f"#/job/{play.id.hex()}"
    for view in ("#/", job, f"{job}/dispute/0", "#/roles", "#/words"):
        show(stage, page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        assert not page.evaluate(NARROW), view
        assert not page.evaluate(TALL) and not page.evaluate(BROKEN), view  # rows are short, hashes in one piece
        picture = tmp_path / f"{width}-{view.strip('#/').replace('/', '-')[-12:] or 'jobs'}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 10_000
    page.evaluate("document.querySelector('main dl').style.width = '3ch'")  # such a view would be detected
    assert page.evaluate(NARROW)
