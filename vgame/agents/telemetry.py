"""Monitoring of a role that runs for months: a log of JSON lines, a health endpoint, Prometheus metrics.

Both endpoints are read-only and contain no secrets, only the role's terminal output and counters. They listen on
loopback unless another address of this machine is given.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from typing import Any

from vgame.agents.notify import notify
from vgame.errors import VgameError
from vgame.system.progress import Reporter, plain

SILENT = ("beat", "deadline", "progress")  # events that are too frequent for a log
TROUBLES = ("waiting", "retry", "problem")
METRICS = {
    "vgame_events_total": ("counter", "events of the role, by kind"),
    "vgame_progress_done": ("gauge", "finished units of the present work"),
    "vgame_progress_total": ("gauge", "all units of the present work"),
    "vgame_last_event_seconds": ("gauge", "Unix time of the last event or progress"),
    "vgame_last_round_seconds": ("gauge", "Unix time of the last round without an error, or of the last progress"),
    "vgame_deadline_over_worst": ("gauge", "seconds to the next deadline divided by the worst duration of the duty"),
    "vgame_start_time_seconds": ("gauge", "Unix time of the start"),
}


class Telemetry:
    """Counters and the present activity, from all events of a reporter."""

    def __init__(self, role: str) -> None:
        self.role, self.begun = role, time.time()
        self.doing, self.done, self.total, self.last = "starts", None, None, self.begun
        self.events: Counter[str] = Counter()
        self.round = self.begun
        self.deadline, self.worst = inf, 1  # Unix time; seconds

    def hear(self, event: str, fields: dict[str, Any]) -> None:
        """Record one event."""
        if event == "deadline":
            left, self.worst = fields["left"], fields["worst"]
            self.deadline = inf if left is None else time.time() + left
            return
        if event in ("beat", "progress"):
            self.round = time.time()
        if event == "beat":
            return
        self.last = time.time()
        if event == "progress":
            self.doing = " ".join(filter(None, (fields["what"], fields.get("detail", ""))))
            self.done, self.total = fields["done"], fields["total"]
            return
        self.events[event] += 1
        self.doing, self.done, self.total = fields.get("text") or event, None, None

    def health(self) -> dict[str, Any]:
        """The response of `/health`."""
        return {
            "role": self.role,
            "doing": plain(self.doing),
            "done": self.done,
            "total": self.total,
            "since": round(self.begun),
            "last": round(self.last),
            "troubles": sum(self.events[name] for name in TROUBLES),
        }

    def metrics(self) -> str:
        """The response of `/metrics`, in Prometheus' text format."""
        of = f'role="{self.role}"'
        values = {
            "vgame_events_total": [(f'{of},event="{name}"', count) for name, count in sorted(self.events.items())],
            "vgame_progress_done": [(of, self.done or 0)],
            "vgame_progress_total": [(of, self.total or 0)],
            "vgame_last_event_seconds": [(of, round(self.last, 3))],
            "vgame_last_round_seconds": [(of, round(self.round, 3))],
            "vgame_deadline_over_worst": [(of, self._deadline_over_worst())],
            "vgame_start_time_seconds": [(of, round(self.begun, 3))],
        }
        lines = []
        for name, (kind, what) in METRICS.items():
            lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{labels}}} {value}" for labels, value in values[name]]
        return "\n".join(lines) + "\n"

    def _deadline_over_worst(self) -> str:
        """Below 1 a deadline may be missed; +Inf if no duty is due."""
        return "+Inf" if self.deadline == inf else f"{(self.deadline - time.time()) / self.worst:.3f}"


def observe(
    reporter: Reporter, role: str, metrics: str | None = None, log: Path | None = None, command: str | None = None
) -> None:
    """Serve `/health` and `/metrics` at PORT or HOST:PORT (`metrics`), append every event to a file (`log`), run a
    command for disputes and alarms (`command`); None switches a part off."""
    if metrics is not None:
        telemetry = Telemetry(role)
        reporter.listeners.append(telemetry.hear)
        serve(telemetry, *address_of(metrics))
    if log is not None:
        reporter.listeners.append(log_to(log, role))
    if command is not None:
        reporter.listeners.append(notify(command, role))


def address_of(text: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise VgameError(f"--metrics {text!r}: a port is expected, as 9101, or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def serve(telemetry: Telemetry, host: str, port: int) -> ThreadingHTTPServer:
    """Serve in a separate thread until the process ends."""
    answers = {
        "/health": lambda: ("application/json", json.dumps(telemetry.health())),
        "/metrics": lambda: ("text/plain; version=0.0.4", telemetry.metrics()),
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            kind, text = answers[self.path]() if self.path in answers else ("text/plain", "")
            body = text.encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Requests are not logged: the terminal shows the role's events only."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise VgameError(f"--metrics: {host}:{port} cannot be used: {error.strerror}; give another port") from None
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def log_to(path: Path, role: str) -> Any:
    """A listener that appends {"time", "role", "event", ...} to a file; failed writes do not end the role."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise VgameError(f"--log-json {path} cannot be written: {error.strerror}") from None

    def hear(event: str, fields: dict[str, Any]) -> None:
        if event in SILENT:
            return
        line = {"time": round(time.time(), 3), "role": role, "event": event, **fields}
        # opened for each event, so that a new file is begun after a log rotation
        with suppress(OSError), path.open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")

    return hear
