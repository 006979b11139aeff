"""Role processes of the demonstration: started, listened to, stopped."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import vgame
from vgame.errors import PARENT_VARIABLE, VgameError

COMMAND = (sys.executable, "-P", "-m", "vgame.cli")  # -P: no code of the working folder
SECRETS = ("VGAME_KEY", "VGAME_KEYSTORE", "VGAME_PASSWORD")
Listener = Callable[[dict[str, Any]], None]


def tied() -> dict[str, str]:
    """For the environment of a process that ends with this one, however this one ends."""
    return {PARENT_VARIABLE: str(os.getpid())}


def keyless() -> dict[str, str]:
    """The environment of such a process: none of the user's keys, and this vgame, wherever it was imported from."""
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    path = os.pathsep.join(filter(None, [str(Path(vgame.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    return kept | tied() | {"PYTHONPATH": path}


class Role:
    """A `vgame` command in its own process; its JSON lines arrive as events."""

    def __init__(self, name: str, arguments: list[str], log: Path, key: bytes | None, listener: Listener) -> None:
        self.name, self.log, self.listener = name, log, listener
        environment = keyless() | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if key:
            environment["VGAME_KEY"] = key.hex()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._stderr = open(log, "wb")  # noqa: SIM115 - closed in stop()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments, "--json"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, env=environment,
        )  # fmt: skip
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.listener({"role": self.name, **event})
            if event["event"] != "progress":
                self.events.put(event)
        self.events.put({"event": "exit"})

    def order(self, **fields: Any) -> None:
        """One line of JSON to the role's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields).encode() + b"\n")
        self.process.stdin.flush()

    def wait(
        self, event: str, timeout: float = 600, idle: Callable[[], None] | None = None, **wanted: Any
    ) -> dict[str, Any]:
        """The next event of that name (and with those fields); `idle` is called while nothing comes."""
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
                raise VgameError(f"the {self.name} process stopped: {self.last_words()}")
            if found["event"] == event and all(found.get(k) == v for k, v in wanted.items()):
                return found
        raise VgameError(
            f"the {self.name} process did not report {event!r} within {timeout:.0f} seconds; its log is {self.log}"
        )

    def last_words(self) -> str:
        """What it wrote on stderr at the end."""
        text = self.log.read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else f"exit code {self.process.wait()}, no message; see {self.log}"

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._stderr.close()


def start_embedded_chain(log: Path) -> tuple[subprocess.Popen, str]:
    """The embedded chain in its own process, and its URL."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as stderr:
        process = subprocess.Popen(
            [*COMMAND, "chain", "--still"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            env=keyless(),
        )
    assert process.stdout is not None
    url = process.stdout.readline().decode().strip()
    if not url.startswith("http"):
        raise VgameError(f"the embedded chain did not start; see {log}")
    return process, url
