"""An endpoint between a player and a node, on loopback: it forwards requests, or applies faults."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Request = dict[str, Any]
Lie = Callable[[Request, Callable[[], Request]], Request]  # the request, and a function to the true reply


class Proxy(BaseHTTPRequestHandler):
    """Forwards to `target`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two segments: each reply would wait 40 ms for an acknowledgement
    target: str

    def do_POST(self) -> None:
        self.reply(self.forward(self.body()))

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def reply(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def forward(self, body: bytes) -> bytes:
        request = urllib.request.Request(self.target, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.read()

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *args: object) -> None:
        """Requests are not logged."""


class FaultyProxy(Proxy):
    """Fails in one of four ways."""

    dice: random.Random
    faults: dict[str, int]
    rate = 0.04  # of each fault

    def do_POST(self) -> None:
        body = self.body()
        draw = self.dice.random() / self.rate
        fault = {0: "drop", 1: "lose", 2: "delay", 3: "repeat"}.get(int(draw))
        if fault:
            self.faults[fault] = self.faults.get(fault, 0) + 1
        if fault == "drop":  # never arrives
            return self.hang_up()
        if fault == "delay":
            time.sleep(0.3)
        reply = self.forward(body)
        if fault == "repeat":  # a sent transaction is sent again
            reply = self.forward(body)
        if fault == "lose":  # it arrived, but the reply is lost
            return self.hang_up()
        self.reply(reply)


class DeadlyProxy(Proxy):
    """Kills the sender of each transaction, in turn before and after the transaction arrives."""

    kill: Callable[[], None] = staticmethod(lambda: None)
    kills = 0

    def do_POST(self) -> None:
        body = self.body()
        if b"eth_sendRawTransaction" not in body:
            return self.reply(self.forward(body))
        if self.kills % 2:
            self.forward(body)
        type(self).kills += 1
        self.kill()
        self.hang_up()


class LyingProxy(Proxy):
    """Replies by the function `lie`; without one, honestly."""

    lie: Lie | None = None
    batches = True  # batches of requests are accepted

    def do_POST(self) -> None:
        body, lie = self.body(), type(self).lie
        if lie is None:
            return self.reply(self.forward(body))
        query = json.loads(body)
        if isinstance(query, list) and not self.batches:
            return self.reply(b'{"jsonrpc": "2.0", "error": {"code": -32600, "message": "no batches"}}')
        replies = [self.reply_to(one) for one in query] if isinstance(query, list) else self.reply_to(query)
        self.reply(json.dumps(replies).encode())

    def reply_to(self, query: Request) -> Request:
        """The reply to one request, of a batch too."""
        found = type(self).lie(query, lambda: json.loads(self.forward(json.dumps(query).encode())))
        return {"jsonrpc": "2.0", "id": query["id"]} | found


class DeepProxy(Proxy):
    """Replies with deeply nested lists."""

    def do_POST(self) -> None:
        self.body()
        self.reply(b"[" * 10**6)


class HugeProxy(Proxy):
    """Sends zeros: endlessly in a header, a body or its chunks, or the compressed content of `packed`."""

    begin, packed = "", b""

    def reply(self, content: bytes) -> None:
        if not self.begin:
            return super().reply(content)
        self.close_connection = True
        piece = bytes(2**16)
        header, piece = {
            "header": ("X: ", b"0\r\nX: "),
            "body": (f"Content-Length: {10**12}\r\n\r\n", piece),
            "chunk": ("Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + piece + b"\r\n"),
            "compressed": (f"Content-Encoding: gzip\r\nContent-Length: {len(self.packed)}\r\n\r\n", self.packed),
        }[self.begin]
        with suppress(OSError):  # the client has gone
            self.wfile.write(f"HTTP/1.1 200 OK\r\nConnection: close\r\n{header}".encode() + piece)
            while self.begin != "compressed":
                self.wfile.write(piece)


class RedirectingProxy(Proxy):
    """Redirects all requests, in a circle."""

    requests = 0

    def do_POST(self) -> None:
        self.body()
        type(self).requests += 1
        self.send_response(307)
        self.send_header("Location", f"/{self.requests}")
        self.send_header("Content-Length", "0")
        self.end_headers()


class DrippingProxy(Proxy):
    """Sends its replies byte by byte, from `begin` on: the body, the header, or endless informational responses."""

    pause, begin = 0.0, "body"

    def reply(self, content: bytes) -> None:
        if not self.pause:
            return super().reply(content)
        header = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nX-Filler: {'x' * 100}\r\n\r\n".encode()
        whole = {"body": header, "header": b"", "continue": b""}[self.begin]
        slow = {"body": content, "header": header + content, "continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 100}[
            self.begin
        ]
        with suppress(OSError):  # the client has gone
            self.wfile.write(whole)
            for byte in slow:
                time.sleep(self.pause)
                self.wfile.write(bytes([byte]))


@contextmanager
def served(proxy: type[Proxy], target: str, **settings: Any) -> Iterator[tuple[type[Any], str]]:
    """A proxy of its own class, and its endpoint."""
    handler = type("Served", (proxy,), {"target": target, **settings})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield handler, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
