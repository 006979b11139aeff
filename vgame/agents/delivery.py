"""Delivery as processes: a folder that is served, a state that is received into a file."""

from __future__ import annotations

import re
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from vgame.agents.order import find_order
from vgame.agents.retry import Patience
from vgame.chain.game import Game
from vgame.delivery.buyer import Buyer
from vgame.delivery.fetch import Source
from vgame.errors import DeliveryError
from vgame.system.progress import Reporter

if TYPE_CHECKING:
    import numpy as np

    from vgame.delivery.seller import Seller
    from vgame.job.bundle import Bundle
    from vgame.runs.history import History

RANGE = re.compile(r"bytes=(\d+)-(\d+)")
BLOCK = 2**20


def delivered_folder(store: Path, job: bytes) -> Path:
    """Where a trainer's store keeps what a job delivers, and its key."""
    return store / "delivery" / job.hex()[:16]


def seller_of(bundle: Bundle, history: History, store: Path, job: bytes) -> Seller:
    """The trainer's side, for a run that is computed by the time of the claim."""
    from vgame.commit.tensor import tensor_bytes
    from vgame.delivery.seller import Seller

    elements = [source.elements for source in bundle.program.sources]
    folder = delivered_folder(store, job)
    return Seller(folder, job, elements, lambda: map(tensor_bytes, history.state_tensors(bundle.steps)))


class RangeHandler(SimpleHTTPRequestHandler):
    """The files of a folder, by ranges; nothing else of the file system."""

    def do_GET(self) -> None:
        name, asked = self.path.strip("/"), RANGE.fullmatch(self.headers.get("Range", ""))
        path = Path(self.directory) / name
        if name not in ("offer.json", "chunks", "hashes", "leaves") or not path.is_file():
            return self.send_error(404)
        size = path.stat().st_size
        first, last = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
        if first > last:
            return self.send_error(416)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.end_headers()
        with open(path, "rb") as file:
            file.seek(first)
            left = last - first + 1
            while left and (data := file.read(min(BLOCK, left))):
                self.wfile.write(data)
                left -= len(data)

    def log_message(self, *_: object) -> None:
        """A client's requests are no news."""


def folder_server(folder: Path, host: str, port: int) -> ThreadingHTTPServer:
    """A server of a sealed folder; DeliveryError where there is none."""
    if not (folder / "offer.json").is_file():
        raise DeliveryError(f"{folder} holds no sealed state; `vgame trainer` seals it when it claims")
    return ThreadingHTTPServer((host, port), partial(RangeHandler, directory=str(folder)))


def receive(game: Game, bundle: Bundle, job: bytes, url: str, out: Path, reporter: Reporter, poll: float = 0.2) -> None:
    """Fetch, confirm, wait for the key, decipher; write a file that the module loads. Start it again: it goes on."""
    find_order(game, bundle, job)
    elements = [source.elements for source in bundle.program.sources]
    buyer = Buyer(game, job, elements, Source(url).get, out.with_name(f"{out.name}.sealed"))
    patience = Patience(reporter, poll)
    while True:
        with patience:
            if (words := buyer.receive()) is not None:
                break
            reporter.stage("waits for the key")
            time.sleep(poll)
    write_state(bundle, words, out)
    reporter.emit("received", f"{out}: the state of job {job.hex()[:16]}, every leaf verified", job=job.hex())


def write_state(bundle: Bundle, words: list[np.ndarray], out: Path) -> None:
    """A safetensors file with the module's own keys; its types are those of the module."""
    from vgame.commit.tensor import from_words
    from vgame.job.state_keys import state_dict
    from vgame.job.weights import pack_weights, write_weights

    sources = zip(words, bundle.program.sources, strict=True)
    state = [from_words(w, integer=source.integer) for w, source in sources]
    named = state_dict(bundle.keys, bundle.program.labels.state, state, False)
    write_weights(out, pack_weights(bundle, bundle.steps, state, named))
