"""A move that is estimated before another account's move, and executed after it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from chains import quick_chain
from frauds import LIE, SETUP
from scene import Play, deployed

from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.pauses import PAUSE, Pause
from vgame.chain.records import Level, Phase, Standing, Turn
from vgame.chain.wallet import Wallet
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.errors import LostRace


def challenged_meanwhile(play: Play, auditor: Auditor) -> None:
    """The move that the auditor is about to send, while another one challenges."""
    rival, send = play.auditor(None, FalseAccuser, idle=True), Wallet.send

    def late(wallet: Wallet, *args, **options):
        if wallet is auditor.game.wallet:
            rival.step()
        return send(wallet, *args, **options)

    with patch.object(Wallet, "send", late):
        auditor.step()


def test_a_dispute_that_begins_meanwhile_makes_a_move_dearer() -> None:
    """With the second dispute, each later move marks its awaited duty (Turns._await): more gas than the estimate."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        auditor = play.auditor()
        assert play.run_until("selectElement", auditor, play.trainer)
        challenged_meanwhile(play, auditor)
        assert play.dispute().level is Level.ELEMENT and play.job.disputes == 2


def test_a_move_that_lost_a_race_is_reported() -> None:
    """It reverted in its block, and would not now: its sender looks again."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        auditor = play.auditor()
        call = play.run_until("selectElement", auditor, play.trainer)
        send = Wallet.send
        starved = patch.object(Wallet, "send", lambda wallet, to, data, value, gas: send(wallet, to, data, value, 0))
        with starved, pytest.raises(LostRace, match="selectElement"):
            call.send(auditor.game)
        end_pauses(auditor)
        auditor.step()
        assert play.dispute().level is Level.ELEMENT


def end_pauses(player: Player) -> None:
    """Its pauses are over."""
    for pause in player.game.wallet.pauses.known.values():
        pause.end = time.monotonic()


def last_pause(player: Player) -> Pause:
    return list(player.game.wallet.pauses.known.values())[-1]


def test_a_reverting_timeout_is_sent_at_growing_intervals() -> None:
    """An endpoint that shows a false end and estimates its `timeout` must not cause a transaction in every round."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        auditor = play.auditor()
        auditor.step()
        play.advance(SETUP.spec.trainer_budget + 1)
        send, sent = Wallet.send, list[bytes]()

        def starved(wallet: Wallet, to: str, data: bytes, value: int, gas: int):
            sent.append(data)
            return send(wallet, to, data, value, 0)

        with patch.object(Wallet, "send", starved):
            for number in (1, 2, 3):
                end_pauses(auditor)
                with pytest.raises(LostRace, match="timeout"):
                    auditor.step()
                assert not any(auditor.step() for _ in range(5)) and len(sent) == number
                assert last_pause(auditor).seconds == PAUSE * 2 ** (number - 1)
        end_pauses(auditor)
        assert auditor.step() and play.phase is Phase.CONVICTED


def test_nothing_is_staked_while_a_conviction_waits() -> None:
    """The `timeout` of another auditor's dispute has just reverted: it is sent again, before an own stake."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        other, auditor = play.auditor(), play.auditor()
        other.step()
        play.advance(SETUP.spec.trainer_budget + 1)
        send = Wallet.send
        starved = patch.object(Wallet, "send", lambda wallet, to, data, value, gas: send(wallet, to, data, value, 0))
        with starved, pytest.raises(LostRace):
            auditor.step()
        assert not auditor.step() and play.job.disputes == 1


@pytest.mark.parametrize("own", [True, False])
def test_a_false_end_and_its_estimate_cost_one_transaction(own: bool) -> None:
    """All other replies are true: the call after the revert fails with `NotExpired`, which is harmless but costs
    gas."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        other, auditor = play.auditor(), play.auditor()
        other.step()
        if own:
            auditor.step()
        usual, request = auditor.game.disputes, chain.web3.provider.make_request

        def disputes(*args: Any) -> list[Standing]:
            return [replace(s, turn=Turn.TRAINER_EXPIRED) if s.number == 0 else s for s in usual(*args)]

        def estimates(method, params):
            answer = request(method, params)
            refused = method == "eth_estimateGas" and "error" in answer
            return {"jsonrpc": "2.0", "id": 1, "result": hex(200_000)} if refused else answer

        sent = chain.web3.eth.get_transaction_count(auditor.address)
        cached = chain.web3.provider._request_func_cache
        with (
            patch.object(auditor.game, "disputes", disputes),
            patch.object(chain.web3.provider, "make_request", estimates),
        ):
            chain.web3.provider._request_func_cache = (None, None)
            for _ in range(10):
                auditor.step()
        chain.web3.provider._request_func_cache = cached
        assert chain.web3.eth.get_transaction_count(auditor.address) == sent + 1
        assert last_pause(auditor).seconds == PAUSE and play.job.disputes == 1 + own


def test_a_claim_hidden_from_one_look_is_waited_for() -> None:
    """One node shows the job before the claim, another behind it: nothing is sent, and the round has done nothing."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, None)
        before = replace(play.job, phase=Phase.ACCEPTED)
        with patch.object(play.trainer, "look", lambda: before):
            assert not play.trainer.step()
