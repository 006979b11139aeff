"""A connection to a node on this machine: the polling interval of an idle role, no use of proxies, no
passwords but those of URLs."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vgame.chain.connection import Chain
from vgame.chain.embedded import serve


@pytest.fixture
def chain() -> Iterator[Chain]:
    server = serve()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    chain = Chain(f"http://127.0.0.1:{server.server_port}")
    chain.pause(0)
    yield chain
    server.shutdown()
    server.server_close()


def paused(chain: Chain, seconds: float) -> float:
    begin = time.monotonic()
    chain.pause(seconds)
    return time.monotonic() - begin


def test_a_pause_ends_with_a_block(chain: Chain) -> None:
    threading.Timer(0.2, chain.advance, [1]).start()
    assert 0.1 < paused(chain, 60) < 30


def test_a_block_mined_during_the_round_ends_the_pause_at_once(chain: Chain) -> None:
    chain.advance(1)
    assert paused(chain, 60) < 30


def test_without_a_block_a_pause_ends_in_time(chain: Chain) -> None:
    assert 0.3 <= paused(chain, 0.3) < 30


def test_connections_to_this_machine_use_no_proxy(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Chain(chain.url).chain_id == chain.chain_id


def test_an_endpoint_gets_no_password_but_that_of_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a password for every server."""
    (tmp_path / "netrc").write_text("default login me password SECRET\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    seen = list[str | None]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["Authorization"])
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = json.dumps({"jsonrpc": "2.0", "id": query["id"], "result": "0x1"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.2", 0), Handler) as server:  # not a name that proxies are never used for
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        for login in ("", "you:word@"):
            assert Chain(f"http://{login}127.0.0.2:{server.server_port}").chain_id == 1
        server.shutdown()
    assert set(seen[:1]) == {None} and set(seen) == {None, f"Basic {b64encode(b'you:word').decode()}"}
