"""A session for untrusted servers keeps nothing of their replies."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vgame.delivery.fetch import Source


def test_cookies_are_neither_kept_nor_sent() -> None:
    """A server could fill the memory with them."""

    class Bakery(BaseHTTPRequestHandler):
        received: list[str | None] = []  # noqa: RUF012

        def do_GET(self) -> None:
            self.received.append(self.headers["Cookie"])
            self.send_response(206)
            for number in range(20):
                self.send_header("Set-Cookie", f"c{number}={'x' * 1000}; Path=/")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"1234")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Bakery) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        source = Source(f"http://127.0.0.1:{server.server_port}")
        for _ in range(2):
            assert source.get("leaves", 0, 4) == b"1234"
        server.shutdown()
    assert Bakery.received == [None, None] and not list(source.session.cookies)
