"""Signs of life: every rank writes its progress to the store twice a second; a silent or hanging rank is named.

In: the store of a process group (a TCPStore). Out: an error message. torchrun alone would name the healthy rank that
lost its connection first.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from vgame.errors import STOPPED, VgameError
from vgame.system.progress import fail

BEAT = 0.5  # seconds between two signs of life
SILENT = 6 * BEAT  # after an error: a rank without a sign for so long is dead
LOOK = 8 * BEAT  # after an error: seconds of searching for a dead rank
TIMEOUT = 120.0  # without an error: seconds without a sign, or without progress while others wait

LEFT, FAILED = "left", "failed"


class RankError(VgameError):
    """A rank died, hangs or failed. `reported`: another rank reports it."""

    def __init__(self, sentence: str, reported: bool = False) -> None:
        super().__init__(sentence)
        self.reported = reported


class Terminated(BaseException):
    """SIGTERM, which torchrun sends to the remaining ranks when one has ended."""


class Store(Protocol):
    """The methods of torch.distributed.Store that are used."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Health:
    """The signs of life of a rank, and its view of the others'."""

    def __init__(self, store: Store, own: Store, rank: int, world: int, timeout: float) -> None:
        self.store, self.own, self.rank, self.world, self.timeout = store, own, rank, world, timeout
        self.swaps, self.step, self.doing, self.waits = 0, 0, "starts", 0.0
        self.signs: dict[int, dict[str, Any]] = {}
        self.changed = dict.fromkeys(range(world), time.monotonic())  # time of each rank's last new sign
        self.moved = dict.fromkeys(range(world), time.monotonic())  # time of its last new count of exchanges
        self.ended = threading.Event()
        self.beats = 0
        self.thread = threading.Thread(target=self._beat, name="vgame ranks", daemon=True)

    def start(self) -> None:
        self._publish("alive")
        self.thread.start()

    def stop(self, how: str = LEFT, why: str = "") -> None:
        """Announce that this rank ends, so that it is not taken for dead."""
        if not self.ended.is_set():
            self.ended.set()
            self.thread.join(2 * BEAT)
            with suppress(RuntimeError):
                self._publish(how, why)

    def _publish(self, how: str, why: str = "") -> None:
        self.beats += 1
        sign = {"beat": self.beats, "swaps": self.swaps, "step": self.step, "doing": self.doing, "how": how, "why": why}
        sign |= {"host": socket.gethostname(), "pid": os.getpid()}
        self.own.set(f"beat/{self.rank}", json.dumps(sign))

    def _beat(self) -> None:
        while not self.ended.wait(BEAT):
            try:
                self._publish("alive")
                self._look()
            except RuntimeError:  # the store's host is gone; the exchanges fail too
                return
            sentence = self._overdue()
            if sentence:
                self._end(sentence)

    def _look(self) -> None:
        now = time.monotonic()
        for rank in range(self.world):
            if rank == self.rank or not self.own.check([f"beat/{rank}"]):
                continue
            sign, before = json.loads(self.own.get(f"beat/{rank}")), self.signs.get(rank, {})
            if sign != before:
                self.changed[rank] = now
            if sign["swaps"] != before.get("swaps") or sign["doing"] != "step":
                self.moved[rank] = now
            self.signs[rank] = sign

    # ---- naming the rank ----

    def name(self, rank: int) -> str:
        """`rank 2 (of 4, host a, process 71)`."""
        sign = self.signs.get(rank)
        where = f", host {sign['host']}, process {sign['pid']}" if sign else ""
        return f"rank {rank} (of {self.world}{where})"

    def _overdue(self) -> str:
        """An error message about a rank for which this one has waited longer than `timeout`; FAILED if a rank has
        failed meanwhile; else empty."""
        now, since = time.monotonic(), self.waits
        if not since:
            return ""
        if any(t["how"] == FAILED for t in self.signs.values()) and now - since > SILENT:
            return FAILED
        for rank in self._others():
            if now - max(self.changed[rank], since) > self.timeout:
                return (
                    f"{self.name(rank)} gives no sign of life for {self.timeout:g} s at step {self.step}: it hangs, "
                    "or its host is gone"
                )
        behind = min(self._others(), key=lambda r: self.signs.get(r, {}).get("swaps", 0), default=self.rank)
        if (
            self.signs.get(behind, {}).get("swaps", 0) < self.swaps
            and now - max(self.moved[behind], since) > self.timeout
        ):
            return (
                f"{self.name(behind)} has made no progress for {self.timeout:g} s at step {self.step}, where the "
                "others wait for it: it hangs"
            )
        return ""

    def _others(self) -> list[int]:
        return [r for r in range(self.world) if r != self.rank and self.signs.get(r, {}).get("how") != LEFT]

    def _end(self, sentence: str) -> None:
        """End this process: its main thread waits in a library for data that will never come."""
        hangs = [rank for rank in self._others() if time.monotonic() - self.changed[rank] > SILENT]
        if sentence != FAILED and self.rank == min(set(range(self.world)) - set(hangs)):
            fail(advice(sentence))
        else:
            time.sleep(2)  # torchrun ends all when the first one ends
        with suppress(RuntimeError):
            self._publish(LEFT)
        os._exit(1)

    def diagnose(self, error: BaseException) -> BaseException:
        """The cause of a broken exchange, or of torchrun's signal."""
        until = time.monotonic() + LOOK
        while time.monotonic() < until and self.thread.is_alive():
            if failed := [r for r, sign in self.signs.items() if sign["how"] == FAILED]:
                return RankError(f"{self.name(failed[0])}: {self.signs[failed[0]]['why']}", reported=True)
            silent = [r for r in self._others() if time.monotonic() - self.changed[r] > SILENT]
            if silent:
                dead = min(silent, key=lambda r: self.changed[r])
                first = min(set(range(self.world)) - set(silent))
                self._wait_for_others(silent)
                return RankError(advice(f"{self.name(dead)} died at step {self.step}"), reported=self.rank != first)
            time.sleep(BEAT / 5)
        if isinstance(error, Terminated):
            return SystemExit(STOPPED)
        if not self.thread.is_alive():
            return RankError(
                advice(f"rank 0 or torchrun, which holds the ranks' common store, is gone at step {self.step}")
            )
        text = " ".join(str(error).split())[:200]
        return RankError(advice(f"the connection to the other ranks broke at step {self.step} ({text})"))

    def _wait_for_others(self, silent: list[int]) -> None:
        """Rank 0 may host the store: it ends after the others have found the cause."""
        until = time.monotonic() + LOOK
        while self.rank == 0 and time.monotonic() < until and set(self._others()).difference(silent):
            time.sleep(BEAT / 5)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which this rank waits for others."""
        self.swaps += 1
        self.waits = time.monotonic()
        try:
            yield
        finally:
            self.waits = 0.0


def advice(sentence: str) -> str:
    return f"{sentence}; committed checkpoints are kept: to continue, start the command again, with any number of ranks"


@contextmanager
def signals() -> Iterator[None]:
    """Context in which torchrun's first SIGTERM raises Terminated; later ones are ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
