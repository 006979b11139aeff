"""Illegal refunds, withdrawals and lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple

from frauds import LIE, SETUP
from refusals import NODE, Refusal, refuses
from scene import NAME, Call, Scene, due, payee_game

from vgame.chain.records import Level, Phase, Status


@refuses("WrongPhase", "DisputeClosed")
def refund(scene: Scene) -> Iterator[Refusal]:
    """Once, and only for disputes that were open at the conviction."""
    play = scene.claimed(SETUP, LIE)
    trainer, game = play.trainer, scene.game()
    lapsed, idle, winner = play.auditor(), play.auditor(), play.auditor()
    due(lapsed).send(lapsed.game)
    trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    trainer.step()
    due(idle).send(idle.game)
    call = Call("refund", (play.id, 0))
    yield Refusal("WrongPhase", (Phase.CLAIMED, Phase.CONVICTED), game, call)
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CONVICTED), game, call.but(0, NODE))
    play.run(trainer, winner)
    assert play.phase is Phase.CONVICTED
    for number, status in ((0, Status.LAPSED), (2, Status.WON), (9, Status.NONE)):
        yield Refusal("DisputeClosed", (status,), game, call.but(1, number))
    call.but(1, 1).send(game)
    yield Refusal("DisputeClosed", (Status.VOID,), game, call.but(1, 1))


@refuses("NothingToWithdraw", "PaymentRefused")
def withdraw(scene: Scene) -> Iterator[Refusal]:
    """A refused payment stays a credit, and can be paid to another recipient."""
    yield Refusal("NothingToWithdraw", (), scene.game(), Call("withdraw", (NODE[:20],)))
    payee, taker = payee_game(scene, "REFUSE"), scene.wallet().address
    payee.send("createJob", astuple(SETUP.spec), 0, NAME, SETUP.program.header, value=SETUP.spec.reward)
    scene.chain.advance(SETUP.spec.accept_window + 1)
    scene.game().send("expire", payee.job_id(SETUP.spec, payee.wallet.address, 0))
    call = Call("withdraw", (payee.wallet.address,))
    yield Refusal("PaymentRefused", (payee.wallet.address.lower(),), payee, call)
    before = scene.chain.balance(taker)
    call.but(0, taker).send(payee)
    assert scene.chain.balance(taker) == before + SETUP.spec.reward
    yield Refusal("NothingToWithdraw", (), payee, call)


@refuses("NothingPostedAt")
def posts(scene: Scene) -> Iterator[Refusal]:
    play, kinds = scene.claimed(SETUP), (Level.SEGMENT, Level.TRACE, Level.ELEMENT)
    for kind in Level:
        if kind not in kinds:
            yield Refusal("NothingPostedAt", (kind,), play.client, Call("getPosts", (play.id, int(kind), [1])))
