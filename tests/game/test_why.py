"""`vgame why` predicts the players' calls from the state alone."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from exchange import DELIVERY
from frauds import LIE, SETUP, state_lie, word_lie
from scene import Play, Scene, due
from test_delivery_agents import Sides

from vgame.agents.due import ROLES, explain, read, tell_deadline
from vgame.agents.telemetry import Telemetry
from vgame.agents.times import local_time
from vgame.chain.records import Phase
from vgame.cli.market import Role
from vgame.dispute.player import Player
from vgame.errors import ChainError
from vgame.system.progress import Reporter

ROOT = Path(__file__).resolve().parents[2]


def owed(play: Play, role: str, account: str | None = None) -> set[str]:
    return {d.call for d in ROLES[role](read(play.client, play.id), account) if d.due}


def checked(play: Play, role: str, player: Player) -> None:
    """`why` names the calls that the player sends next."""
    if (call := due(player)) is None or call.name == "withdraw":
        return
    families = {"tieUnchanged": "tie", "timeoutMany": "timeout", "selectState": "select", "selectOperator": "select"}
    assert families.get(call.name, call.name) in owed(play, role, player.address)


LIES = {
    "a term of a long sum": LIE,
    "a word": word_lie(6, 1, 100)[0],
    "a state": state_lie(6, 2, 7)[0],
    "a true claim": None,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_every_move_of_a_game_is_announced(scene: Scene, lie: object) -> None:
    play = scene.post(SETUP)
    trainer = play.new_trainer(lie)
    assert owed(play, "trainer") == {"acceptJob"} and not owed(play, "client") | owed(play, "auditor")
    trainer.accept()
    assert owed(play, "trainer", trainer.address) == {"postClaim"}
    trainer.claim()
    auditor = play.auditor()
    assert owed(play, "auditor") == {"challenge"}
    for _ in range(60):
        moved = False
        for role, player in (("trainer", trainer), ("auditor", auditor)):
            checked(play, role, player)
            moved |= player.step()
        if not moved:
            break
    if lie is None:
        play.pass_window()
        assert owed(play, "trainer", trainer.address) == {"finalize"}
        trainer.step()
    assert play.phase is (Phase.CONVICTED if lie else Phase.FINAL)
    assert not owed(play, "trainer", trainer.address)


def test_an_auditor_with_a_dispute_opens_no_second_one(scene: Scene) -> None:
    """Neither while it is open, nor after it is lost."""
    play = scene.claimed(SETUP, LIE)
    auditor, other = play.auditor(), play.auditor()
    auditor.step()
    assert "challenge" not in owed(play, "auditor", auditor.address)
    assert "challenge" in owed(play, "auditor", other.address) & owed(play, "auditor")
    play.trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    play.trainer.step()
    assert not owed(play, "auditor", auditor.address) and "challenge" in owed(play, "auditor", other.address)


def test_unserved_orders_expire(scene: Scene) -> None:
    play = scene.post(SETUP)
    play.advance(SETUP.spec.accept_window + 1)
    assert owed(play, "client") == {"expire"} and not owed(play, "trainer")
    assert not owed(play, "client", play.new_trainer().address)


def test_a_delivery(scene: Scene, tmp_path: Path) -> None:
    sides = Sides(scene, tmp_path)
    sides.claim()
    play = sides.play
    assert owed(play, "client", play.client.wallet.address) == {"confirm"} and not owed(play, "trainer")
    sides.receive()
    play.advance(DELIVERY.spec.key_window // 2 + 1)
    assert owed(play, "trainer", sides.trainer.address) == {"revealKey"}
    play.advance(DELIVERY.spec.key_window)
    assert "closeDelivery" in owed(play, "client")


def test_duties_are_reported_as_text_and_json(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    play = scene.claimed(SETUP, LIE)
    play.auditor().step()
    explain(play.client, play.id, list(ROLES), None, Reporter(True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "snapshot" and lines[0]["phase"] == "claimed"
    (move,) = [x for x in lines[1:] if x["role"] == "trainer" and x["due"]]
    assert move["call"] == "reveal" and 0 < move["by"] - lines[0]["now"] <= SETUP.spec.trainer_budget
    explain(play.client, play.id, ["trainer"], None, Reporter())
    assert "trainer: sends reveal" in capsys.readouterr().out
    with pytest.raises(ChainError, match="there is no job"):
        explain(play.client, bytes(32), list(ROLES), None, Reporter())


def test_times_are_local_and_roles_are_those_of_the_glossary(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    play = scene.claimed(SETUP)
    explain(play.client, play.id, list(ROLES), None, Reporter())
    monkeypatch.undo()
    time.tzset()
    text = capsys.readouterr().out
    end = datetime.fromtimestamp(play.job.since + SETUP.spec.challenge_window, timezone(timedelta(hours=9)))
    assert f"challenge window ends {end:%Y-%m-%d %H:%M:%S} JST" in text
    assert not re.search(r"\b\d{9,}\b", text), "no seconds since 1970, no wei"
    terms = re.findall(r"^\| (\w+) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert set(ROLES) == set(Role) <= set(terms)


def test_the_metric_is_of_the_most_pressing_duty(scene: Scene) -> None:
    play = scene.claimed(SETUP, LIE)
    telemetry, reporter = Telemetry("trainer"), Reporter(True, "trainer")
    tell_deadline(play.client, play.id, "trainer", play.trainer.address, reporter)  # there is no listener
    reporter.listeners.append(telemetry.hear)
    tell_deadline(play.client, play.id, "trainer", play.trainer.address, reporter)
    assert 'over_worst{role="trainer"} +Inf' in telemetry.metrics()
    play.auditor().step()
    tell_deadline(play.client, play.id, "trainer", play.trainer.address, reporter)
    (line,) = [x for x in telemetry.metrics().splitlines() if x.startswith("vgame_deadline")]
    assert 4 < float(line.split()[-1]) <= SETUP.spec.trainer_budget / (15 + SETUP.spec.slot)


def test_a_conviction_has_its_own_time(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    auditor.step()
    play.advance(SETUP.spec.trainer_budget + 100)
    assert auditor.step() and play.phase is Phase.CONVICTED
    explain(play.client, play.id, [], None, Reporter())
    assert local_time(play.client.verdict(play.id).time) in capsys.readouterr().out.split("since")[1]
