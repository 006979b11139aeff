"""Illegal refunds, proofs of knowledge, payments and withdrawals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

from frauds import SETUP, Forcer, word_lie
from refusals import LIE, NODE, Refusal, refuses, struct
from scene import Call, Scene, due, payee_game
from toy import Lies

from vgame.chain.records import Level, Phase, Status
from vgame.commit.merkle import Kind as Tree_
from vgame.commit.merkle import Tree
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView


class Other(Auditor):
    """It plays like an honest auditor, and has committed to a root that is not its own."""

    def __init__(self, *args: Any, tree: Tree) -> None:
        super().__init__(*args)
        self.tree = tree

    def commitment(self, root: bytes) -> bytes:
        return super().commitment(self.tree.root)

    def knowledge(self, claimed: Tree, leaf: int) -> tuple[Any, ...]:
        """struct Knowledge for a checkpoint."""
        own = self.tree
        return (
            self.salt(own.root),
            own.root,
            own.node(0, leaf),
            own.path(0, leaf),
            claimed.node(0, leaf),
            claimed.path(0, leaf),
        )


@refuses("WrongPhase", "TooLate", "TooEarly", "AlreadyPaid", "DisputeClosed", "BadProof", "NotEligible", "PathLength")
def after_a_conviction(scene: Scene) -> Iterator[Refusal]:
    """Rewarded is who knew: not who was dismissed, never moved, committed to the claim itself, or differs further
    left."""
    play = scene.claimed(SETUP, LIE)
    trainer, claimed = play.trainer, play.trainer.run_tree()
    dismissed, idle, winner = play.auditor(), play.auditor(), play.auditor()
    copy = play.auditor(cls=Other, tree=claimed)
    left = play.auditor(cls=Other, tree=play.new_trainer(word_lie(3, 0, 3)[0]).run_tree())
    due(dismissed).send(dismissed.game)
    trainer.step()
    play.advance(SETUP.spec.auditor_budget + 1)
    trainer.step()
    due(idle).send(idle.game)
    play.run_until("postSegment", winner, copy, left, trainer)
    game = scene.game()
    for call in (Call("refund", (play.id, 0)), Call("payReward", (play.id,))):
        yield Refusal("WrongPhase", (Phase.CLAIMED, Phase.CONVICTED), game, call)
    play.run(trainer, winner)
    assert play.phase is Phase.CONVICTED
    show = Call("proveKnowledge", (play.id, 2, ClaimView(winner, play.job).knowledge(play.dispute(2))))
    yield Refusal("WrongPhase", (Phase.NONE, Phase.CONVICTED), game, show.but(0, NODE))
    for number, status in ((0, Status.DISMISSED), (9, Status.NONE)):
        yield Refusal("DisputeClosed", (status,), game, show.but(1, number))
    for field in (0, 1, 2, 4):  # salt, own root, own node, their node
        yield Refusal("BadProof", None, game, struct(show, field, NODE))
    for field in (3, 5):
        yield Refusal("PathLength", (1, 2), game, struct(show, field, show.args[2][field][:1]))
    yield Refusal("BadProof", None, game, show.but(1, 1))  # somebody else's commitment
    yield Refusal(
        "NotEligible",
        (),
        game,
        Call("proveKnowledge", (play.id, 1, ClaimView(idle, play.job).knowledge(play.dispute(1)))),
    )
    for number, other in ((3, copy), (4, left)):
        yield Refusal("NotEligible", (), game, Call("proveKnowledge", (play.id, number, other.knowledge(claimed, 1))))
    for number, status in ((0, Status.DISMISSED), (2, Status.WON), (9, Status.NONE)):
        yield Refusal("DisputeClosed", (status,), game, Call("refund", (play.id, number)))
    Call("refund", (play.id, 1)).send(game)
    yield Refusal("DisputeClosed", (Status.VOID,), game, Call("refund", (play.id, 1)))
    pay, until = Call("payReward", (play.id,)), play.job.since + SETUP.spec.reward_window
    yield Refusal("TooEarly", (scene.chain.now() + 1, until + 1), game, pay)
    play.advance(until - scene.chain.now())
    yield Refusal("TooLate", (until + 1, until), game, show)
    pay.send(game)
    yield Refusal("AlreadyPaid", (), game, pay)
    assert play.paid(winner) == SETUP.spec.auditor_bond + SETUP.spec.trainer_bond // 2


@refuses("NotEligible")
def knowledge_of_another_place(scene: Scene) -> Iterator[Refusal]:
    """A dispute about another segment, or another step's trace, has no share in the conviction."""
    play = scene.claimed(SETUP, Lies(shown={(2, 0, 7): 1, (8, 0, 7): 1}))
    forcers = [play.auditor(None, Forcer, step=step) for step in (2, 8)]
    play.run(play.trainer, *forcers)
    first, second = play.auditor(), play.auditor()
    for auditor, step in ((first, 2), (second, 8)):
        root = Tree(Tree_.TRACE, auditor.machine.trace(step)).root
        claimed = play.client.trace_root(play.id, step)
        arguments = (play.id, int(Level.TRACE), step, claimed, auditor.commitment(root))
        call = Call("challenge", arguments, SETUP.spec.auditor_bond)
        call.send(auditor.game)
        play.run_until("selectOperator", play.trainer, auditor).send(auditor.game)
    while play.phase is Phase.CLAIMED:
        play.trainer.step()
        call = due(first)
        if call:
            call.send(first.game)
    assert play.client.verdict(play.id).step == 2
    own, claimed = Tree(Tree_.TRACE, second.machine.trace(8)), play.trainer.trace_tree(8)
    k = (second.salt(own.root), own.root, own.node(0, 0), own.path(0, 0), claimed.node(0, 0), claimed.path(0, 0))
    yield Refusal("NotEligible", (), scene.game(), Call("proveKnowledge", (play.id, 3, k)))


@refuses("NothingToWithdraw", "FailedCall")
def withdraw(scene: Scene) -> Iterator[Refusal]:
    yield Refusal("NothingToWithdraw", (), scene.game(), Call("withdraw", (NODE[:20],)))
    payee = payee_game(scene, "REFUSE")
    payee.send("createJob", astuple(SETUP.spec), 0, SETUP.program.header, value=SETUP.spec.reward)
    scene.chain.advance(SETUP.spec.accept_window + 1)
    scene.game().send("expire", payee.job_id(SETUP.spec, payee.wallet.address, 0))
    yield Refusal("FailedCall", (), payee, Call("withdraw", (payee.wallet.address,)))
