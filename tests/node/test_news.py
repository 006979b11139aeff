"""A role's reports of a game: each transaction with its gas and hash, each own dispute, the end, and the money."""

from __future__ import annotations

from typing import Any

import pytest
from frauds import SETUP, SUM, state_lie, word_lie
from scene import Play, Scene

from vgame.agents.news import News
from vgame.chain.records import Phase
from vgame.dispute.player import Player
from vgame.system.progress import Reporter

Told = list[tuple[str, dict[str, Any]]]


def reports_of(player: Player) -> Told:
    """The events that the player reports from now on."""
    output: Told = []
    reporter = Reporter(who="player")
    reporter.listeners.append(lambda event, fields: output.append((event, fields)))
    News(player.game, reporter)
    return output


def named(output: Told, event: str) -> list[dict[str, Any]]:
    return [fields for name, fields in output if name == event]


def convicted(scene: Scene) -> tuple[Play, Player, Told, Told]:
    play = scene.claimed(SETUP, word_lie(6, SUM, 4, 1)[0])
    auditor = play.auditor()
    reports, other = reports_of(auditor), reports_of(play.trainer)
    assert play.run_to_end(play.trainer, auditor) is Phase.CONVICTED
    return play, auditor, reports, other


def test_every_transaction_is_reported_with_its_gas_and_hash(some_scene: Scene) -> None:
    play, auditor, reports, _ = convicted(some_scene)
    sent = named(reports, "sent")
    moves = [s["move"] for s in sent]
    assert (moves[0], moves[-1]) == ("challenge", "withdraw")
    assert len(sent) == play.scene.chain.web3.eth.get_transaction_count(auditor.address)
    for one in sent:
        receipt = play.scene.chain.web3.eth.get_transaction_receipt(one["transaction"])
        assert receipt["gasUsed"] == one["gas"] and one["fee"] == one["gas"] * receipt["effectiveGasPrice"]
        assert f"{one['gas']:,} gas" in one["text"] and one["transaction"] in one["text"] and "\n" not in one["text"]
        assert one["move"] == "withdraw" or one["job"] == play.id.hex()
    assert sent[0]["value"] == SETUP.spec.stake and "0.2 ether paid in" in sent[0]["text"]
    assert sum(s["withdrawn"] for s in sent) == play.paid(auditor) and " withdrawn: " in sent[-1]["text"]


def test_a_conviction_is_reported_with_its_money(some_scene: Scene) -> None:
    play, auditor, reports, other = convicted(some_scene)
    (event,) = [e for e in play.client.events(job=play.id) if e.name == "Convicted"]
    for output, winner in ((reports, "this account"), (other, auditor.address)):
        (end,) = named(output, "phase")
        assert (end["phase"], end["amount"], end["dispute"]) == ("convicted", event.args["amount"], 0)
        assert end["transaction"].removeprefix("0x") == event.transaction.removeprefix("0x")
        assert f"(element): {event.args['amount'] / 10**18:.6g} ether of its bond to {winner}, " in end["text"]
    assert [d["auditor"] for d in named(reports, "dispute")] == [auditor.address] and len(named(other, "dispute")) == 1
    assert [v["status"] for v in named(reports, "verdict")] == ["won"]


def test_a_wrong_auditor_gets_a_report(some_scene: Scene) -> None:
    play = some_scene.claimed(SETUP)
    auditor, reports = play.auditor(state_lie(6, 5, 0)[0]), reports_of(play.trainer)
    with pytest.raises(Exception, match="own run is wrong"):
        play.run(auditor, play.trainer)
    play.trainer.step()
    assert [v["status"] for v in named(reports, "verdict")] == ["dismissed"]
    play.pass_window()
    play.run(play.trainer)
    (end,) = named(reports, "phase")
    assert end["phase"] == "final" and sum(s["withdrawn"] for s in named(reports, "sent")) == play.paid(play.trainer)


def test_an_incomplete_receipt_prevents_no_move(some_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    play = some_scene.post(SETUP)
    trainer = play.new_trainer()
    output, wait = reports_of(trainer), trainer.game.wallet.send
    monkeypatch.setattr(trainer.game.wallet, "send", lambda *a: dict(wait(*a), gasUsed=None))
    trainer.accept()
    assert play.phase is Phase.ACCEPTED and not named(output, "sent")
