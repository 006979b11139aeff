"""Data of the page outside the chain: the user's runs and accounts, reachable and unreachable roles."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("starlette", reason="the page is not tested: pip install -e '.[watch]'")

import vgame
from vgame.errors import VgameError
from vgame.runs.folder import open_run
from vgame.watch.command import Watched, _health, _runs
from vgame.watch.own import POINTS, Own, OwnRun, sampled


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of the user."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    data = {"x": torch.randn(24, 4), "y": torch.arange(24) % 3}

    def loss(module: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(module(batch["x"]), batch["y"])

    task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=8)
    folder = tmp_path_factory.mktemp("own") / "run"
    vgame.train(
        vgame.prepare(vgame.Job(task, steps=6, interval=2, seed=1, schedule=vgame.Constant(lr="0.1"))), str(folder)
    )
    return folder


def ordered(run: Path, **changed: Any) -> dict[str, Any]:
    """The record of a job that orders the run's bundle."""
    order = {k: v.hex() if isinstance(v, bytes) else v for k, v in open_run(run).bundle.order.items()}
    return {"spec": order | {"seed": str(order["seed"])} | changed, "root": None}


def test_a_run_shows_its_progress_and_the_jobs_that_order_it(run: Path) -> None:
    mine, other = ordered(run), ordered(run, steps=7)
    record = OwnRun(run).record({"aa": mine, "bb": other})
    assert (record["done"], record["steps"], record["checkpoints"], record["jobs"]) == (6, 6, 3, ["aa"])
    assert [step for step, _ in record["losses"]] == [1, 2, 3, 4, 5, 6] and record["jobs_agree"] == {}
    claims = {"aa": mine | {"root": record["root"]}, "cc": mine | {"root": "00" * 32}}
    assert OwnRun(run).record(claims)["jobs_agree"] == {"aa": True, "cc": False}


def test_a_growing_run_is_read_again(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    roots = (copy / "roots.bin").read_bytes()
    (copy / "roots.bin").write_bytes(roots[:32])
    (copy / "checks.bin").write_bytes((copy / "checks.bin").read_bytes()[:32])
    own = OwnRun(copy)
    assert own.record({})["done"] == 2 and own.record({})["root"] == ""
    (copy / "roots.bin").write_bytes(roots)
    assert own.record({})["done"] == 6


def test_losses_are_thinned_and_non_finite_ones_omitted() -> None:
    losses = [float(i) for i in range(10_001)]
    points = sampled(losses)
    assert len(points) <= POINTS and points[0] == [1, 0.0] and points[-1] == [10_001, 10_000.0]
    assert sampled([1.0, float("nan"), 2.0, float("inf")]) == [[1, 1.0], [3, 2.0]] and sampled([]) == []
    json.dumps(sampled([float("inf"), 1.0]), allow_nan=False)


class Quiet:
    """A game that is not queried."""


def own(**given: Any) -> Own:
    game: Any = Quiet()
    return Own(game, **given)


def test_a_damaged_run_is_an_alarm_and_does_not_end_the_page(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    records = own(runs=[OwnRun(tmp_path / "empty"), OwnRun(run)]).records({})
    assert records["alarm/0"]["kind"] == "run" and "empty" in records["alarm/0"]["text"]
    assert records["run/1"]["done"] == 6


@contextmanager
def endpoint(answer: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    server.shutdown()


def test_a_role_that_answers_is_shown_as_text() -> None:
    output = {"role": "trainer\u202e<b>", "doing": "m" * 10_000, "done": 3, "total": 7}
    with endpoint(json.dumps(output).encode()) as url:
        records = own(roles=[url]).records({})
    assert records["role/0"]["name"] == "trainer\\u202e<b>" and len(records["role/0"]["doing"]) < 500
    assert (records["role/0"]["done"], records["role/0"]["total"]) == (3, 7) and "alarm/0" not in records


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[1]", b'{"role": 1}', b'{"role": "x", "doing": "", "done": "many"}', b"\xff", b"[" * 60_000]
    + [b'{"role": "x", "doing": "", "done": %s}' % number for number in (b"Infinity", b"-1", b"1e300", b"true")],
)
def test_a_role_that_answers_nonsense_is_an_alarm(answer: bytes) -> None:
    with endpoint(answer) as url:
        records = own(roles=[url]).records({})
    assert records["alarm/0"]["kind"] == "silent" and records["role/0"]["doing"] == "does not answer"


@contextmanager
def raw(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server with arbitrary replies."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    with accepted, suppress(OSError):
                        accepted.recv(4096)
                        answer(accepted)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/health"


def dribble(to: socket.socket) -> None:
    to.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(200):
        to.sendall(b"X: y\r\n")
        time.sleep(0.1)


@pytest.mark.parametrize(
    "answer",
    [
        lambda to: to.sendall(b"no http at all\r\n\r\n"),
        lambda to: to.sendall(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n{}"),
        lambda to: to.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\n\r\n"),
        dribble,
    ],
    ids=["no http", "headers", "elsewhere", "dribble"],
)
def test_a_role_with_slow_or_invalid_http_is_an_alarm(
    answer: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must neither end the page's thread nor delay it by single bytes."""
    monkeypatch.setattr("vgame.watch.own.SECONDS", 0.5)
    with raw(answer) as url:
        begin = time.monotonic()
        records = own(roles=[url]).records({})
    assert records["alarm/0"]["kind"] == "silent" and time.monotonic() - begin < 3


def test_an_unreachable_role_is_an_alarm() -> None:
    assert own(roles=["http://127.0.0.1:9/health"]).records({})["alarm/0"]["kind"] == "silent"


@pytest.mark.parametrize("host", ["127.0.0.1:9", "node.example:sesame"])
def test_a_role_is_named_without_its_secrets(host: str) -> None:
    records = own(roles=[f"http://user:sesame@{host}/health?key=sesame#sesame"]).records({})
    assert records["role/0"]["doing"] == "does not answer" and "sesame" not in json.dumps(records).replace(host, "")
    assert " does not answer as a role: " in records["alarm/0"]["text"]


def test_a_full_disk_is_an_alarm(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = shutil.disk_usage
    monkeypatch.setattr("vgame.watch.own.shutil.disk_usage", lambda p: real(p)._replace(free=10**9))
    assert "1.0 GB left" in own(runs=[OwnRun(run)]).records({})["alarm/0"]["text"]


def test_a_store_shows_the_one_run_of_orders_that_differ_in_their_terms(run: Path, tmp_path: Path) -> None:
    bundle = open_run(run).bundle
    for name, terms in (("one", {}), ("two", {"slot": 77})):
        replace(bundle, terms=bundle.terms.model_copy(update=terms)).save(tmp_path / name)
    watched = Watched("", "", bundles=(tmp_path / "one", tmp_path / "two"), store=tmp_path / "store")
    assert [r.folder for r in _runs(watched)] == [tmp_path / "store" / bundle.identity.hex()[:16]]
    assert len(_runs(Watched("", "", runs=(run, run)))) == 1


def test_wrong_options_are_refused_at_once(run: Path, tmp_path: Path) -> None:
    with pytest.raises(VgameError, match="--store needs --bundle"):
        _runs(Watched("", "", store=tmp_path))
    with pytest.raises(VgameError):
        _runs(Watched("", "", runs=(tmp_path,)))
    for wrong in ("file:///etc/passwd", "127.0.0.1:9101", "ftp://x/", "http://"):
        with pytest.raises(VgameError, match="health endpoint"):
            _health(wrong)
    for wrong in ("user:SECRET@host", "host/SECRET/health", "user:SECRET?x@host"):
        with pytest.raises(VgameError, match="health endpoint") as refusal:
            _health(wrong)
        assert "SECRET" not in str(refusal.value)
    assert _health("http://127.0.0.1:9101/health") and [r.folder for r in _runs(Watched("", "", runs=(run,)))] == [run]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/SECRET/health",
        "http://user:SECRET@127.0.0.1:9/",
        "user:SECRET@host",
        "http://127.0.0.1:9/?key=SECRET",
        "user:SECRET?x@host",
    ],
)
def test_an_unreachable_role_is_named_without_its_secrets(url: str) -> None:
    records = own(roles=[url]).records({})
    assert records["alarm/0"]["kind"] == "silent" and "SECRET" not in str(records)
