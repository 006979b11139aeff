"""The page's server: only for this machine's browsers, read-only, and equal to its state."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page's server is not tested: pip install -e '.[watch]'")

from vgame.errors import ChainError, VgameError
from vgame.watch.differences import apply
from vgame.watch.server import PAGE, SCRIPTS, Hub, PageServer, events
from vgame.watch.static import static_page

GAME = {"game": {"chain": 1, "names": {}}}


@pytest.fixture
def server() -> Iterator[PageServer]:
    made = PageServer(Hub(lambda: dict(GAME), every=0.05))
    made.start()
    yield made
    made.stop()


def ask(server: PageServer, path: str = "", host: str | None = None, method: str = "GET") -> Any:
    request = urllib.request.Request(server.url + path, headers={"Host": host} if host else {}, method=method)
    return urllib.request.urlopen(request, timeout=10)


def test_every_file_comes_with_the_policy_and_from_here(server: PageServer) -> None:
    for path in ("", "watch.css", *SCRIPTS, "state"):
        answer = ask(server, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy, path
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", answer.read()), path
    assert json.load(ask(server, "state")) == GAME


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "169.254.169.254", "evil.example:80"])
def test_a_request_for_another_host_name_is_refused(server: PageServer, host: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "state", host)
    assert refused.value.code == 400 and b"names" not in refused.value.read()
    assert ask(server, "state", "localhost:1").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(server: PageServer, method: str) -> None:
    for path in ("", "state", "events"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(server, path, method=method)
        assert refused.value.code == 405


def test_only_loopback_listens(server: PageServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert server._socket.getsockname()[0] == "127.0.0.1"


def test_a_taken_port_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(VgameError, match=rf"port {port} of 127.0.0.1 cannot be used.*--port"):
            PageServer(Hub(dict), port)


def state_of_page(hub: Hub, states: list[dict[str, Any]]) -> dict[str, Any]:
    """The page's state after these states of the hub, one after the other."""

    async def listen() -> dict[str, Any]:
        async def never() -> bool:
            return False

        held: dict[str, Any] = {}
        stream = events(hub, never)
        for state in states:
            hub.look = lambda s=state: s
            hub.once()
            kind, data = (await anext(stream)).split("\n")[:2]
            output = json.loads(data.removeprefix("data: "))
            held = output if kind == "event: state" else apply(held, output)
        await stream.aclose()
        return held

    return asyncio.run(listen())


def test_a_page_that_applies_differences_has_the_state() -> None:
    states = [{"a": 1}, {"a": 1, "b": {"c": [1]}}, {"b": {"c": [2]}}, {"d": None}]
    assert state_of_page(Hub(dict), states) == states[-1]
    assert state_of_page(Hub(dict), states[:3]) == states[2]


def test_an_error_is_shown_beside_the_last_state_until_it_is_over() -> None:
    hub, answers = Hub(lambda: answers.pop(0)()), []

    def fails() -> dict[str, Any]:
        raise ChainError("no answer from the node")

    answers += [lambda: {"a": 1}, fails, fails, lambda: {"a": 2}]
    for expected in ({"a": 1}, {"a": 1, "problem": {"text": "no answer from the node"}}, None, {"a": 2}):
        hub.once()
        assert expected is None or hub.state == expected


def test_an_open_page_shows_changes() -> None:
    """Over HTTP, from the hub's own thread: the first request starts the polling."""
    count = itertools.count()
    made = PageServer(Hub(lambda: {"game": {"now": next(count)}}, every=0.05))
    made.start()
    held: dict[str, Any] = {}
    with ask(made, "events") as stream:
        while held.get("game", {}).get("now", 0) < 3:
            kind, data = stream.readline(), stream.readline().decode()
            if (output := json.loads(data.removeprefix("data: "))) and kind == b"event: difference\n":
                held = apply(held, output)
            assert stream.readline() == b"\n"
    made.stop()


def test_a_closed_page_is_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(lambda: {"a": 1})

    async def listen() -> list[int]:
        stream = events(hub, lambda: asyncio.sleep(0, False))
        await anext(stream)
        during = hub.listeners
        await stream.aclose()
        return [during, hub.listeners]

    assert asyncio.run(listen()) == [1, 0]


@pytest.mark.parametrize("error", [IndexError("list index out of range"), RecursionError(), KeyError("\x1b[2J")])
def test_no_error_stops_the_page(error: Exception) -> None:
    """Fabricated events raise anything; the page must report it and continue."""
    answers: list[Any] = [error, None]

    def look() -> dict[str, Any]:
        if problem := answers.pop(0):
            raise problem
        return {"a": 1}

    hub = Hub(look)
    hub.once()
    output = hub.state["problem"]["text"]
    assert output.startswith(type(error).__name__) and "\x1b" not in output
    hub.once()
    assert hub.state == {"a": 1}


def test_one_read_at_a_time(server: PageServer) -> None:
    """A reader has state: two reads at once would mix it."""
    inside, most = [], []

    def look() -> dict[str, Any]:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return dict(GAME)

    server.hub.look = look
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(server, "state").read(), range(16)))
    assert max(most) == 1


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_causes_no_reads(server: PageServer, site: str) -> None:
    """It cannot read the answer, but each request would cause dozens of requests to the node."""
    looks: list[int] = []
    server.hub.look = lambda: looks.append(1) or dict(GAME)
    for path in ("state", "events"):
        request = urllib.request.Request(server.url + path, headers={"Sec-Fetch-Site": site})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 403
    assert not looks and json.load(ask(server, "state")) == GAME


def test_pages_beyond_the_limit_are_refused(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.watch.server.MOST_LISTENERS", 1)
    with ask(server, "events") as first:
        assert first.readline() == b"event: state\n"
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(server, "events")
        assert refused.value.code == 503


def test_a_page_receives_the_state_at_once_and_a_sign_of_life_without_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.watch.server.HEARTBEAT", 0.05)
    hub = Hub(lambda: {"a": 1})
    hub.once()

    async def listen() -> list[str]:
        async def never() -> bool:
            return False

        stream = events(hub, never)
        return [await anext(stream), await anext(stream)]

    first, second = asyncio.run(listen())
    assert first.startswith("event: state") and second.startswith("event: alive")


def test_no_text_ends_the_copys_data_and_only_its_own_script_runs() -> None:
    page = static_page({"game": {"x": "</script><script>alert(1)</script><!--"}})
    assert page.count("<script") == 2 and "alert(1)</script><!--" not in page
    assert re.search(r"script-src 'sha256-[\w+/]+=+'; style-src 'sha256-", page) and "/watch.js" not in page


def test_every_script_is_on_the_page_in_order() -> None:
    index = (PAGE / "index.html").read_text()
    assert re.findall(r'src="/(\w+\.js)"', index) == list(SCRIPTS)


def test_every_move_has_a_sentence_on_the_page() -> None:
    from vgame.chain.abi import artifact

    words = (PAGE / "words.js").read_text()
    names = [
        f["name"] for c in ("VerificationGame", "Settlement") for f in artifact(c)["abi"] if f["type"] == "function"
    ]
    moves = [
        n
        for n in names
        if re.match(
            r"select|tie|openLeaf|reveal|prove|challenge|post|timeout|"
            r"finalize|expire|refund|withdraw|createJob|acceptJob|setDelegate",
            n,
        )
    ]
    assert len(moves) > 20 and not [n for n in moves if f"\n  {n}: " not in words]
