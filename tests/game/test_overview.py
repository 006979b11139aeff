"""Status and monitor: their output equals the contract's state, and every alarm begins and ends."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from eth_account import Account
from frauds import SETUP, SPEC, SUM, word_lie
from scene import Scene, embedded_chain
from web3.exceptions import Web3RPCError

from vgame.agents.client import close_job
from vgame.agents.config import wallet_from_environment
from vgame.agents.status import alarms, read_game, read_job, show_status, watch
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.connection import Chain, RefusedError
from vgame.chain.records import Phase, Turn, checksum_address
from vgame.dispute.player import DISPUTE_GAS
from vgame.errors import ChainError
from vgame.system.progress import Reporter


def kinds(play, account: str, forecast: dict[str, str] | None = None) -> set[str]:
    return {alarm.kind for alarm in alarms(play.client, account, forecast)}


def disputed(scene: Scene):
    """A wrong claim, and an auditor that has challenged it."""
    play = scene.claimed(SETUP, word_lie(6, SUM, 4, 1)[0])
    auditor = play.auditor()
    auditor.step()
    assert play.job.open == 1
    return play, auditor


def test_status_equals_the_contracts_views(scene: Scene) -> None:
    play, auditor = disputed(scene)
    now = scene.chain.now()
    status = read_job(play.client, play.id, now)
    turn, deadline = play.client.turn(play.id, 0)
    assert (status.phase, status.steps, status.run_root) == ("claimed", play.setup.steps, play.job.run_root.hex())
    assert status.seconds_left == play.job.since + play.job.spec.challenge_window - now
    (dispute,) = status.disputes
    assert (dispute.status, dispute.level, dispute.auditor) == ("open", "run", auditor.address)
    assert (dispute.turn, dispute.seconds_left) == ("trainer", deadline - now)
    assert turn is Turn.TRAINER
    play.run(play.trainer, auditor)
    assert play.phase is Phase.CONVICTED
    (after,) = [j for j in read_game(play.client) if j.job == play.id.hex()]
    assert (after.phase, after.seconds_left, after.disputes[0].status) == ("convicted", None, "won")


def test_status_prints_one_object(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    play, auditor = disputed(scene)
    show_status(play.client, Reporter(json_lines=True), play.id, auditor.address, None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["jobs"][0]["job"] == play.id.hex()
    assert lines[0]["account"]["balance"] == scene.chain.balance(auditor.address)


def test_the_table_shows_how_a_dispute_ended(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    play, auditor = disputed(scene)
    show_status(play.client, Reporter(), play.id, None, None)
    assert "0: open" in capsys.readouterr().out
    play.run(play.trainer, auditor)
    show_status(play.client, Reporter(), play.id, None, None)
    assert "0: the auditor was right" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("url", "shown"),
    [("localhost:8545", "localhost:8545"), ("ws://localhost:8545", "ws://localhost:8545"),
     ("http://localhost:port", "the endpoint"), ("nonsense", "the endpoint")],
)  # fmt: skip
def test_a_url_that_is_not_a_nodes_is_refused(url: str, shown: str) -> None:
    with pytest.raises(ChainError, match=f"^{shown} is no URL of a node"):
        Chain(url)


def test_a_client_gets_its_money_back(scene: Scene) -> None:
    """Without a claim: the reward and half of the trainer's bond. If the trainer is gone: its claim is finalized."""
    play = scene.post(SETUP)
    with pytest.raises(ChainError, match="is created and cannot be ended yet"):
        close_job(play.client, play.id)
    with pytest.raises(ChainError, match="there is no job"):
        close_job(play.client, bytes(32))
    play.new_trainer().accept()
    scene.chain.advance(SPEC.claim_window + 1)
    assert close_job(play.client, play.id) == (Phase.EXPIRED, SPEC.reward + SPEC.trainer_bond // 2)
    with pytest.raises(ChainError, match="is expired, and the contract owes"):
        close_job(play.client, play.id)
    play = scene.claimed(SETUP)
    scene.chain.advance(SPEC.challenge_window + 1)
    assert close_job(play.client, play.id) == (Phase.FINAL, 0)
    assert play.client.credits(play.trainer.address) == SPEC.reward + SPEC.trainer_bond


@pytest.mark.parametrize(("moves", "phase"), [(1, Phase.CONVICTED), (2, Phase.FINAL)])
def test_abandoned_disputes_are_ended(scene: Scene, moves: int, phase: Phase) -> None:
    """Both sides are gone: the side to move has lost, and the client need not wait."""
    play = scene.claimed(SETUP)
    accusers = [play.auditor(None, FalseAccuser, step_wanted=1 + n) for n in range(2)]
    for accuser in accusers:
        accuser.step()
    for _ in range(moves - 1):
        play.trainer.step()
    scene.chain.advance(SPEC.challenge_window + 10 * (SPEC.trainer_budget + SPEC.auditor_budget))
    assert close_job(play.client, play.id) == (phase, SPEC.reward if phase is Phase.CONVICTED else 0)


def test_any_account_can_end_a_dispute_whose_time_is_over(scene: Scene) -> None:
    """It gets no payment, and an already ended dispute is no error."""
    play, _ = disputed(scene)
    play.advance(SPEC.trainer_budget + 1)
    stranger = scene.game()
    assert close_job(stranger, play.id) == (Phase.CONVICTED, 0)
    with pytest.raises(ChainError, match="is convicted, and the contract owes"):
        close_job(stranger, play.id)


def test_a_claim_in_dispute_is_not_closed(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    scene.chain.advance(SPEC.challenge_window - 10)
    play.auditor(None, FalseAccuser, step_wanted=1).step()
    scene.chain.advance(11)
    with pytest.raises(ChainError, match="is claimed and cannot be ended yet") as caught:
        close_job(play.client, play.id)
    assert SPEC.trainer_budget - 11 <= int(re.search(r"at least (\d+) s", str(caught.value))[1]) <= SPEC.trainer_budget


def test_the_alarms_clock_and_stuck_begin_for_the_side_to_move(scene: Scene) -> None:
    play, auditor = disputed(scene)
    trainer = play.trainer.address
    assert not kinds(play, trainer) & {"clock", "stuck", "timeout"}
    play.advance(61)
    assert "stuck" in kinds(play, trainer) and "clock" not in kinds(play, trainer)
    assert "stuck" not in kinds(play, auditor.address)
    play.advance(play.setup.spec.trainer_budget - 100)
    assert "clock" in kinds(play, trainer)
    play.advance(200)
    assert "timeout" in kinds(play, trainer) and "timeout" in kinds(play, auditor.address)
    (alarm,) = [alarm for alarm in alarms(play.client, trainer) if alarm.kind == "timeout"]
    assert alarm.text.endswith("the trainer is out of time; any account may end the dispute: `vgame job close`")
    auditor.step()
    assert play.phase is Phase.CONVICTED
    assert not kinds(play, trainer) & {"clock", "stuck", "timeout"}


def test_forecast(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    root = play.job.run_root.hex()
    assert "forecast" not in kinds(play, play.trainer.address, {play.id.hex(): root})
    assert "forecast" in kinds(play, play.trainer.address, {play.id.hex(): "00" * 32})


def test_orders_of_a_client_are_read_by_state(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is requested, and no order of another account is read."""
    play, other = scene.claimed(SETUP), scene.post(SETUP)
    mine = play.client.wallet.address
    monkeypatch.setattr(type(play.client), "events", None)
    assert [j.job for j in read_game(play.client, clients=[mine])] == [play.id.hex()]
    both = read_game(play.client, clients=[mine, other.client.wallet.address])
    assert [j.job for j in both] == [play.id.hex(), other.id.hex()]
    play.advance(SETUP.spec.accept_window)
    wrong = {play.id.hex(): "00" * 32}
    assert "forecast" in {a.kind for a in alarms(play.client, play.trainer.address, wrong, [mine])}
    assert watch(play.client, Reporter(), mine, lambda: wrong, 0.0, once=True, clients=[mine]) >= 1


def test_a_claim_that_is_due(scene: Scene) -> None:
    play = scene.post(SETUP)
    trainer = play.new_trainer()
    trainer.accept()
    assert "claim" not in kinds(play, trainer.address)
    play.advance(play.setup.spec.claim_window - 50)
    assert "claim" in kinds(play, trainer.address)


def test_bonds_and_balance_against_the_price_of_gas(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    play = scene.claimed(SETUP)
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (0, 1))
    assert not kinds(play, play.trainer.address) & {"bond", "balance"}
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (10**20, 0))
    assert kinds(play, play.trainer.address) >= {"bond", "balance"}


def test_the_reserve_for_all_disputes_that_are_open(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may follow its own path: the trainer needs gas for all of them, an accuser for its own."""
    play = scene.claimed(replace(SETUP, terms={"auditor_bond": 4 * DISPUTE_GAS}))
    accusers = [play.auditor(None, FalseAccuser, idle=True) for _ in range(9)]
    for accuser in accusers:
        accuser.step()
    monkeypatch.setattr(scene.chain, "fees", lambda **_: (1, 0))
    players = (play.trainer.address, accusers[0].address)
    for owned, alarmed in ((9 * DISPUTE_GAS, 0), (9 * DISPUTE_GAS - 1, 1)):
        for address in players:
            scene.chain.node.set_balance(address, owned)
        assert ["balance" in kinds(play, a) for a in players] == [bool(alarmed), False]


def test_monitor_once_counts_its_alarms(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    play, _ = disputed(scene)
    before = watch(play.client, Reporter(json_lines=True), play.trainer.address, None, 0.0, once=True)
    play.advance(61)
    assert watch(play.client, Reporter(json_lines=True), play.trainer.address, None, 0.0, once=True) == before + 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["event"], last["kind"], last["dispute"]) == ("alarm", "stuck", 0)


def test_monitor_once_reports_that_there_is_no_alarm(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    play, auditor = disputed(scene)
    play.run(play.trainer, auditor)
    stranger = Account.create().address
    scene.chain.fund(stranger, 10**18)
    assert watch(play.client, Reporter(json_lines=True), stranger, None, 0.0, once=True) == 0
    (output,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert output == {"event": "calm", "who": "", "jobs": len(read_game(play.client))}
    watch(play.client, Reporter(), stranger, None, 0.0, once=True)
    assert f"no alarm in {output['jobs']} job" in capsys.readouterr().out


@pytest.mark.parametrize("loop", ["status", "monitor"])
def test_status_and_monitor_survive_an_outage(
    scene: Scene, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """In a loop only: a single look gives a result or an error."""
    play, _ = disputed(scene)
    reporter, account = Reporter(json_lines=True), play.trainer.address
    usual, answers = scene.chain.now, [None, ChainError("no answer"), ChainError("no answer"), None, KeyboardInterrupt]

    def look(once: bool) -> None:
        if loop == "status":
            show_status(play.client, reporter, None, None, None if once else 0.0)
        else:
            watch(play.client, reporter, account, None, 0.0, once)

    def now() -> int:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return usual() + 61 * (len(answers) == 1)

    monkeypatch.setattr(scene.chain, "now", now)
    with pytest.raises(KeyboardInterrupt):
        look(once=False)
    output = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert output == (["status", "problem"] if loop == "status" else ["problem", "alarm"])
    answers[:] = [ChainError("no answer")]
    with pytest.raises(ChainError):
        look(once=True)


def test_a_key_comes_from_a_keystore(scene: Scene, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account.create()
    path = tmp_path / "key.json"
    path.write_text(json.dumps(Account.encrypt(account.key, "secret", kdf="pbkdf2", iterations=2)))
    monkeypatch.delenv("VGAME_KEY", raising=False)
    monkeypatch.setenv("VGAME_KEYSTORE", str(path))
    with pytest.raises(ChainError, match="VGAME_PASSWORD"):
        wallet_from_environment(scene.chain)
    monkeypatch.setenv("VGAME_PASSWORD", "wrong")
    with pytest.raises(ChainError, match="not its password"):
        wallet_from_environment(scene.chain)
    monkeypatch.setenv("VGAME_PASSWORD", "secret")
    assert wallet_from_environment(scene.chain).address == account.address
    path.write_text("{}")
    with pytest.raises(ChainError, match="no keystore"):
        wallet_from_environment(scene.chain)


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(ChainError, match="40 hex digits"):
        checksum_address("0x12")


def test_a_read_at_a_block_unknown_to_one_node_is_repeated() -> None:
    """A balancer alternates between two nodes, and the same read of every round reaches the lagging one."""
    with embedded_chain() as chain:
        answers: list[Any] = []

        def question() -> int:
            if isinstance(answer := answers.pop(0), Exception):
                raise answer
            return answer

        with chain.pinned():
            answers[:] = [Web3RPCError("header not found"), 7]
            assert chain.ask(question) == 7
        answers[:] = [Web3RPCError("header not found"), 7]
        with pytest.raises(RefusedError, match="header not found"):
            chain.ask(question)
