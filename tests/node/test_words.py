"""An endpoint's word ends and blinds nobody: one altered answer, or a fabricated event, costs time and nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from frauds import SETUP, SUM, Forcer, state_lie, word_lie
from lying import Table, Truth, chain_one, refuses, selector, table, topic
from proxy import Request
from scene import Play, Scene
from test_watch import watch
from wide import of_many

from vgame.agents.auditor_service import AuditorService, Limits
from vgame.agents.roles import play
from vgame.chain.connection import CHAIN_VARIABLE, connect
from vgame.chain.records import Phase
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer
from vgame.errors import ChainError, EndpointError
from vgame.system.progress import Reporter

LIE = word_lie(6, SUM, 4, 1)[0]
GET_JOB = selector("getJob", "bytes32")


def watcher(t: Table) -> AuditorService:
    """An auditor as `vgame auditor` runs it, behind the proxy."""
    auditor = watch(t.play, Limits(any_clocks=True))
    auditor.game, auditor.refusal = t.seat(Trainer).game, lambda _: ""
    return auditor


def a_phase(phase: Phase, times: int, asks: str = GET_JOB) -> Any:
    """So often getJob says that the job is in this phase."""
    left = [times]

    def lie(asked: Request, truth: Truth) -> Request:
        told = truth()
        if asked["method"] == "eth_call" and left[0]:
            call = asked["params"][0]
            if call.get("data", call.get("input", "")).startswith(asks):
                left[0] -= 1
                told["result"] = "0x" + f"{phase:064x}" + told["result"][66:]
        return told

    return lie


def other_client(asked: Request, truth: Truth) -> Request:
    """The order of somebody else under the job's identity."""
    told = truth()
    for log in told.get("result") if asked["method"] == "eth_getLogs" else ():
        if len(log["topics"]) == 3:
            log["topics"][2] = "0x" + "00" * 12 + "77" * 20
    return told


def test_an_order_that_was_shown_altered_is_known_again(node: Scene) -> None:
    with table(node, LIE) as t:
        auditor = watcher(t)
        t.proxy.lie = staticmethod(other_client)
        auditor.look()
        assert not auditor.auditors
        t.proxy.lie = None
        assert t.play.run_to_end(t.play.trainer, SimpleNamespace(step=auditor.round)) is Phase.CONVICTED


@pytest.mark.parametrize("phase", of_many((Phase.FINAL, Phase.CONVICTED), Phase.FINAL))
def test_a_job_that_was_said_to_have_ended_is_looked_at_again(
    node: Scene, phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        monkeypatch.setattr(AuditorService, "AGAIN", 0.0)
        often.round()
        assert not often.finished and often.game.wallet.address in {d.auditor for d in t.play.disputes()}
        assert t.play.run_to_end(t.play.trainer, SimpleNamespace(step=often.round)) is Phase.CONVICTED


@pytest.mark.parametrize("phase", [Phase.CONVICTED, Phase.EXPIRED])
def test_a_trainer_does_not_end_on_one_word(node: Scene, phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    with table(node, play=node.post(SETUP)) as t:
        trainer = t.seat(Trainer)
        trainer.accept()
        trainer.step()
        t.proxy.lie = staticmethod(a_phase(phase, 2))
        said: list[str] = []
        reporter = Reporter(who="trainer")
        monkeypatch.setattr(reporter, "emit", lambda event, *_, **__: said.append(event))
        t.play.pass_window()
        computation: Any = SimpleNamespace(run_root=bytes(32))
        assert play(trainer, computation, reporter, 0.01) is Phase.FINAL
        assert t.play.phase is Phase.FINAL and said[-1] == "ended"


def test_the_user_names_the_chain_that_is_signed_for(node: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is an endpoint's word too: one that lied got a transaction signed for chain 1."""
    right = node.chain.chain_id
    with table(node) as t:
        near, far = t.chain.url, t.chain.url.replace("127.0.0.1", "0.0.0.0")  # the same, but not by a name of loopback
        assert connect(near).chain_id == connect(far, right).chain_id == right
        with pytest.raises(ChainError, match=rf"says that it is chain {right}, and nothing is signed.*--chain-id"):
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
    """An honest claim, of which nobody is to be made doubt. It is disputed: before that nothing can be posted, and
    nobody asks what was."""
    play = node.claimed(replace(SETUP, terms={"trainer_budget": 86_400}))
    assert play.auditor(None, Forcer, step=1).step()
    return play


def more_events(t: Table, name: str, where: int, root: str) -> Any:
    """One event more in every answer that could hold it."""
    word = "0x{:064x}".format

    def lie(asked: Request, truth: Truth) -> Request:
        told = truth()
        if asked["method"] == "eth_getLogs" and asked["params"][0]["topics"][0] == topic(name):
            told["result"] = [
                *told["result"],
                {
                    "address": t.play.scene.address,
                    "topics": [topic(name), "0x" + t.play.id.hex(), word(where)],
                    "data": root,
                    "blockNumber": "0x1",
                    "blockHash": word(1),
                    "transactionHash": word(2),
                    "transactionIndex": "0x0",
                    "logIndex": "0x0",
                    "removed": False,
                },
            ]
        return told

    return lie


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *(("TracePosted", step) for step in (0, 10**6, 2**255)),
        *(("SegmentPosted", checkpoint) for checkpoint in (0, 4, 2**256 - 1)),
        *(("TracePosted", 6), ("SegmentPosted", 2)),
    ],
)
def test_a_fabricated_event_is_left_out(honest: Play, name: str, where: int) -> None:
    """It is said where it cannot be true; no bond is staked against it, and the auditor plays on and wins meanwhile."""
    with table(honest.scene, play=honest) as t:
        auditor = t.seat(Auditor)
        lie = more_events(t, name, where, "0x" + "ab" * 32)
        if where in (2, 6):  # the view could lag, so this may be true
            t.proxy.lie = staticmethod(lie)
            assert not auditor.step() and t.sent(auditor) == 0
            return
        refuses(
            t,
            auditor,
            lie,
            EndpointError,
            f"the event {name} {where}, root abab.*, which the contract does not confirm",
        )
        assert auditor.agrees() and t.play.job.disputes == 1


def test_a_fabricated_event_does_not_stop_a_dispute(node: Scene) -> None:
    with table(node, state_lie(6, 5, 0)[0]) as t:
        auditor = watcher(t)
        t.proxy.lie = staticmethod(more_events(t, "TracePosted", 10**6, "0x" + "ab" * 32))
        assert t.play.run_to_end(t.play.trainer, SimpleNamespace(step=auditor.round)) is Phase.CONVICTED


@pytest.mark.parametrize(("word", "value"), [(2, 2**24 - 1), (3, 2**32 - 1), (3, 2), (4, 2**32 - 1), (4, 1)])
def test_a_claim_of_another_shape_is_not_believed(honest: Play, word: int, value: int) -> None:
    """Trees are made in the claim's shape: with 2^32 checkpoints they would fill the memory."""
    with table(honest.scene, play=honest) as t:
        auditor = t.seat(Auditor)

        def lie(asked: Request, truth: Truth) -> Request:
            told = truth()
            call = asked["params"][0] if asked["method"] == "eth_call" else {}
            if call.get("data", call.get("input", "")).startswith(GET_JOB):
                told["result"] = told["result"][: 2 + 64 * word] + f"{value:064x}" + told["result"][66 + 64 * word :]
            return told

        refuses(t, auditor, lie, EndpointError, "nothing is done on its word")
        assert not auditor.step()


def test_a_newest_block_that_was_made_up_is_not_asked_for_without_end(honest: Play) -> None:
    with table(honest.scene, play=honest) as t:
        auditor = t.seat(Auditor)

        def lie(asked: Request, truth: Truth) -> Request:
            told = truth()
            if asked["method"] == "eth_getBlockByNumber" and asked["params"][0] == "latest":
                told["result"]["number"] = hex(2**40)
            return told

        refuses(t, auditor, lie, ChainError, "refused a request|cannot be read")
        assert not auditor.step() and auditor.agrees()
