"""The command for disputes and alarms: it receives the event, and can neither block nor end the role."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vgame.agents.notify import NOTIFIED, notify
from vgame.agents.telemetry import observe
from vgame.errors import VgameError
from vgame.system.progress import Reporter


def until(found: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def writes(path: Path) -> str:
    return f"sh -c 'cat >> {shlex.quote(str(path))}'"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_command_receives_disputes_and_alarms(tmp_path: Path) -> None:
    reporter = Reporter(who="auditor")
    observe(reporter, "auditor", command=writes(tmp_path / "told"))
    for event in ("stage", "sent", *NOTIFIED, "audited"):
        reporter.emit(event, f"text of {event}", job="ab")
    reporter.beat()
    until(lambda: len(lines(tmp_path / "told")) == len(NOTIFIED))
    output = lines(tmp_path / "told")
    assert [(t["event"], t["role"], t["text"], t["job"]) for t in output] == [
        (event, "auditor", f"text of {event}", "ab") for event in NOTIFIED
    ]
    assert all(abs(t["time"] - time.time()) < 60 for t in output)


def test_a_command_does_not_have_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGAME_KEY", "secret")
    monkeypatch.setenv("VGAME_PASSWORD", "secret")
    notify(f"sh -c 'env > {tmp_path}/env.new; mv {tmp_path}/env.new {tmp_path}/env'", "trainer")("alarm", {})
    until((tmp_path / "env").exists)
    assert "secret" not in (tmp_path / "env").read_text() and "PATH=" in (tmp_path / "env").read_text()


def test_a_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vgame.agents.notify.WAITING", 1)
    beats = tmp_path / "beats"
    child = f"while :; do echo >> {beats}; sleep 0.02; done"
    send = notify(f"sh -c '({child}) & wait'", "trainer", limit=0.5)
    begin = time.monotonic()
    for _ in range(100):  # more than may wait
        send("alarm", {})
    assert time.monotonic() - begin < 0.4
    output = ""
    while "was killed because it still ran after 0.5 s; the trainer goes on" not in output:
        assert time.monotonic() - begin < 20
        time.sleep(0.02)
        output += capsys.readouterr().err
    until(lambda: beats.stat().st_size > 0)
    time.sleep(1.5)  # the waiting one is over too
    size = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == size


@pytest.mark.parametrize(("event", "kind"), [("alarm", "bond"), ("dispute", ""), ("verdict", "")])
def test_events_that_others_cause_or_an_endpoint_invents_delay_no_alarm(tmp_path: Path, event: str, kind: str) -> None:
    output = tmp_path / "told"
    send = notify(f"sh -c 'sleep 0.2; cat >> {output}'", "monitor")
    for n in range(300):
        send(event, {"kind": kind, "job": f"{n}"})
    for kind in ("clock", "stuck"):
        send("alarm", {"kind": kind, "job": "own"})
    until(lambda: len(lines(output)) >= 3)
    assert {"clock", "stuck"} < {line["kind"] for line in lines(output)[:3]}


@pytest.mark.parametrize("command, why", [("sh -c 'exit 3'", "exit code 3"), ("/dev/null", "Permission denied")])
def test_a_failing_command_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, why: str
) -> None:
    monkeypatch.setattr("vgame.agents.notify.shutil.which", lambda name: name)
    send, output = notify(command, "monitor"), ""
    send("alarm", {})
    send("alarm", {})
    end = time.monotonic() + 20
    while why not in output and time.monotonic() < end:
        time.sleep(0.05)
        output += capsys.readouterr().err
    time.sleep(0.3)
    output += capsys.readouterr().err
    assert output.count(why) == 1 and "the monitor goes on" in output


@pytest.mark.parametrize(
    "command",
    ["sh -c 'exit 3' https://hook.example/sesame", "no-such-program https://hook.example/sesame", "sh 'sesame",
     "https://user:sesame@hook.example/sesame?key=sesame"],
)  # fmt: skip
def test_no_message_shows_the_arguments(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """They may hold the key of a hook, and a service's messages are kept."""
    output, end = "", time.monotonic() + 20
    try:
        notify(command, "monitor")("alarm", {})
        while "exit code 3" not in output and time.monotonic() < end:
            time.sleep(0.05)
            output += capsys.readouterr().err
    except VgameError as error:
        output = str(error)
    assert "--notify" in output and "sesame" not in output, output


@pytest.mark.parametrize("command", ["", "no-such-program-at-all --x", "sh 'half"])
def test_an_invalid_command_is_refused_at_once(command: str) -> None:
    with pytest.raises(VgameError, match=r"--notify .*: "):
        notify(command, "auditor")


def test_a_command_that_does_not_read_its_input_blocks_nothing(tmp_path: Path) -> None:
    send = notify(f"sh -c 'echo x >> {tmp_path}/runs'", "auditor")
    for _ in range(3):
        send("dispute", {"text": "x" * 2**20})
    until(lambda: (tmp_path / "runs").exists() and len((tmp_path / "runs").read_text()) == 6)


@pytest.mark.parametrize(
    "command",
    [
        "TOKEN=SECRET ./hook.sh",
        "hooks.example.com/services/SECRET",
        "https://user:SECRET@x/hook",
        "./none/SECRET -x",
        "'SECRET",
    ],
)
def test_a_command_that_cannot_be_run_is_not_printed(command: str) -> None:
    """The word in place of a program may be the key of a hook."""
    with pytest.raises(VgameError) as refusal:
        notify(command, "auditor")
    assert "SECRET" not in str(refusal.value) and str(refusal.value).startswith("--notify")
