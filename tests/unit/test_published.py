"""A run behind URLs is audited like one in a folder, even if servers drop, corrupt, stall, redirect or misstate
sizes."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from audited_runs import bundle, cheat

import vgame
from vgame.program.program import TensorLabel
from vgame.runs import published, source
from vgame.runs.published import open_published

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install -e '.[remote]'")

STATE = "states/0000000012.safetensors"  # of checkpoint 3


class Served(ThreadingHTTPServer):
    """A folder over HTTP. `faults`: name of a file -> (number of times, fault)."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.faults: dict[str, list] = {}
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}"
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def handle_error(self, *given) -> None:
        pass


class _Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.requests.append(name)
        fault = self.server.faults.get(name, [0])
        if fault[0] > 0:
            fault[0] -= 1
            fault[1](self)
        else:
            super().do_GET()

    def do_HEAD(self) -> None:
        fault = self.server.faults.get(self.path.lstrip("/"), [0, None])[1]
        if fault is boast:
            self.reply(b"", 2**40)
        elif fault is drip:
            drip(self)
        else:
            super().do_HEAD()

    def content(self) -> bytearray:
        return bytearray(Path(self.translate_path(self.path)).read_bytes())

    def reply(self, data: bytes, length: int | None = None, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        if length != -1:
            self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *given) -> None:
        pass


def drop(handler: _Handler) -> None:
    data = handler.content()
    handler.reply(data[: len(data) // 2], len(data))
    handler.close_connection = True


def cut(handler: _Handler) -> None:
    handler.reply(handler.content()[:-4])


def corrupt(handler: _Handler) -> None:
    data = handler.content()
    data[-1] ^= 1
    handler.reply(data)


def refuse(handler: _Handler) -> None:
    handler.send_error(503)


def missing(handler: _Handler) -> None:
    handler.send_error(404)


def stall(handler: _Handler) -> None:
    data = handler.content()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[:8])
    handler.wfile.flush()
    time.sleep(3)


def endless(handler: _Handler) -> None:
    handler.reply(b"", -1)
    while True:
        handler.wfile.write(bytes(2**16))


def boast(handler: _Handler) -> None:
    handler.reply(handler.content(), 2**40)


def drip(handler: _Handler, begin: bytes = b"HTTP/1.1 200 OK\r\nX: ") -> None:
    """Bytes that never become a header."""
    handler.wfile.write(begin)
    for _ in range(60):
        handler.wfile.write(b"a")
        time.sleep(0.1)


def drip_get(handler: _Handler) -> None:
    """The request for the size was answered."""
    drip(handler)


def drip_chunk(handler: _Handler) -> None:
    """Bytes of the body that never arrive."""
    drip(handler, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vgame.train(bundle(), tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VGAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "SILENT", 0.5)
    return tmp_path / "cache"


Serve = Callable[[Path], Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Served] = []

    def start(folder: Path) -> Served:
        servers.append(Served(folder))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_only_needed_data_are_fetched(run: Path, serve: Serve) -> None:
    server = serve(run)
    found = vgame.audit(server.url, segments=(3, 3))
    assert found == vgame.audit(run, segments=(3, 3)) and found.match
    assert sorted({n for n in server.requests if "states" in n}) == [f"states/{s:010}.safetensors" for s in (8, 12, 24)]
    server.requests.clear()
    assert vgame.audit(server.url) == vgame.audit(run)
    assert not {f"states/{s:010}.safetensors" for s in (8, 12, 24)} & set(server.requests)  # they are kept
    assert [n for n in server.requests if n.startswith("job")] == ["job/spec.json"]  # it has not changed


@pytest.mark.usefixtures("quick_workers")
def test_workers_audit_a_published_run(run: Path, serve: Serve, tmp_path: Path) -> None:
    assert vgame.audit(serve(run).url, workers=2, record=tmp_path / "record") == vgame.audit(run)


@pytest.mark.parametrize("fault", [drop, cut, corrupt, refuse, stall, endless, boast, missing])
@pytest.mark.parametrize("name", [STATE, "roots.bin", "job/initial.safetensors"])
def test_a_temporary_fault_is_retried(run: Path, serve: Serve, fault: Callable, name: str) -> None:
    """Each piece is requested again; a missing one from a mirror."""
    server, mirror = serve(run), serve(run)
    server.faults[name] = [1, fault]
    assert vgame.audit(server.url, mirrors=[mirror.url]).match


STAYS = [
    (drop, "broke off"),
    (cut, "broke off after 200 of 204 bytes"),
    (refuse, "broke off: 503"),
    (boast, "has 1,099,511,627,776 bytes, at most"),
]


@pytest.mark.parametrize(("fault", "message"), STAYS)
def test_a_permanent_fault_is_named(run: Path, serve: Serve, cache: Path, fault: Callable, message: str) -> None:
    server = serve(run)
    server.faults["states/0000000024.safetensors"] = [10**6, fault]
    with pytest.raises(vgame.StoreError, match=message):
        vgame.audit(server.url)
    assert not list(cache.glob("*/states/*24.safetensors")) and not list(cache.glob("**/*.half"))


def test_leftovers_of_killed_workers_are_removed(run: Path, serve: Serve, cache: Path) -> None:
    """Files that another process writes stay."""
    server = serve(run)
    states = open_published([server.url]).folder / "states"
    states.mkdir()
    (states / ".dead.half").write_bytes(bytes(1000))
    with open(states / ".living.half", "wb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        open_published([server.url])
    assert [path.name for path in states.iterdir()] == [".living.half"]


def test_a_pipe_behind_a_file_url_is_not_waited_for(copy: Path) -> None:
    (copy / "losses.bin").unlink()
    os.mkfifo(copy / "losses.bin")
    with pytest.raises(vgame.StoreError, match=r"losses\.bin broke off"):
        open_published([f"file://{copy}"])


@pytest.mark.parametrize(
    ("fault", "message"), [(drip, "cannot be read"), (drip_get, "no answer in time"), (drip_chunk, "no answer in time")]
)
def test_a_server_that_sends_single_bytes_is_named(
    run: Path, serve: Serve, monkeypatch, fault: Callable, message: str
) -> None:
    monkeypatch.setattr(published, "TRIES", 1)
    server = serve(run)
    server.faults["run.json"] = [10**6, fault]
    begin = time.monotonic()
    with pytest.raises(vgame.StoreError, match=rf"run\.json .*{message}"):
        open_published([server.url])
    assert time.monotonic() - begin < 4


def test_a_server_beyond_its_time_limit_gets_no_second_request(run: Path, serve: Serve, monkeypatch) -> None:
    monkeypatch.setattr(published, "ANSWER", 0.1)
    monkeypatch.setattr(published, "LATE", 0.5)
    server, mirror = serve(run), serve(run)
    names = [path.name for path in run.glob("states/*")]
    server.faults = {f"states/{name}": [10**6, drip] for name in names}
    elsewhere = published.Published([server.url, mirror.url])
    assert len(names) > 2 and all(elsewhere.has(name) for name in names)
    assert len(server.requests) == 1


def test_no_request_after_the_deadline(run: Path, serve: Serve) -> None:
    """A slow answer is aborted: the time is checked between two blocks, and before each try."""
    server, begin = serve(run), time.monotonic()
    store = open_published([server.url], until=begin + 3600)
    for each in store.elsewhere.sources:
        each.until = begin
    requests = len(server.requests)
    with pytest.raises(vgame.StoreError, match="no time is left for it"):
        store.load_state(3)
    assert len(server.requests) == requests


def test_one_wrong_state_is_cached(tmp_path: Path, monkeypatch) -> None:
    labels, alive = [TensorLabel("x", (4,))], weakref.WeakSet()

    def read(*given) -> tuple[torch.Tensor, ...]:
        assert len(alive) < 2
        alive.add(tensor := torch.zeros(4))
        return (tensor,)

    monkeypatch.setattr(published, "read_tensors", read)
    monkeypatch.setattr(published.Source, "fetch", lambda *given: None)
    (found,) = published.Published([f"file://{tmp_path}"]).state("a", labels, bytes(32))
    assert set(alive) == {found}


def test_endless_files_are_cut_off(run: Path, serve: Serve, cache: Path) -> None:
    server = serve(run)
    server.faults["run.json"] = [10**6, endless]
    with pytest.raises(vgame.StoreError, match=r"run\.json has more than 1,048,576 bytes, at most that many are"):
        vgame.audit(server.url)


def test_a_wrong_state_at_every_address_is_no_match(copy: Path, serve: Serve) -> None:
    server = serve(copy)
    server.faults[STATE] = [10**6, corrupt]
    found = vgame.audit(server.url)
    assert not found.match and found.differs == 3


def test_a_stale_checkpoint_of_another_job(run: Path, copy: Path, serve: Serve, tmp_path: Path) -> None:
    """At one address: the mirror is used. At all: no match."""
    other = vgame.train(bundle("0.2"), tmp_path / "other").folder
    shutil.copy(other / STATE, copy / STATE)
    first, mirror = serve(copy), serve(run)
    assert vgame.audit(first.url, mirrors=[mirror.url]).match
    shutil.rmtree(tmp_path / "cache")
    assert not vgame.audit(first.url).match


def test_a_cheat_is_found(copy: Path, serve: Serve) -> None:
    cheat(copy, (3, 5))
    assert vgame.audit(serve(copy).url) == vgame.audit(copy) and vgame.audit(copy).differs == 3


def test_a_missing_state_lengthens_its_part(copy: Path, serve: Serve) -> None:
    (copy / STATE).unlink()
    server = serve(copy)
    assert vgame.audit(server.url, segments=(4, 4)).match
    (copy / "states/0000000024.safetensors").unlink()
    shutil.rmtree(open_published([server.url]).folder)
    with pytest.raises(vgame.StoreError, match=r"0000000024\.safetensors is not there"):
        vgame.audit(server.url)


def test_cached_states_are_checked_too(run: Path, serve: Serve, cache: Path) -> None:
    server = serve(run)
    assert vgame.audit(server.url).match
    (kept,) = cache.glob(f"*/{STATE}")
    kept.write_bytes(kept.read_bytes()[:-1] + b"\1")
    assert vgame.audit(server.url).match and server.requests.count(STATE) == 2


def test_the_cache_is_bounded(run: Path, serve: Serve, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (run / STATE).stat().st_size
    monkeypatch.setenv("VGAME_CACHE_BYTES", str(2 * size))
    assert vgame.audit(serve(run).url).match
    assert sum(path.stat().st_size for path in cache.glob("*/states/*")) <= 2 * size
    monkeypatch.setenv("VGAME_CACHE_BYTES", "0")
    assert vgame.audit(serve(run).url).match and not list(cache.glob("*/states/*"))
    monkeypatch.setenv("VGAME_CACHE_BYTES", "much")
    with pytest.raises(vgame.VgameError, match="VGAME_CACHE_BYTES='much': a number of bytes is expected"):
        vgame.audit(serve(run).url)


def test_another_job_at_the_same_address(run: Path, tmp_path: Path, serve: Serve) -> None:
    served = Path(shutil.copytree(run, tmp_path / "served"))
    server = serve(served)
    assert vgame.audit(server.url).match
    other = vgame.train(bundle("0.2"), tmp_path / "other").folder
    shutil.rmtree(served)
    shutil.copytree(other, served)
    assert vgame.audit(server.url) == vgame.audit(other)


def test_a_run_of_another_order_is_refused(run: Path, serve: Serve, tmp_path: Path) -> None:
    bundle("0.2").save(tmp_path / "order")
    with pytest.raises(vgame.StoreError, match="is not a run of the order in"):
        vgame.audit(serve(run).url, order=tmp_path / "order")


def test_redirects_are_not_followed(run: Path, serve: Serve) -> None:
    server, elsewhere = serve(run), serve(run)
    server.faults["run.json"] = [10**6, lambda h: h.reply(b"", status=302, Location=f"{elsewhere.url}/run.json")]
    with pytest.raises(vgame.StoreError):
        vgame.audit(server.url)
    assert not elsewhere.requests


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://127.0.0.1:1/run", "cannot be read"), ("nonsense://host/run", "cannot be read: Protocol not known")],
)
def test_invalid_addresses_are_refused(url: str, message: str, cache: Path) -> None:
    with pytest.raises(vgame.VgameError, match=message):
        vgame.audit(url)
    assert not list(cache.glob("**/*.json"))


def test_mirrors_of_a_folder(run: Path) -> None:
    with pytest.raises(vgame.VgameError, match="is a folder; mirrors are for a run at a URL"):
        vgame.audit(run, mirrors=["http://127.0.0.1:1"])


def test_other_stores_of_fsspec(run: Path) -> None:
    pytest.importorskip("fsspec").filesystem("memory").put(str(run), "/k4run", recursive=True)
    assert vgame.audit("memory://k4run") == vgame.audit(run)
    assert vgame.audit(f"file://{run}") == vgame.audit(run)


def test_files_of_a_run_that_is_being_written(copy: Path, serve: Serve) -> None:
    """Losses and checks that are ahead of the roots."""
    (copy / "roots.bin").write_bytes((copy / "roots.bin").read_bytes()[: 4 * 32])
    found = vgame.audit(serve(copy).url)
    assert found.match and not found.complete and found.checked == (1, 2, 3, 4)
