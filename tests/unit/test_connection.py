"""A connection to a node on this machine: the polling interval of an idle role; no proxies; no passwords except those
in URLs; no requests to addresses that an endpoint names."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from eth_abi import encode
from web3.exceptions import ContractLogicError

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

    def reply(query: dict[str, Any], headers: Message) -> dict[str, Any]:
        seen.append(headers["Authorization"])
        return {"result": "0x1"}

    with replying(reply, "127.0.0.2") as address:  # not a name that proxies are never used for
        for login in ("", "you:word@"):
            assert Chain(f"http://{login}{address}").chain_id == 1
    assert set(seen[:1]) == {None} and set(seen) == {None, f"Basic {b64encode(b'you:word').decode()}"}


@contextmanager
def replying(reply: Callable[[dict[str, Any], Message], dict[str, Any]], host: str = "127.0.0.1") -> Iterator[str]:
    """A node that answers with `reply(query, headers)`; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"jsonrpc": "2.0", "id": query["id"]} | reply(query, self.headers)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"{host}:{server.server_port}"
        server.shutdown()


def test_no_address_is_fetched_that_an_endpoint_names() -> None:
    """EIP-3668: a revert that names URLs, which the caller should fetch."""
    own = "0x" + "12" * 20
    asked = list[str]()

    def reply(query: dict[str, Any], _: Message) -> dict[str, Any]:
        if query["method"] == "eth_chainId":
            return {"result": "0x1"}
        urls = [f"https://[::ffff:127.0.0.1]:{silent.getsockname()[1]}/{{sender}}/{{data}}"]
        words = encode(["address", "string[]", "bytes", "bytes4", "bytes"], [own, urls, b"", b"1234", b""])
        asked.append(query["method"])
        return {"error": {"code": 3, "message": "execution reverted", "data": "0x556f1830" + words.hex()}}

    with socket.create_server(("127.0.0.1", 0)) as silent, replying(reply) as address:
        silent.settimeout(0.5)
        chain = Chain(f"http://{address}")
        with pytest.raises(ContractLogicError):
            chain.ask(lambda: chain.web3.eth.call({"to": own, "data": "0x"}))
        with pytest.raises(TimeoutError):
            silent.accept()
    assert asked == ["eth_call"]
