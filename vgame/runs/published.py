"""A published run: its folder behind one or several URLs, fetched piece by piece, kept in a cache of bounded size.

In: URLs of the same run. Out: its store, which fetches states on demand. Sources are untrusted: each piece is bounded
before it is read and checked by its roots afterwards, as in a folder; if a source fails, the next one is used, each
TRIES times, and the last error names the piece.

    CACHE/RUN/job/, run.json, roots.bin, ...   as in a run's folder (store.py); fetched again by each
                                               audit, the bundle only if it changed
    CACHE/RUN/states/                          at most VGAME_CACHE_BYTES over all runs; the one that was
                                               used longest ago is removed first
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import TypeVar

import torch

from vgame.commit.merkle import Kind
from vgame.commit.tensor import tensors_root
from vgame.errors import BundleError, ProgramError, StoreError, VgameError
from vgame.job.bundle import Bundle, load_bundle, read_spec
from vgame.job.data import MOST_BYTES as MOST_FILES
from vgame.job.data import files_of
from vgame.job.file import MOST_SPEC
from vgame.job.state_keys import FILE as KEYS
from vgame.job.state_keys import MOST_BYTES as MOST_KEYS
from vgame.program.file import MOST_BYTES as MOST_PROGRAM
from vgame.program.file import load_program
from vgame.program.program import TensorLabel
from vgame.program.tensor_file import most_bytes, read_tensors
from vgame.program.validate import validate
from vgame.runs.folder import store_of, store_type
from vgame.runs.source import Absent, Source, Unfit
from vgame.runs.store import Store
from vgame.system.files import remove_halves

TRIES = 3  # of a piece, at each source
ANSWER = 1.0  # seconds for each query whether a state exists
LATE = 30.0  # seconds of delay beyond that, in total per source
CACHE = "VGAME_CACHE"
CACHE_BYTES = "VGAME_CACHE_BYTES"
MOST_CACHE = 16 * 2**30
MOST_SCALARS = 2**30  # bytes: 16 in each of 2^24 steps
MOST_BEFORE = 2**32  # bytes of a data file before its words

T = TypeVar("T")


def open_published(urls: Sequence[str], bundle: Bundle | None = None, until: float = math.inf) -> Store:
    """The store of the run in its current state; StoreError if no source has a run. `bundle`: the caller's order, if
    known; then the sources' bundle is not fetched. `until`: see Source."""
    run = Published(urls, until)
    bundle = bundle or run.bundle()
    store = run.insist(lambda source: run.committed(source, bundle))
    store.elsewhere = run
    return store


def cache_folder() -> Path:
    return Path(os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vgame")


def cache_bytes() -> int:
    value = os.environ.get(CACHE_BYTES, str(MOST_CACHE))
    if not (value.isascii() and value.isdigit()):
        raise VgameError(f"{CACHE_BYTES}={value!r}: a number of bytes is expected")
    return int(value)


class Published:
    """The sources of a run, and its cache. `folder`: a run's folder with the states fetched so far."""

    def __init__(self, urls: Sequence[str], until: float = math.inf) -> None:
        self.sources, self.most = [Source(url) for url in urls], cache_bytes()
        for source in self.sources:
            source.until = until
        self.urls = tuple(source.url for source in self.sources)
        self.folder = cache_folder() / sha256(self.urls[0].encode()).hexdigest()[:16]

    @cached_property
    def _known(self) -> dict[str, bool]:
        """By file name, whether a state exists."""
        return {}

    @cached_property
    def _late(self) -> dict[Source, float]:
        """By source, seconds of delay beyond ANSWER."""
        return dict.fromkeys(self.sources, 0.0)

    def insist(self, attempt: Callable[[Source], T]) -> T:
        """The result of the first successful attempt; StoreError with all errors if there is none."""
        errors: dict[str, str] = {}
        for source in [*self.sources] * TRIES:
            try:
                return attempt(source)
            except (Unfit, BundleError, ProgramError, StoreError) as error:
                errors[source.url] = str(error)
        raise StoreError("; ".join(errors.values()))

    # ---- the job ----

    def bundle(self) -> Bundle:
        """The job, from the cache if its spec.json is still the served one."""
        job = self.folder / "job"
        kept = (job / "spec.json").read_bytes() if (job / "spec.json").exists() else b""
        self.insist(lambda source: source.fetch("job/spec.json", MOST_SPEC, job / "spec.json"))
        if kept == (job / "spec.json").read_bytes():
            with suppress(BundleError, ProgramError):
                return load_bundle(job)
        return self.insist(self._job)

    def _job(self, source: Source) -> Bundle:
        """Fetch the job whole from one source: files of different sources do not match."""
        job = self.folder / "job"
        for folder in (job, self.folder / "states"):
            shutil.rmtree(folder, ignore_errors=True)

        def fetch(name: str, most: int) -> None:
            source.fetch(f"job/{name}", most, job / name)

        fetch("spec.json", MOST_SPEC)
        _, steps, _, _, mode = read_spec(job / "spec.json")[1]
        fetch("program.vgp", MOST_PROGRAM)
        program = load_program(job / "program.vgp")
        data = [(prod(label.shape), label.integer) for label in program.labels.data]
        validate(program, data, steps, mode)
        state = [(prod(label.shape), label.integer) for label in program.labels.state]
        if state != [(s.elements, s.integer) for s in program.sources]:
            raise Unfit(f"{source.shown}: its labels have other sizes than its state")
        if (scalars := most_bytes([TensorLabel("scalars", (steps, program.scalars))])) > MOST_SCALARS:
            raise Unfit(
                f"{source.shown} has a table of {scalars:,} bytes of scalars, at most {MOST_SCALARS:,} are read"
            )
        fetch("initial.safetensors", most_bytes(program.labels.state))
        fetch("data.safetensors", most_bytes(program.labels.data))
        fetch("scalars.safetensors", scalars)
        fetch(KEYS, MOST_KEYS)
        with suppress(Absent):
            fetch("data.json", MOST_FILES)
        for place, (name, offset) in files_of(job, len(program.labels.data)).items():
            words = 4 * prod(program.labels.data[place].shape)
            if offset > MOST_BEFORE:
                raise Unfit(
                    f"{source.shown}/job/{name} has {offset:,} bytes before its words, {MOST_BEFORE:,} are read"
                )
            source.fetch(f"job/{name}", offset + words, job / name, only=True)
        return load_bundle(job)

    # ---- roots and losses ----

    def committed(self, source: Source, bundle: Bundle) -> Store:
        """Fetch the run without its states from one source. Roots come first: a run writes them last."""
        for folder in (self.folder, self.folder / "states"):
            remove_halves(folder)
        for name, size in store_type(bundle).files(bundle).items():
            try:
                source.fetch(name, size, self.folder / name)
            except Absent:
                if name == "run.json":
                    raise
                # no checkpoint yet, or written by an earlier version
                (self.folder / name).unlink(missing_ok=True)
        store = store_of(self.folder, bundle, writable=False)
        store.check_roots()
        if not store.roots and store.divergence is None:
            raise Unfit(f"{source.shown} has no checkpoint yet; nothing can be audited")
        return store

    # ---- states ----

    def has(self, name: str) -> bool:
        """Whether the cache or any source has this file of states/."""
        if (self.folder / "states" / name).exists():
            return True
        if name not in self._known:
            self._known[name] = any(self._says(source, name) for source in self.sources)
        return self._known[name]

    def _says(self, source: Source, name: str) -> bool:
        """Whether a source has the file; no answer counts as no, and after too much delay in total the source is no
        longer used."""
        for _ in range(TRIES):
            if self._late[source] > LATE:
                break
            begin = time.monotonic()
            try:
                return source.has(f"states/{name}")
            except Unfit:
                continue
            finally:
                self._late[source] += time.monotonic() - begin - ANSWER
        return False

    def state(self, name: str, labels: Sequence[TensorLabel], root: bytes) -> tuple[torch.Tensor, ...]:
        """The state with this root, from the cache or the first source that has it. If no source has it but one has
        another state of this program, that one; the caller compares roots."""
        path, other = self.folder / "states" / name, list[tuple[torch.Tensor, ...]]()

        def read(source: Source | None) -> tuple[torch.Tensor, ...]:
            if source:
                source.fetch(f"states/{name}", most_bytes(labels), path)
            try:
                found = read_tensors(path, labels)
                if (held := tensors_root(Kind.STATE, found)) == root:
                    os.utime(path)
                    return found
                other[:] = [found]
                raise Unfit(
                    f"{source.shown if source else path}/states/{name} has the state root {held.hex()[:16]}, committed "
                    f"is {root.hex()[:16]}"
                )
            except BaseException:
                path.unlink(missing_ok=True)
                raise

        with suppress(BundleError, Unfit):
            if path.exists():
                return read(None)
        try:
            return self.insist(read)
        except StoreError:
            if not other:
                raise
            return other[0]
        finally:
            self._shrink()

    def _shrink(self) -> None:
        """Remove the least recently used states until the rest is within the bound."""
        kept = []
        for path in cache_folder().glob("*/states/*.safetensors"):
            with suppress(OSError):  # another process has removed it
                kept.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total <= self.most:
                return
            path.unlink(missing_ok=True)
            total -= size
