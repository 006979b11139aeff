"""A state as large as GPT-2 small's with Adam's slots, 1.5 GB, through a proxy that cuts, corrupts and stalls: whole,
in bounded memory."""

from __future__ import annotations

import resource
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from exchange import DELIVERY, KEY, Exchange, claim
from scene import Scene
from toy import Operator, Program, State

from vgame.agents.delivery import folder_server
from vgame.chain import http
from vgame.chain.records import Phase
from vgame.commit.words import LEAF_BYTES, leaf_hashes
from vgame.delivery import bulk
from vgame.delivery.buyer import Buyer
from vgame.delivery.cipher import job_key
from vgame.delivery.fetch import Missing, Source
from vgame.delivery.received import StateFile
from vgame.delivery.sealed import PIECE, SealedFolder, Shape, seal
from vgame.job.weights import read_weights
from vgame.program.program import TensorLabel

WIDTH, LAYERS = 768, 12
BLOCK = (
    WIDTH,
    WIDTH,
    3 * WIDTH**2,
    3 * WIDTH,
    WIDTH**2,
    WIDTH,
    WIDTH,
    WIDTH,
    4 * WIDTH**2,
    4 * WIDTH,
    4 * WIDTH**2,
    WIDTH,
)
GPT2 = (50257 * WIDTH, 1024 * WIDTH, *BLOCK * LAYERS, WIDTH, WIDTH)
SMALL = (3 * 10**6 + 1, 700, 1)
MOST_MEMORY = 400 * 2**20  # more than the process had: pieces, trees of chunks, buffers


def words(sizes: tuple[int, ...]) -> Iterator[np.ndarray]:
    """One tensor at a time."""
    random = np.random.default_rng(3)
    block = random.integers(0, 2**32, 2**20, dtype=np.uint32) & 0xFF7FFFFF  # no NaN
    for t, n in enumerate(sizes):
        yield np.resize(block, n) ^ np.uint32(t)


class Proxy(BaseHTTPRequestHandler):
    """Between client and server: of 100 replies five are cut, five corrupted, one stalls."""

    upstream = ""
    dice = Random(5)
    faults: dict[str, int] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        request = urllib.request.Request(self.upstream + self.path, headers={"Range": self.headers["Range"]})
        with urllib.request.urlopen(request) as reply:
            data = bytearray(reply.read())
        fault = self.dice.choice([*["cut"] * 5, *["corrupt"] * 5, "stall", *[""] * 89])
        self.faults[fault] = self.faults.get(fault, 0) + 1
        if fault == "corrupt":
            data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if fault in ("cut", "stall") else data)
        if fault == "stall":
            time.sleep(1.5)

    def log_message(self, *_: object) -> None:
        pass


def serve(server: ThreadingHTTPServer) -> str:
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    "sizes",
    [SMALL, pytest.param(GPT2 * 3, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])],
    ids=["small", "gpt2"],
)
def test_a_large_state_is_received_in_bounded_memory(
    scene: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sizes: tuple[int, ...],
) -> None:
    monkeypatch.setattr(http, "REPLY_TIMEOUT", 1)
    setup = replace(DELIVERY, program=Program((Operator(1),), tuple(State(n) for n in sizes)))
    play, trainer, shape = scene.post(setup), scene.game(), Shape(sizes)
    trainer.send("acceptJob", play.id, value=setup.spec.trainer_bond)
    times = {"hashing": measured(hashing, sizes), "keystream": measured(keystream, shape)}
    begin = time.monotonic()
    offer = seal(words(sizes), shape, KEY, play.id, tmp_path / "public")
    times["seal"] = time.monotonic() - begin
    claim(trainer, play, offer)
    x = Exchange(play, trainer, offer, SealedFolder(tmp_path / "public", shape), []).finalize()

    Proxy.upstream = serve(origin := folder_server(tmp_path / "public", "127.0.0.1", 0))
    url = serve(proxy := ThreadingHTTPServer(("127.0.0.1", 0), Proxy))
    before, begin = peak(), time.monotonic()
    buyer = Buyer(play.client, play.id, list(sizes), Source(url).get, tmp_path / "bought", lambda t: None)
    # five bad replies in a row happen: the fetch resumes after the verified part
    while not play.client.exchange(play.id).confirmed_at:
        with suppress(Missing):
            assert not buyer.ready()
    times["fetch"] = time.monotonic() - begin
    x.reveal()
    begin = time.monotonic()
    assert buyer.ready()
    labels = [TensorLabel(str(t), (n,)) for t, n in enumerate(sizes)]
    sources = [SimpleNamespace(elements=n, integer=False) for n in sizes]
    program = SimpleNamespace(labels=SimpleNamespace(state=labels), sources=sources)
    bundle = SimpleNamespace(program=program, keys={}, steps=1, identity=bytes(32))
    roots = [buyer.sealed.tree.tensor_root(t) for t in range(len(sizes))]
    with StateFile(tmp_path / "model.safetensors", tmp_path, bundle, roots) as file:
        buyer.receive(file.write)
    times["decipher and write"] = time.monotonic() - begin
    more = peak() - before
    for server in (origin, proxy):
        server.shutdown()
        server.server_close()
    size = 4 * sum(sizes)
    with capsys.disabled():
        print(
            f"\n{size / 1e9:.2f} GB, {more / 2**20:.0f} MiB more than before;",
            {k: round(v, 2) for k, v in times.items()},
            Proxy.faults,
        )
    received = read_weights(tmp_path / "model.safetensors")[0]
    for t, expected in enumerate(words(sizes)):
        assert np.array_equal(received[str(t)].numpy().view(np.uint32), expected)
    assert more <= MOST_MEMORY and play.phase is Phase.REVEALED
    if sizes != SMALL:
        assert all(Proxy.faults[fault] for fault in ("cut", "corrupt", "stall"))
        assert times["keystream"] <= 2 * times["hashing"]


def measured(what, *args) -> float:
    begin = time.monotonic()
    what(*args)
    return time.monotonic() - begin


def hashing(sizes: tuple[int, ...]) -> None:
    """Hash as many bytes into leaves."""
    block = np.zeros(PIECE * 64 * LEAF_BYTES, np.uint8)
    for _ in range(4 * sum(sizes) // len(block) + 1):
        leaf_hashes(memoryview(block))


def keystream(shape: Shape) -> None:
    secret = job_key(KEY, bytes(32))
    for piece in shape.pieces():
        bulk.keystreams(secret, piece.tensor, piece.first, piece.count)
