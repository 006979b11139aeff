"""Role processes of the demonstration: start, events, stop."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import vgame
from vgame.errors import PARENT_VARIABLE, VgameError

COMMAND = (sys.executable, "-P", "-m", "vgame.cli")  # -P: no code of the working folder
SECRETS = ("VGAME_KEY", "VGAME_KEYSTORE", "VGAME_PASSWORD")
INTERRUPT = 0.5  # seconds until a signal has reached all processes
Listener = Callable[[dict[str, Any]], None]


def tied() -> dict[str, str]:
    """Environment for a process that ends with this one, however this one ends."""
    return {PARENT_VARIABLE: str(os.getpid())}


def keyless() -> dict[str, str]:
    """The environment of such a process: without the user's keys, and importing this same vgame."""
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    path = os.pathsep.join(filter(None, [str(Path(vgame.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return kept | tied() | {"PYTHONPATH": path}


class Process(Protocol):
    """The used methods of a role's process."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> object: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


#: (arguments of the command, environment, [stdin, stdout, stderr]) -> its process
Start = Callable[[Sequence[str], Mapping[str, str], Sequence[int]], Process]


def spawn(arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]) -> Process:
    """A `vgame` command in a new interpreter."""
    stdin, stdout, stderr = files
    return subprocess.Popen([*COMMAND, *arguments], stdin=stdin, stdout=stdout, stderr=stderr, env=environment)


class Role:
    """A `vgame` command in its own process; its JSON lines arrive as events."""

    def __init__(
        self, name: str, arguments: list[str], log: Path, key: bytes | None, listener: Listener, start: Start = spawn
    ) -> None:
        self.name, self.log, self.listener = name, log, listener
        environment = keyless() | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if key:
            environment["VGAME_KEY"] = key.hex()
        log.parent.mkdir(parents=True, exist_ok=True)
        (stdin, orders), (events, stdout) = os.pipe(), os.pipe()
        self._orders, self._lines = open(orders, "wb", buffering=0), open(events, "rb")  # noqa: SIM115 - in stop()
        with open(log, "wb") as stderr:
            self.process = start([*arguments, "--json"], environment, [stdin, stdout, stderr.fileno()])
        os.close(stdin)
        os.close(stdout)
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.listener({"role": self.name, **event})
            if event["event"] != "progress":
                self.events.put(event)
        self.events.put({"event": "exit"})

    def order(self, **fields: Any) -> None:
        """Write one line of JSON to the role's stdin."""
        self._orders.write(json.dumps(fields).encode() + b"\n")

    def wait(
        self, event: str, timeout: float = 600, idle: Callable[[], None] | None = None, **wanted: Any
    ) -> dict[str, Any]:
        """The next event of that name (and with those fields); `idle` is called while waiting."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                found = self.events.get(timeout=0.2)
            except queue.Empty:
                if idle:
                    idle()
                continue
            self.seen.append(found)
            if found["event"] == "exit":
                time.sleep(INTERRUPT)  # Ctrl-C reaches every process; this one reports it
                raise VgameError(f"the {self.name} process stopped: {self.last_words()}")
            if found["event"] == event and all(found.get(k) == v for k, v in wanted.items()):
                return found
        raise VgameError(
            f"the {self.name} process did not report {event!r} within {timeout:.0f} seconds; its log is {self.log}"
        )

    def last_words(self) -> str:
        """The end of its stderr."""
        text = self.log.read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "it was ended from outside, without a message"

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._orders.close()


class EmbeddedChain:
    """The embedded chain in a process of its own, started before its URL is needed."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, "chain", "--still"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=keyless(),
            )  # fmt: skip

    def url(self) -> str:
        """Its URL; waits until it is served."""
        assert self.process.stdout is not None
        url = self.process.stdout.readline().decode().strip()
        if not url.startswith("http"):
            raise VgameError(f"the embedded chain did not start; see {self.log}")
        return url

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
