"""Requests to the trainer's server: no passwords except those in the URL, the environment's proxy, errors of invalid
URLs."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vgame.delivery.fetch import Source
from vgame.errors import DeliveryError


class Handler(BaseHTTPRequestHandler):
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        self.send_response(206)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"abcd")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A server; the client's machine has a password for every server."""
    (tmp_path / "netrc").write_text("default login me password SECRET\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Seeing", (Handler,), {"seen": []})) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("login", ["", "you:word", "you%40home:w%3Ard"])
def test_a_server_gets_no_password_but_that_of_its_url(server: ThreadingHTTPServer, login: str) -> None:
    url = f"http://{login}{login and '@'}127.0.0.1:{server.server_port}/folder/"
    assert Source(url).get("chunks", 0, 4) == b"abcd"
    plain = {"": "", "you:word": "you:word", "you%40home:w%3Ard": "you@home:w:rd"}[login]
    expected = f"Basic {b64encode(plain.encode()).decode()}" if plain else None
    assert server.RequestHandlerClass.seen == [("/folder/chunks", expected)]


def test_a_proxy_of_the_environment_is_used(server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    assert Source("http://trainer.example/folder").get("chunks", 0, 4) == b"abcd"
    assert server.RequestHandlerClass.seen == [("http://trainer.example/folder/chunks", None)]


@pytest.mark.parametrize("url", ["http://[", "http://host:x/", "trainer.example"])
def test_an_invalid_url_is_an_error_of_the_first_request(url: str) -> None:
    with pytest.raises(DeliveryError):
        Source(url).get("chunks", 0, 4)
