"""Delivery as processes: serve the encrypted folder, and receive the state into a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vgame.agents.order import find_order
from vgame.agents.retry import QUIET, QUIET_ROUND, Retry
from vgame.chain.game import Game
from vgame.chain.records import JobSpec
from vgame.delivery.folder import own_folder
from vgame.errors import DeliveryError, VgameError
from vgame.system.progress import Reporter

if TYPE_CHECKING:
    from vgame.delivery.buyer import Buyer
    from vgame.delivery.seller import Seller
    from vgame.job.bundle import Bundle
    from vgame.runs.history import History

RANGE = re.compile(r"bytes=(\d+)-(\d+)")
MOST_DIGITS = 18  # of a byte position in a file
BLOCK = 2**20

T = TypeVar("T")


def delivered_folder(store: Path, job: bytes) -> Path:
    """The folder in a trainer's store with the encrypted state of a job, and its key."""
    return store / "delivery" / job.hex()[:16]


def received_folder(out: Path, job: bytes) -> Path:
    """The folder with a client's ciphertext, beside the file that it becomes: one for each job."""
    return out.with_name(f"{out.name}.{job.hex()[:16]}.sealed")


def seller_of(bundle: Bundle, history: History, store: Path, job: bytes) -> Seller:
    """The trainer's side of the delivery; the run must be computed before the claim."""
    from vgame.commit.tensor import tensor_bytes
    from vgame.delivery.seller import Seller

    elements = [source.elements for source in bundle.program.sources]
    folder = delivered_folder(store, job)
    return Seller(folder, job, elements, lambda: map(tensor_bytes, history.state_tensors(bundle.steps)))


class RangeHandler(BaseHTTPRequestHandler):
    """Serves byte ranges of the files of a folder, and nothing else of the file system."""

    folder: Path
    timeout = 60  # maximum seconds that a client may block a thread

    def do_GET(self) -> None:
        name, asked = self.path.strip("/"), RANGE.fullmatch(self.headers.get("Range", ""))
        path = self.folder / name
        if name not in ("offer.json", "chunks", "hashes", "leaves") or not path.is_file():
            return self.send_error(404)
        if asked and max(map(len, asked.groups())) > MOST_DIGITS:
            return self.send_error(416)
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
        """Requests are not logged."""


def folder_server(folder: Path, host: str, port: int) -> ThreadingHTTPServer:
    """A server of a folder with an encrypted state; DeliveryError if it has none."""
    if not (folder / "offer.json").is_file():
        raise DeliveryError(f"{folder} holds no encrypted state; `vgame trainer` writes it when it claims")
    return ThreadingHTTPServer((host, port), type("FolderHandler", (RangeHandler,), {"folder": folder}))


def receive(game: Game, bundle: Bundle, job: bytes, url: str, out: Path, reporter: Reporter, poll: float = 0.2) -> None:
    """Fetch, confirm, wait for the key, decrypt, and write a file that the module can load. Resumable. Raises
    Undelivered if the job has ended without its state."""
    from vgame.delivery.buyer import Buyer
    from vgame.delivery.fetch import Source
    from vgame.delivery.received import refuse_place

    refuse_place(out)
    own_folder(sealed := received_folder(out, job))
    find_order(game, bundle, job)

    def progress(done: int, total: int) -> None:
        reporter.progress("fetching", done, total)

    elements = [source.elements for source in bundle.program.sources]
    record = partial(source_record, bundle)
    terms = JobSpec(**bundle.order)
    buyer = Buyer(game, job, elements, Source(url).get, sealed, record, progress, terms)
    retry, waits = Retry(reporter, poll), False
    while True:
        with retry:
            if buyer.ready():
                write_state(bundle, buyer, out)
                break
            if not waits:  # reported once
                reporter.stage("waits for the key")
            waits = True
            game.chain.pause(QUIET * poll, QUIET_ROUND)
    reporter.emit("received", f"{out}: the state of job {job.hex()[:16]}, every leaf verified", job=job.hex())


def source_record(bundle: Bundle, tensor: int) -> tuple[bytes, bytes, list[bytes]]:
    """The part of the program in a `request`, which proves the size of the tensor: header, record and path."""
    program = bundle.program
    return program.header, program.source_records[tensor], program.source_tree.path(0, tensor)


def write_state(bundle: Bundle, buyer: Buyer, out: Path) -> None:
    """Write a safetensors file with the keys and types of the module. INVARIANT: every leaf is verified, with a
    complaint if one is wrong, even if the file cannot be written."""
    from vgame.delivery.received import StateFile

    roots = [buyer.sealed.tree.tensor_root(t) for t in range(len(bundle.program.sources))]
    problems: list[Exception] = []

    def attempt(what: Callable[[], T]) -> T | None:
        if not problems:
            try:
                return what()
            except Exception as problem:
                problems.append(problem)
        return None

    with ExitStack() as stack:
        file = attempt(lambda: stack.enter_context(StateFile(out, buyer.folder, bundle, roots)))
        buyer.receive(lambda piece, leaves: attempt(lambda: file.write(piece, leaves)))
        attempt(stack.close)
        if problems:
            why = getattr(problems[0], "strerror", None) or problems[0]
            raise VgameError(f"{out} cannot be written: {why}; every leaf is verified") from problems[0]
