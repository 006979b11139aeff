"""Nothing of a reply is kept for the next one: neither cookies, nor anything else of its header."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from wide import of_many

from vgame.chain.http import careful_session, provider
from vgame.delivery.fetch import Source
from vgame.errors import DeliveryError

SIZE = 30_000  # characters of each line of a header
NAMES = ("Set-Cookie", "Set-Cookie2", "WWW-Authenticate", "Link", "ETag", "Alt-Svc", "Location", "X-Other")


class Large(BaseHTTPRequestHandler):
    """Replies with large headers, all of them different."""

    protocol_version = "HTTP/1.1"
    status, body, count = 206, b"x" * 512, 0
    seen: list[str]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        cls = type(self)
        cls.count += 1
        cls.seen += [name for name in self.headers if "cookie" in name.lower()]
        lines = [f"HTTP/1.1 {self.status} {cls.count}", f"Content-Length: {len(self.body)}", "Retry-After: 100000"]
        for k in range(40):
            name = NAMES[k // 2 % len(NAMES)] if k % 2 else NAMES[0]
            lines.append(f"{name}: c{cls.count}x{k}={'x' * SIZE}; Path={'/' if k % 4 else '/never'}; Max-Age=999999")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + self.body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def handler() -> Iterator[tuple[type[Large], str]]:
    kind = type("Handler", (Large,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield kind, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", of_many([200, 206, 401, 404, 503], 200, 503))
@pytest.mark.parametrize("role", ["delivery", "endpoint"])
def test_no_reply_is_kept(handler: tuple[type[Large], str], role: str, status: int) -> None:
    kind, url = handler
    kind.status = status
    source, endpoint = Source(url), provider(url)
    endpoint.exception_retry_configuration = None  # it waits between its tries

    def ask() -> None:
        with suppress(Exception):
            if role == "delivery":
                source.get("leaves", 0, 512)
            else:
                endpoint.make_request("eth_blockNumber", [])  # type: ignore[arg-type]

    for _ in range(3):
        ask()
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            ask()
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 5 * 40 * SIZE, f"{kept:,} bytes of 20 replies"  # the server's thread holds the last one
    assert kind.count >= 23 and not kind.seen


def test_a_cookie_is_neither_kept_nor_sent(handler: tuple[type[Large], str]) -> None:
    kind, url = handler
    session = careful_session(url)
    for _ in range(2):
        with session.get(url, timeout=(5, 5)) as reply:
            assert reply.content == kind.body and not reply.cookies and not session.cookies
    assert not kind.seen


def test_a_reply_has_at_most_a_hundred_lines_of_header(handler: tuple[type[Large], str]) -> None:
    kind, url = handler

    def many(self: Large) -> None:
        self.wfile.write(b"HTTP/1.1 206 x\r\nContent-Length: 512\r\n" + b"A: b\r\n" * 200 + b"\r\n" + self.body)

    kind.do_GET = many  # type: ignore[method-assign]
    with pytest.raises(DeliveryError):
        Source(url).get("leaves", 0, 512)
