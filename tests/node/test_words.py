"""No single reply of an endpoint ends or misleads a role: one altered reply, or a fabricated event, costs only time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import LIE, SETUP, Forcer
from lying import Table, Truth, chain_one, refuses, selector, table
from proxy import Request
from scene import Play, Scene
from test_watch import watch
from wide import of_many

from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits, NamedJobs
from vgame.agents.roles import play
from vgame.chain.connect import CHAIN_VARIABLE, connect
from vgame.chain.records import Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, EndpointError
from vgame.system.progress import Reporter

GET_JOB = selector("getJob", "bytes32")


def watcher(t: Table) -> AuditorService:
    """An auditor as `vgame auditor` runs it, behind the proxy."""
    auditor = watch(t.play, Limits(any_clocks=True, jobs=frozenset({t.play.id})))
    auditor.game, auditor.staking.allows = t.seat(Trainer).game, lambda _: True
    return auditor


def a_phase(phase: Phase, times: int, asks: str = GET_JOB) -> Any:
    """In the next `times` replies getJob shows the job in this phase."""
    left = [times]

    def lie(query: Request, truth: Truth) -> Request:
        reply = truth()
        if query["method"] == "eth_call" and left[0]:
            call = query["params"][0]
            if call.get("data", call.get("input", "")).startswith(asks):
                left[0] -= 1
                reply["result"] = "0x" + f"{phase:064x}" + reply["result"][66:]
        return reply

    return lie


def other_client(query: Request, truth: Truth) -> Request:
    """getJob shows the order of another client."""
    reply = truth()
    call = query["params"][0] if query["method"] == "eth_call" else {}
    if call.get("data", call.get("input", "")).startswith(GET_JOB):
        client = "0" * 24 + "77" * 20
        reply["result"] = reply["result"][: 2 + 64 * 11] + client + reply["result"][66 + 64 * 11 :]
    return reply


def test_an_order_that_was_once_shown_altered_is_accepted_later(node: Scene) -> None:
    """An order is passed over by its identity, which is a hash: the true order has another one."""
    with table(node, LIE) as t:
        auditor = watcher(t)
        auditor.named = NamedJobs(auditor.game, SETUP.spec, Limits(clients=frozenset({t.play.client.wallet.address})))
        t.proxy.lie = staticmethod(other_client)
        auditor.round()
        assert not auditor.auditors
        t.proxy.lie, auditor.naming.until = None, 0.0
        assert t.play.run_to_end(t.play.trainer, SimpleNamespace(step=auditor.round)) is Phase.CONVICTED


@pytest.mark.parametrize("phase", of_many((Phase.FINAL, Phase.CONVICTED), Phase.FINAL))
def test_a_job_reported_as_ended_is_read_again(node: Scene, phase: Phase) -> None:
    with table(node, LIE) as t:
        once, often = watcher(t), watcher(t)
        t.proxy.lie = staticmethod(a_phase(phase, 2))
        for _ in range(2):
            once.round()
        t.proxy.lie = staticmethod(a_phase(phase, 1000))
        for _ in range(10):
            often.round()
        assert not once.finished
        t.proxy.lie = None
        often.round()
        assert not often.finished and often.game.wallet.address in {d.auditor for d in t.play.disputes()}
        assert t.play.run_to_end(t.play.trainer, SimpleNamespace(step=often.round)) is Phase.CONVICTED


@pytest.mark.parametrize("phase", [Phase.CONVICTED, Phase.EXPIRED])
def test_a_trainer_does_not_end_after_one_reply(node: Scene, phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    with table(node, play=node.post(SETUP)) as t:
        trainer = t.seat(Trainer)
        trainer.accept()
        trainer.step()
        t.proxy.lie = staticmethod(a_phase(phase, 2))
        output: list[str] = []
        reporter = Reporter(who="trainer")
        monkeypatch.setattr(reporter, "emit", lambda event, *_, **__: output.append(event))
        t.play.pass_window()
        computation: Any = SimpleNamespace(run_root=bytes(32))
        assert play(trainer, computation, reporter, 0.01) is Phase.FINAL
        assert t.play.phase is Phase.FINAL and output[-1] == "ended"


def test_transactions_are_signed_for_the_users_chain_only(node: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reply is untrusted too: no transaction is signed for a chain id that it names."""
    right = node.chain.chain_id
    with table(node) as t:
        near, far = t.chain.url, t.chain.url.replace("127.0.0.1", "0.0.0.0")  # the same, but not by a name of loopback
        assert connect(near).chain_id == connect(far, right).chain_id == right
        with pytest.raises(ChainError, match=rf"reports chain {right}, but vgame does not sign.*--chain-id"):
            connect(far)
        t.proxy.lie = staticmethod(chain_one)
        for url in (near, far):
            with pytest.raises(ChainError, match=rf"is chain 1, chain {right} was expected"):
                connect(url, right)
        monkeypatch.setenv(CHAIN_VARIABLE, str(right))
        with pytest.raises(ChainError, match="is chain 1, chain"):
            connect(near)
        monkeypatch.setenv(CHAIN_VARIABLE, "one")
        with pytest.raises(ChainError, match="the number of a chain is expected"):
            connect(near)


@pytest.fixture(scope="module")
def honest(node: Scene) -> Play:
    """An honest claim; no reply may cause a dispute."""
    play = node.claimed(replace(SETUP, terms={"trainer_budget": 86_400}))
    assert play.auditor(None, Forcer, step=1).step()
    return play


@pytest.mark.parametrize(("word", "value"), [(2, 2**24 - 1), (3, 2**32 - 1), (3, 2), (4, 2**32 - 1), (4, 1)])
def test_a_claim_of_another_shape_is_rejected(honest: Play, word: int, value: int) -> None:
    """Trees are made in the claim's shape: with 2^32 checkpoints they would fill the memory."""
    with table(honest.scene, play=honest) as t:
        auditor = t.seat(Auditor)

        def lie(query: Request, truth: Truth) -> Request:
            reply = truth()
            call = query["params"][0] if query["method"] == "eth_call" else {}
            if call.get("data", call.get("input", "")).startswith(GET_JOB):
                reply["result"] = reply["result"][: 2 + 64 * word] + f"{value:064x}" + reply["result"][66 + 64 * word :]
            return reply

        refuses(t, auditor, lie, EndpointError, "the reply is ignored")
        assert not auditor.step()


def test_a_false_block_number_changes_nothing(honest: Play) -> None:
    """State is read at the block's hash: a false number changes nothing and causes no long loop."""
    with table(honest.scene, play=honest) as t:
        auditor = t.seat(Auditor)
        asked_for = 0

        def lie(query: Request, truth: Truth) -> Request:
            nonlocal asked_for
            asked_for += 1
            reply = truth()
            if query["method"] == "eth_getBlockByNumber" and query["params"][0] == "latest":
                reply["result"]["number"] = hex(2**40)
            return reply

        t.proxy.lie = staticmethod(lie)
        before = t.sent(auditor)
        assert not auditor.step() and auditor.agrees()
        assert t.sent(auditor) == before and asked_for < 30
