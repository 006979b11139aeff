"""The page in a real browser, over a game that real agents play: opened before the challenge; shows every move and the
verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frauds import LIE, SETUP
from scene import Play, Scene, fast_scene

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.watch.differences import shown
from vgame.watch.reader import Reader
from vgame.watch.server import Hub, PageServer
from vgame.watch.static import write_page

AXE = Path(__file__).resolve().parents[2] / "node_modules" / "axe-core" / "axe.min.js"


class Stage:
    """A page over a game; it reads only on request, since the tests' chain has one thread."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.reader = scene, Reader(Game(scene.chain, scene.address))
        self.extra: dict[str, Any] = {}
        self.hub = Hub(lambda: self.reader.look() | self.extra)
        self.server = PageServer(self.hub)
        self.hub.start = lambda: None  # type: ignore[method-assign]
        self.server.start()

    def look(self) -> None:
        self.hub.once()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(fast_scene())
    yield made
    made.server.stop()


def rounds(play: Play, *players: Any) -> Iterator[None]:
    """The players' moves, one after the other."""
    for _ in range(80):
        if not any(player.step() for player in players):
            return
        yield


def test_a_dispute_is_watched_from_the_claim_to_the_verdict(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP, LIE)
    stage.look()
    page.goto(stage.server.url)
    page.locator("main .card a").click()
    page.get_by_text("Nobody disputes the claim").wait_for()
    auditor, seen = play.auditor(), 0
    stage.reader.names |= {auditor.address: "auditor Ann", play.trainer.address: "trainer Tom"}
    for _ in rounds(play, auditor, play.trainer):
        stage.look()
        if play.job.disputes and "dispute/0" not in page.url:
            page.get_by_role("link", name="Dispute 0").wait_for()
            page.get_by_role("link", name="Dispute 0").click()
        if play.job.disputes:
            count = sum(0 in r["disputes"] for k, r in stage.hub.state.items() if k.startswith("move/"))
            page.get_by_role("heading", name=f"{count} move{'' if count == 1 else 's'}", exact=True).wait_for(
                timeout=5000
            )
            seen = count
    assert play.phase is Phase.CONVICTED and seen >= 10
    page.get_by_role("heading", name="Dispute 0: the auditor was right").wait_for()
    page.get_by_role("heading", name="The verdict").wait_for()
    text = page.inner_text("main")
    assert "Decided by partial sum" in text and "auditor Ann" in text and "element" in text
    assert "The trainer loses its bond of 2 ether" in text
    assert page.locator("main p span[title='2.000000000000000001 ether']").count() == 1
    page.get_by_role("link", name="Its job").click()
    page.get_by_text("showed that the claim is wrong").wait_for()
    assert "half of the convicted" not in page.inner_text("main")  # not before it is paid


AMOUNTS = {
    0: "0 ether", 1: "0.000000000000000001 ether", 10**18: "1 ether", 15 * 10**17: "1.5 ether",
    123_456_789_012_345_678: "0.123457 ether", 2 * 10**18 + 1: "2 ether", -(10**18) - 1: "−1 ether",
    999_999_999_999_999_999: "1 ether", 999_999_999_999: "0.000001 ether", 123_456_749_999: "0.000000123457 ether",
    -123_456_789: "−0.000000000123457 ether", 10**30 + 5 * 10**11: "1000000000000.000001 ether",
}  # fmt: skip


def test_amounts_are_rounded_and_exact_in_a_tooltip(stage: Stage, page: Any) -> None:
    page.goto(stage.server.url)
    for wei, near in AMOUNTS.items():
        script = (
            "w => { const e = ether(w), exact = exactEther(w); return [exact, e.textContent ?? e, e.title ?? exact]; }"
        )
        exact, shown_as, tip = page.evaluate(script, str(wei))
        assert shown_as == near and tip == exact
        digits = exact.replace("−", "-").removesuffix(" ether").partition(".")
        assert int(digits[0] + digits[2].ljust(18, "0")) == wei or (wei < 0 and digits[0] == "-0")


def test_an_honest_game_shows_no_alarm(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP)
    accuser = play.auditor(None, FalseAccuser)
    page.goto(stage.server.url)
    seen = 0
    for _ in rounds(play, accuser, play.trainer):
        stage.look()
        seen += 1
        events = stage.hub.state["game"]["events"]
        page.wait_for_function("n => index && index.game && index.game.events === n && !wanted", arg=events)
        assert page.locator("main .alarm, main dd .bad").count() == 0 and "do not agree" not in page.inner_text("main")
        assert "problem" not in stage.hub.state
    assert seen >= 5 and play.verdicts[0][0] == "Dismissed"


def hostile() -> dict[str, Any]:
    """Hostile names from other accounts."""
    markup, turned = (
        "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>",
        "safe\u202ecba",
    )
    return {
        "role/0": {"name": shown(markup), "doing": shown(turned)},
        "alarm/0": {"kind": "claim", "text": shown("m" * 2**20)},
        "problem": {"text": shown(markup)},
    }


def test_hostile_strings_are_shown_as_text(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP)
    stage.extra = hostile()
    stage.reader.titles[play.id.hex()] = "</script><b>bold</b>"
    stage.look()
    page.goto(f"{stage.server.url}#/roles")
    page.get_by_text("<img src=x onerror").first.wait_for()
    assert "safe\\u202ecba" in page.inner_text("main") and "\u202e" not in page.inner_text("main")
    assert "1,048,576 characters" in page.inner_text("main")
    page.goto(stage.server.url)
    page.get_by_text("</script><b>bold</b>").first.wait_for()
    assert "owned" not in page.title() and page.locator("main img, main script, main b:text-is('bold')").count() == 0


def test_a_lost_connection_is_reported_and_restored(stage: Stage, page: Any) -> None:
    stage.scene.claimed(SETUP)
    stage.look()
    page.goto(stage.server.url)
    page.locator("#line", has_text="live").wait_for()
    port = int(stage.server.url.rsplit(":", 1)[1].strip("/"))
    stage.server.stop()
    page.locator("#line", has_text="connection lost").wait_for(timeout=20_000)
    again = Stage.__new__(Stage)
    again.hub = Hub(lambda: stage.reader.look())
    again.hub.once()
    again.hub.start = lambda: None  # type: ignore[method-assign]
    again.server = PageServer(again.hub, port)
    again.server.start()
    page.locator("#line", has_text="live").wait_for(timeout=30_000)
    again.server.stop()


def test_the_keyboard_reaches_everything_and_focus_stays(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP, LIE)
    stage.look()
    page.goto(f"{stage.server.url}#/job/{play.id.hex()}")
    button = page.get_by_role("button", name="client")
    button.wait_for()
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_text("Who orders the training").wait_for()
    play.auditor().step()
    stage.look()
    page.get_by_role("link", name="Dispute 0").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "client"
    assert page.get_by_text("Who orders the training").count() == 1


VIEWS = ("jobs", "job", "dispute", "roles", "words")


def address(stage: Stage, play: Play, view: str) -> str:
    job = f"#/job/{play.id.hex()}"
    views = {"jobs": "#/", "job": job, "dispute": f"{job}/dispute/0", "roles": "#/roles", "words": "#/words"}
    return stage.server.url + views[view]


@pytest.mark.parametrize("page", ["light", "dark"], indirect=True)
def test_every_view_is_accessible_and_fits_a_narrow_screen(stage: Stage, page: Any) -> None:
    if not AXE.exists():
        pytest.skip("accessibility is not checked: axe-core is not installed (npm ci)")
    play = stage.scene.claimed(SETUP, LIE)
    play.run(play.trainer, play.auditor(), play.auditor())
    stage.extra = {
        "role/0": {"name": "trainer", "doing": "trains", "done": 3, "total": 7, "balance": "1", "disk": 10**9},
        "run/0": {
            "name": "own",
            "steps": 8,
            "done": 8,
            "checkpoints": 3,
            "losses": [[1, 2.0], [8, 0.5]],
            "root": "aa",
            "jobs": [play.id.hex()],
            "jobs_agree": {},
        },
    }
    stage.look()
    for view in VIEWS:
        for width in (360, 390, 1100):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto("about:blank")
            page.goto(address(stage, play, view))
            page.locator("main h1:not(:text('Connecting'))").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
            narrow = "c => c.map(e => e.getBoundingClientRect().width / e.parentElement.getBoundingClientRect().width)"
            assert all(share > 0.9 for share in page.locator("caption").evaluate_all(narrow)), (view, width)
            page.evaluate(AXE.read_text().replace("</", "<\\/"))
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            assert not found["violations"], [
                (view, width, v["id"], v["nodes"][0]["html"][:200], v["nodes"][0]["failureSummary"])
                for v in found["violations"]
            ]


def crowd(job: dict[str, Any], disputes: list[dict[str, Any]], moves: list[dict[str, Any]]) -> dict[str, Any]:
    """500 disputes and 10,000 moves, made of real ones."""
    name, state = job["id"], {f"job/{job['id']}": job | {"disputes": 500, "open": 500}}
    for n in range(500):
        state[f"dispute/{name}/{n}"] = disputes[0] | {"number": n}
    for i in range(10_000):
        state[f"move/{name}/{i:06}"] = moves[i % len(moves)] | {"disputes": [i % 500], "transaction": f"{i:064x}"}
    return state


def test_500_disputes_and_10000_moves_are_shown_within_200_milliseconds(stage: Stage, page: Any) -> None:
    play = stage.scene.claimed(SETUP, LIE)
    play.run(play.trainer, play.auditor())
    real = stage.reader.look()
    kinds = {kind: [r for k, r in real.items() if k.startswith(kind)] for kind in ("job/", "dispute/", "move/")}
    stage.extra = crowd(kinds["job/"][0], kinds["dispute/"], kinds["move/"])
    stage.look()
    for view in ("job", "dispute", "jobs"):
        page.goto("about:blank")
        page.goto(address(stage, play, view))
        page.locator("main h1:not(:text('Connecting'))").wait_for()
        took = []
        for i in range(5):
            begin = time.perf_counter()
            key = f"move/{play.id.hex()}/{10_000 + i:06}"
            stage.extra[key] = kinds["move/"][0] | {"disputes": [0], "transaction": f"{i:064x}", "gas": 777_000 + i}
            stage.look()
            page.wait_for_function("k => key in state".replace("key", "k"), arg=key, timeout=5000)
            page.wait_for_function("() => !wanted")
            took.append(
                (time.perf_counter() - begin, float(page.evaluate("document.documentElement.dataset.rendered")))
            )
        rendered = sorted(r for _, r in took)[2]
        print(
            f"{view}: rendered in {rendered:.0f} ms; look, send and render in {1000 * min(t for t, _ in took):.0f} ms"
        )
        assert rendered < 200, took


def test_the_static_copy_shows_the_same_and_runs_nothing_else(stage: Stage, page: Any, tmp_path: Path) -> None:
    play = stage.scene.claimed(SETUP, LIE)
    play.run_to_end(play.trainer, play.auditor())
    stage.reader.titles[play.id.hex()] = "</script><script>document.title='owned'</script>"
    state = stage.reader.look()
    write_page(state, tmp_path / "report.html")
    page.goto((tmp_path / "report.html").as_uri())
    page.locator("#line", has_text="a copy").wait_for()
    page.get_by_role("link", name="</script>").click()
    page.get_by_role("link", name="Dispute 0").click()
    page.get_by_role("heading", name="The verdict").wait_for()
    assert "owned" not in page.title()
    assert json.loads(page.evaluate("JSON.stringify(state)")) == json.loads(json.dumps(state))
