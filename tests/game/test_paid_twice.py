"""A call that was sent is not sent again at once with another nonce, however an endpoint hides its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from chains import quick_chain
from false_replies import altered, invented_estimates, own_clock, refused, show_stale
from frauds import LIE, SETUP
from scene import Play, deployed
from test_delivery_agents import Sides
from test_watch import watch

import vgame.agents.staking
from vgame.agents import retry
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain.connection import Chain
from vgame.chain.records import Level, Phase, Turn
from vgame.errors import ContractError, VgameError
from vgame.job.terms import INCLUSION, KEPT_OUT

BLOCK = 12
ROUNDS, FEW = 25, 8  # rounds of a test; the most transactions that the pauses allow in them


def sent_by(chain: Chain, player: Any) -> int:
    return int(chain.web3.eth.get_transaction_count(player.address))


@contextmanager
def few_transactions(chain: Chain, player: Any, most: int = FEW) -> Iterator[None]:
    """Not a development chain; the player sends 1 to `most` transactions."""
    before = sent_by(chain, player)
    with patch.object(chain, "is_development", False):
        yield
    assert 1 <= sent_by(chain, player) - before <= most


def rounds(step: Callable[[], Any], play: Play, seconds: int = BLOCK) -> None:
    for _ in range(ROUNDS):
        with suppress(VgameError):
            step()
        play.advance(seconds)


def _of_another(params: Any, usual: Callable[[], Any]) -> Any:
    answer = usual()
    if answer.get("result"):
        answer = answer | {"result": dict(answer["result"]) | {"transactionHash": "0x" + "11" * 32}}
    return answer


def _passed_on(params: Any, usual: Callable[[], Any]) -> Any:
    usual()
    return refused()


@pytest.mark.parametrize(
    ("method", "lie"),
    [
        ("eth_getTransactionReceipt", _of_another),
        ("eth_sendRawTransaction", _passed_on),
        ("none", None),
    ],
    ids=["the receipt is another's", "sent on, and refused", "the state after it is refused"],
)
def test_a_sent_call_is_not_sent_again_at_once(method: str, lie: Any) -> None:
    """A `reveal` that was made is shown as due; its cost does not depend on the way in which its outcome is hidden."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        trainer = play.trainer
        play.auditor(None, FalseAccuser, step_wanted=1).step()
        show_stale(trainer.game, 0, play.client.disputes(play.id)[0])
        if lie is None:

            def opened(*_: Any) -> int:
                return chain.ask(lambda: (_ for _ in ()).throw(ValueError("try later")))

            trainer.game.opened = opened
        with few_transactions(chain, trainer), altered(chain, method, lie):
            rounds(trainer.step, play)


def test_a_revert_without_a_shown_reason_counts_as_a_transaction() -> None:
    """The estimate is invented, the call reverts on chain, and the endpoint gives no reason."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        trainer = play.trainer
        play.auditor(None, FalseAccuser, step_wanted=1).step()
        old = play.client.disputes(play.id)[0]
        with suppress(VgameError):
            trainer.step()
        old = replace(old, dispute=replace(old.dispute, level=Level.RUN, height=0))  # a post, elsewhere: reverts
        show_stale(trainer.game, 0, old)

        def call(params: Any, usual: Callable[[], Any]) -> Any:
            answer = usual()
            return refused() if "error" in answer else answer

        with few_transactions(chain, trainer), invented_estimates(chain), altered(chain, "eth_call", call):
            rounds(trainer.step, play)


def test_timeouts_with_a_false_receipt_wait_too() -> None:
    """A dispute is shown as run out on the trainer's side; the estimate is invented, and the receipt's status."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP, LIE)
        auditor = play.auditor()
        auditor.step()
        (real,) = play.client.disputes(play.id)
        show_stale(auditor.game, 0, replace(real, turn=Turn.TRAINER_EXPIRED))

        def succeeded(params: Any, usual: Callable[[], Any]) -> Any:
            answer = usual()
            if answer.get("result"):
                answer = answer | {"result": dict(answer["result"]) | {"status": "0x1"}}
            return answer

        with (
            few_transactions(chain, auditor),
            invented_estimates(chain),
            altered(chain, "eth_getTransactionReceipt", succeeded),
        ):
            rounds(auditor.step, play, 1)


@contextmanager
def false_credit() -> Iterator[AuditorService]:
    """Ten jobs are shown as convicted, and a credit for the account."""
    with quick_chain() as chain:
        scene = deployed(chain)
        plays = [scene.claimed(SETUP) for _ in range(10)]
        service = watch(plays[0], Limits(jobs=frozenset(play.id for play in plays)))
        usual = service.game.jobs
        service.game.jobs = lambda which: [replace(job, phase=Phase.CONVICTED) for job in usual(which)]
        service.game.credits = lambda _: 10**18
        with invented_estimates(chain):
            yield service


def test_one_false_credit_is_not_withdrawn_for_each_job() -> None:
    """`withdraw` is a call of the account, for any number of its jobs."""
    with false_credit() as service, few_transactions(service.game.chain, service.game.wallet, most=1):
        service.round()


def test_a_waiting_withdrawal_is_prepared_once_in_a_round() -> None:
    """It is not estimated, priced and numbered for each job in each round."""
    with false_credit() as service, patch.object(service.game.chain, "is_development", False):
        service.round()
        provider, asked = service.game.chain.web3.provider, list[str]()
        usual = provider.make_request

        def counted(name: str, params: Any) -> Any:
            asked.append(name)
            return usual(name, params)

        with patch.object(provider, "make_request", counted):
            provider._request_func_cache = (None, None)
            for known in service.retry.values():
                known.until = 0.0
            service.round()
        provider._request_func_cache = (None, None)
        assert 1 <= len(asked) <= 30, asked


def test_varied_roots_do_not_drain_an_auditor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right claim is shown with another false root every minute, and a stake on each would revert."""
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        own_clock(monkeypatch, chain, retry)
        service = watch(play, Limits(jobs=frozenset({play.id})))
        game, root = service.game, [b""]
        usual = game.jobs
        game.jobs = lambda which: [replace(job, run_root=root[0]) for job in usual(which)]
        with few_transactions(chain, game.wallet), invented_estimates(chain):
            for n in range(12):
                root[0] = bytes([n + 1]) * 32
                for _ in range(4):
                    service.round()
                    play.advance(15)


def test_a_client_does_not_repeat_its_confirmation_without_end(tmp_path: Path) -> None:
    """It has confirmed; the endpoint shows the state before, and estimates."""
    with quick_chain() as chain:
        sides = Sides(deployed(chain), tmp_path)
        sides.claim()
        client = sides.play.client
        stale = client.exchange(sides.play.id)
        with suppress(VgameError):
            sides.receive()
        assert client.exchange(sides.play.id).confirmed_at
        client.exchange = lambda _: stale
        with few_transactions(chain, client.wallet), invented_estimates(chain):
            rounds(sides.receive, sides.play)


def test_a_fault_shorter_than_its_allowance_costs_no_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 450 s a node estimates too little gas, so each `postSegment` runs out of it. Budgets allow for 600 s of such
    delays (KEPT_OUT); a pause that begins when the fault is nearly over must fit into the rest."""
    budget, fault = KEPT_OUT + 8 * INCLUSION, 450
    setup = replace(SETUP, steps=64, interval=1, depth=5, terms={"trainer_budget": budget, "slot": 60})
    with quick_chain() as chain:
        play = deployed(chain).claimed(setup)
        own_clock(monkeypatch, chain)
        trainer, accuser = play.trainer, play.auditor(None, FalseAccuser, step_wanted=1)
        accuser.step()
        count, begun = sent_by(chain, trainer), chain.now()

        def estimate(params: Any, usual: Callable[[], Any]) -> Any:
            answer = usual()
            return answer | {"result": "0x1"} if "result" in answer and chain.now() - begun < fault else answer

        with patch.object(chain, "is_development", False), altered(chain, "eth_estimateGas", estimate):
            for _ in range(2 * budget // BLOCK):
                if play.phase is not Phase.CLAIMED or play.dispute().turn_at > begun + fault:
                    break
                for player in (trainer, accuser):
                    with suppress(VgameError):
                        player.step()
                play.advance(BLOCK - 2)
        sent = sent_by(chain, trainer) - count
        assert sent > 5
        assert play.phase is Phase.CLAIMED, f"an honest trainer is convicted: {play.verdicts}, {sent} transactions"


def test_a_reason_quotes_no_secret() -> None:
    """A gateway's reason for a revert quotes its own URL."""
    with quick_chain() as chain:
        play = deployed(chain).post(SETUP)
        secret = chain.secret = f"{chain.url}/v3/0123456789abcdef"

        def reason(params: Any, usual: Callable[[], Any]) -> Any:
            error = {"code": 3, "message": f"execution reverted: upstream {secret} said no"}
            return {"jsonrpc": "2.0", "id": 1, "error": error}

        with altered(chain, "eth_call", reason), pytest.raises(VgameError) as caught:
            play.client.job(play.id)
        assert isinstance(caught.value, ContractError)
        assert "0123456789abcdef" not in str(caught.value)
