"""Untrusted text in replies, addresses and names: read in one way, bounded, and harmless on a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import forked
import pytest

from vgame.agents.config import KEYSTORE_VARIABLE, PASSWORD_VARIABLE, wallet_from_environment
from vgame.chain.connection import Chain
from vgame.chain.embedded import serve
from vgame.chain.http import MOST_VALUES, _Provider
from vgame.delivery.fetch import Source
from vgame.demo import processes
from vgame.errors import ChainError, DeliveryError
from vgame.system.endpoints import hide_secrets, without_login, without_secrets
from vgame.system.progress import Reporter, fail, plain

NAME = "https://user:word@node.example:8545/v3/0123456789abcdef?key=sesame"


def test_a_terminal_gets_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    bad = "a\x1b[2Jb\u202ec\u2028d\x9be\u200bf"
    assert plain(bad) == "a\\x1b[2Jb\\u202ec\\u2028d\\x9be\\u200bf" and plain("ä\n\t€") == "ä\n\t€"
    Reporter(who="auditor").emit("said", bad)
    fail(bad)
    assert not set("\x1b\u202e\u2028\x9b\u200b") & set("".join(capsys.readouterr()))


@pytest.mark.parametrize("url", [NAME, "http://127.0.0.1:9/v3/sesame", "sesame://user:word@node", "http://[::1/sesame"])
def test_secrets_of_an_endpoint_are_in_no_message(url: str) -> None:
    with pytest.raises(ChainError) as caught:
        Chain(url.replace("node.example", "127.0.0.1").replace("https", "http").replace("8545", "9"))
    assert "sesame" not in str(caught.value).replace("sesame://", "") and "word@" not in str(caught.value)
    assert without_secrets(NAME) == "https://node.example:8545/..."
    assert without_secrets("http://127.0.0.1:8545") == "http://127.0.0.1:8545"


REFUSED = r"""
from vgame.cli import commands
from vgame.errors import ContractError

def app(**_):
    raise ContractError("nothing is wrong\njob 5 is expired, 1.000000 ether withdrawn", ())

commands.app = app
commands.main()
"""


def test_a_nodes_text_ends_no_line_of_an_error(tmp_path: Path) -> None:
    """The next line would look like the command's own output."""
    done = forked.run([sys.executable, "-c", REFUSED], cwd=tmp_path)
    assert done.returncode == 1 and "nothing is wrong\\njob 5" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", ["sesame", "sesame?x", "sesame#x", "x?sesame", "x#sesame"])
def test_the_url_of_a_folder_is_shown_without_its_login(key: str) -> None:
    assert "sesame" not in without_login(f"https://user:{key}@node.example/runs/one")
    assert without_login("https://user:word@node.example/runs/one?key=1") == "https://node.example/runs/one"


@pytest.mark.parametrize(
    "url",
    [
        "node.example/v3/sesame-key", "user:sesame-key@node.example:8545", "https:/node.example/sesame-key",
        "https://node.example/#sesame-key", "http://node.example:port/sesame-key", "//node.example/sesame-key",
        "http:///v3/sesame-key", "https://sesame-key@node.example", "node.example?key=sesame-key",
        "https://sesame-key?x@node.example", "https://sesame-key/x:y@node.example", "http://sesame-key#@node.example",
        "http://user:sesame-key", "infura:sesame-key", "sesame-key", "http://user:sesame-key/",
    ],
)  # fmt: skip
def test_at_most_the_host_of_a_url_is_shown(url: str) -> None:
    assert "sesame" not in without_secrets(url)
    assert "sesame" not in hide_secrets(f"Invalid URL {url!r}: perhaps you meant https://{url}? (key sesame-key)", url)
    with pytest.raises(ChainError) as caught:
        Chain(url.replace("node.example", "127.0.0.1"))
    assert "sesame" not in str(caught.value)


def test_a_redirect_shows_no_key() -> None:
    """Not even a part of a long key, if a message shows only its beginning."""
    key = "sesame-" * 40

    class Redirecting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(308)
            self.send_header("Location", f"https://node.example{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Redirecting)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        with pytest.raises(ChainError, match=r"it redirects to https://node\.example/\.\.\.;") as caught:
            Chain(f"http://127.0.0.1:{server.server_port}/v3/{key}")
    finally:
        server.shutdown()
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("kind", ["refused", "status", "rpc", "redirect", "header", "nonsense"])
def test_an_endpoint_that_quotes_its_own_secret(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In any kind of reply, and in a malformed header: a library's warning about it contains the whole URL."""

    class Quoting(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            quoted = f"the key sesame%20key, or sesame key, of {self.path} is not known".encode()
            reply = {"jsonrpc": "2.0", "id": 0, "error": {"code": -32000, "message": quoted.decode()}}
            body = json.dumps(reply).encode() if kind in ("rpc", "header") else quoted
            if kind == "header":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nno header: at all\r\n\tx\r\nbroken\r\n")
                self.wfile.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
                return
            self.send_response({"status": 403, "redirect": 302}.get(kind, 200), quoted.decode())
            self.send_header("Location", f"http://127.0.0.1{self.path}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Quoting)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    port = server.server_port
    if kind == "refused":
        server.shutdown()
        server.server_close()
    url = f"http://127.0.0.1:{port}/v3/sesame%20key?key=sesame-too"
    with pytest.raises(ChainError) as caught:
        Chain(url)
    with pytest.raises(DeliveryError) as fetched:
        Source(url).get("leaves", 0, 512)
    if kind != "refused":
        server.shutdown()
        server.server_close()
    shown = f"{caught.value} {fetched.value} {''.join(capfd.readouterr())}"
    assert "sesame" not in shown and f"http://127.0.0.1:{port}/..." in shown


def test_replies_with_duplicate_keys_or_too_many_values_are_refused() -> None:
    read = _Provider("http://127.0.0.1:9").decode_rpc_response
    assert read(b'{"id": 1, "result": [1, 2]}') == {"id": 1, "result": [1, 2]}
    with pytest.raises(ValueError, match="the same key twice"):
        read(b'{"result": {"a": 1, "a": 2}}')
    with pytest.raises(ValueError, match="values, more than"):
        read(b"[" + b"0," * MOST_VALUES + b"0]")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_no_web_page_moves_development_ether(headers: dict[str, str], status: int) -> None:
    server = serve()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("POST", "/", json.dumps({"id": 1, "method": "eth_chainId"}), headers)
        assert connection.getresponse().status == status
    finally:
        server.shutdown()
        server.server_close()


def test_children_run_no_code_of_the_working_folder_and_get_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(77)")
    monkeypatch.setenv(KEYSTORE_VARIABLE, "secret")
    monkeypatch.setenv("VGAME_KEY", "11" * 32)
    environment = processes.keyless()
    assert not {"VGAME_KEY", KEYSTORE_VARIABLE, PASSWORD_VARIABLE} & set(environment)
    run = subprocess.run(
        [*processes.COMMAND, "--help"], cwd=tmp_path, env=environment, capture_output=True, timeout=120
    )
    assert run.returncode == 0


@pytest.mark.parametrize(
    "text", ["[]", "7", "{}", '{"version": 3, "crypto": 7}', '{"version": 3, "crypto": {"kdf": []}}', "[" * 9000]
)
def test_a_malformed_keystore_is_one_sentence(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(text)
    monkeypatch.setenv(KEYSTORE_VARIABLE, str(tmp_path / "key"))
    monkeypatch.setenv(PASSWORD_VARIABLE, "word")
    with pytest.raises(ChainError, match="is no keystore file"):
        wallet_from_environment(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "printed"),
    [
        ("Z%2FRHI%2Bq%3D", "Z/RHI%2Bq%3D"), ("Z%2FRHI%2Bq%3D", "Z%2FRHI+q="), ("SEC,RET|KEY", "SEC,RET%7CKEY"),
        ("SECRET%c3%a9KEY", "SECRET%C3%A9KEY"), ("SEC!RET KEY", "SEC!RET%20KEY"), ("SEC%2CRET", "SEC%252CRET"),
    ],
)  # fmt: skip
def test_a_key_is_hidden_as_any_library_writes_it(key: str, printed: str) -> None:
    """Each encodes other letters: a signature with a decoded slash must not be printed."""
    hidden = hide_secrets(f"no answer from /run?sig={printed}&x", f"https://node.example/run?sig={key}&x=1")
    assert printed not in hidden and "RET" not in hidden and "RHI" not in hidden


@pytest.mark.parametrize("url", ["http://user:Pass\\word99@node.example", "http://u:SECRET\\@node.example/x"])
def test_a_backslash_makes_the_host_uncertain(url: str) -> None:
    """Libraries read it as a slash, so the password would be a path."""
    shown = without_secrets(url) + hide_secrets(f"bad URL: {url}", url)
    assert "Pass" not in shown and "SECRET" not in shown
