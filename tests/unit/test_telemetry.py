"""Telemetry of a role: its log, its health, its metrics."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vgame.agents.retry import Retry
from vgame.agents.telemetry import Telemetry, address_of, log_to, observe, serve
from vgame.errors import ChainError, VgameError
from vgame.system.progress import Reporter


def reporter_after_events(telemetry: Telemetry | None = None, log: Path | None = None) -> Reporter:
    """A reporter after a few events."""
    reporter = Reporter(True, "auditor")
    if telemetry:
        reporter.listeners.append(telemetry.hear)
    if log:
        reporter.listeners.append(log_to(log, "auditor"))
    reporter.emit("accepted", "accepted job aa", job="aa")
    reporter.emit("problem", "no answer", message="no answer")
    reporter.progress("training", 3, 7, "loss 0.5")
    return reporter


def test_health_is_the_roles_current_work() -> None:
    telemetry = Telemetry("auditor")
    reporter = reporter_after_events(telemetry)
    health = telemetry.health()
    assert (health["doing"], health["done"], health["total"], health["troubles"]) == ("training loss 0.5", 3, 7, 1)
    reporter.emit("computed", "finished step 7")
    assert telemetry.health()["doing"] == "finished step 7" and telemetry.health()["done"] is None
    reporter.emit("note", "turned\u202e")
    assert telemetry.health()["doing"] == "turned\\u202e"


def test_metrics_are_in_prometheus_format() -> None:
    telemetry = Telemetry("auditor")
    reporter_after_events(telemetry)
    text = telemetry.metrics()
    assert text.endswith("\n")
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{\w+="[^"]*"(,\w+="[^"]*")*\} ([\d.]+|\+Inf)', line), line
    assert 'vgame_events_total{role="auditor",event="problem"} 1' in text
    assert 'vgame_progress_done{role="auditor"} 3' in text


def test_health_and_metrics_are_served_on_loopback_and_nothing_else() -> None:
    telemetry = Telemetry("trainer")
    server = serve(telemetry, *address_of("0"))
    assert server.server_address[0] == "127.0.0.1"
    url = f"http://127.0.0.1:{server.server_port}"
    assert json.load(urllib.request.urlopen(f"{url}/health", timeout=10))["role"] == "trainer"
    assert b"vgame_start_time_seconds" in urllib.request.urlopen(f"{url}/metrics", timeout=10).read()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/other", timeout=10)
    assert refused.value.code == 404
    with pytest.raises(VgameError, match="cannot be used"):
        serve(telemetry, "127.0.0.1", server.server_port)
    server.shutdown()


def test_the_log_has_every_event_and_no_progress(tmp_path: Path) -> None:
    reporter_after_events(log=tmp_path / "logs" / "auditor.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "logs" / "auditor.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["accepted", "problem"]
    assert lines[0]["job"] == "aa" and lines[0]["role"] == "auditor" and lines[0]["time"] > 1.7e9


def test_a_rotated_log_is_started_again(tmp_path: Path) -> None:
    path = tmp_path / "auditor.jsonl"
    reporter = reporter_after_events(log=path)
    path.rename(tmp_path / "auditor.1.jsonl")
    reporter.emit("ended", "the job ended")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["ended"]


def test_an_unwritable_log_is_refused_at_start_and_later_ends_no_role(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VgameError, match=r"--log-json .* cannot be written"):
        observe(Reporter(True), "auditor", None, tmp_path / "file" / "log")
    path = tmp_path / "log"
    reporter = reporter_after_events(log=path)
    path.unlink()
    path.mkdir()
    reporter.emit("ended", "the job ended")


@pytest.mark.parametrize("wrong", ["", "x", "127.0.0.1:", "70000", "-1", "9101/health"])
def test_a_wrong_address_is_reported(wrong: str) -> None:
    with pytest.raises(VgameError, match=r"--metrics .*a port is expected"):
        address_of(wrong)


@pytest.mark.parametrize(
    ("text", "expected"), [("9101", ("127.0.0.1", 9101)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:2", ("::1", 2))]
)
def test_addresses(text: str, expected: Any) -> None:
    assert address_of(text) == expected


def value(telemetry: Telemetry, name: str) -> float:
    (line,) = [line for line in telemetry.metrics().splitlines() if line.startswith(f"{name}{{")]
    return float(line.split()[-1])


def test_an_idle_role_is_alive_and_a_failing_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle role has rounds but no events; one whose endpoint is away has many events, and no successful round."""
    now = [1000.0]
    monkeypatch.setattr("vgame.agents.telemetry.time.time", lambda: now[0])
    telemetry = Telemetry("auditor")
    reporter = Reporter(True, "auditor")
    reporter.listeners.append(telemetry.hear)
    retry = Retry(reporter, 0.0, longest=0.0)
    for _ in range(3):
        now[0] += 600
        with retry:
            pass
    assert value(telemetry, "vgame_last_round_seconds") == now[0]
    for i in range(3):
        now[0] += 600
        with retry:
            raise ChainError(f"no answer {'abc'[i]}")
    assert now[0] - value(telemetry, "vgame_last_round_seconds") == 1800
    assert value(telemetry, "vgame_last_event_seconds") == now[0]
    reporter.progress("training", 1, 2)
    assert value(telemetry, "vgame_last_round_seconds") == now[0]


def test_the_time_to_a_deadline_falls_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("vgame.agents.telemetry.time.time", lambda: now[0])
    telemetry = Telemetry("trainer")
    reporter = Reporter(True, "trainer")
    reporter.listeners.append(telemetry.hear)
    assert value(telemetry, "vgame_deadline_over_worst") == float("inf")
    reporter.deadline(400, 80)
    assert value(telemetry, "vgame_deadline_over_worst") == 5
    now[0] += 360
    assert value(telemetry, "vgame_deadline_over_worst") == 0.5
    now[0] += 80
    assert value(telemetry, "vgame_deadline_over_worst") == -0.5
    reporter.deadline(None, 80)
    assert value(telemetry, "vgame_deadline_over_worst") == float("inf")
