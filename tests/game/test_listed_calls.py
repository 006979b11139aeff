"""Listed attacks by calls: a proof and a timeout, nodes of other trees, payees, plain ether, extreme numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest
from frauds import LIE, SETUP, SPEC, SUM, Bluffer, Forcer, Mistaken, place_of, state_lie
from revm_calls import SELECTORS, calldata
from revm_node import RICH, Reverted
from scene import NAME, PAYEE_MODES, Call, Scene, Setup, payee_game
from toy import Lies

from vgame.chain.game import Game
from vgame.chain.records import Level, Phase, Status, Turn
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.errors import ContractError, VgameError


@pytest.mark.parametrize("first", ["prove", "timeout"])
def test_a_proof_and_a_timeout(scene: Scene, first: str) -> None:
    """F7: both would convict; the second call finds the job decided."""
    play = scene.claimed(SETUP, LIE, Bluffer, silent={"prove"})
    auditor = play.auditor()
    prove = play.run_until("prove", auditor, play.trainer)
    timeout = Call("timeout", (play.id, 0))
    if first == "timeout":
        play.advance(SPEC.trainer_budget + 1)
    calls = [prove, timeout] if first == "prove" else [timeout, prove]
    calls[0].send(scene.game())
    assert play.verdicts == [("Convicted", 0, "element" if first == "prove" else "timeout")]
    with pytest.raises(ContractError, match="WrongPhase"):
        calls[1].send(scene.game())


# ---- encoding ----


def test_a_node_of_one_tree_is_not_accepted_in_another(scene: Scene) -> None:
    """M1, M4: the kind is in every hash; a reveal under another kind or height opens nothing that is contested."""
    play = scene.claimed(SETUP, LIE)
    auditor = play.auditor()
    reveal = play.run_until("reveal", auditor, play.trainer)
    for kind in (Level.SEGMENT, Level.STATE, Level.TRACE, Level.TENSOR):
        reveal.but(1, int(kind)).send(play.trainer.game)
    reveal.but(2, 4).send(play.trainer.game)  # the same node at another height
    assert play.client.turn(play.id, 0)[0] is Turn.TRAINER
    leaf = b"".join(reveal.args[3])[:64] + bytes(448)
    scene.game().send("openLeaf", play.id, leaf)
    assert play.client.turn(play.id, 0)[0] is Turn.TRAINER
    reveal.send(play.trainer.game)
    assert play.client.turn(play.id, 0)[0] is Turn.AUDITOR


# ---- settlement ----


@pytest.mark.parametrize("mode", PAYEE_MODES)
def test_a_payee_that_misbehaves_harms_only_itself(scene: Scene, mode: str) -> None:
    """T17, A12, S1: a contract as the auditor that wins: the verdict, the refunds and the reward do not depend on
    it."""
    play = scene.claimed(SETUP, LIE)
    payee = payee_game(scene, mode, bytes.fromhex(calldata("withdraw", [RICH[0]])[2:]))
    contract = Auditor(payee, play.id, SETUP.honest)
    contract.secret = lambda what: bytes(32)
    contract.withdraw = lambda: False
    play.run_to_end(play.trainer, contract)
    assert play.verdicts == [("Convicted", 0, "element")]
    owed = payee.credits(payee.wallet.address)
    assert owed == SPEC.auditor_bond + SPEC.trainer_bond // 2
    if mode in ("TAKE", "REENTER"):
        payee.send("withdraw", payee.wallet.address)
        assert (payee.credits(payee.wallet.address), scene.chain.balance(payee.wallet.address)) == (0, owed)
        succeeded = scene.chain.node.call({"to": payee.wallet.address, "data": "0x93415250"})  # succeeded()
        assert int(succeeded, 16) == 0
    else:
        with pytest.raises(ContractError, match="PaymentRefused"):
            payee.send("withdraw", payee.wallet.address)
        assert payee.credits(payee.wallet.address) == owed
        safe = scene.wallet().address  # an account that cannot be paid names another recipient
        before = scene.chain.balance(safe)
        payee.send("withdraw", safe)
        assert (payee.credits(payee.wallet.address), scene.chain.balance(safe)) == (0, before + owed)
    client = play.client
    client.send("withdraw", client.wallet.address)
    assert client.credits(client.wallet.address) == 0


def test_forced_ether_has_no_effect(scene: Scene) -> None:
    """S4: by a contract that ends with the game as its heir."""
    play = scene.claimed(SETUP, LIE)
    before = scene.chain.balance(scene.address)
    scene.ghost.forced = 12_345
    scene.chain.node.send({"from": RICH[0], "data": f"0x73{scene.address[2:]}ff", "value": 12_345})
    assert scene.chain.balance(scene.address) == before + 12_345
    auditor = play.auditor()
    play.run_to_end(play.trainer, auditor)
    assert play.paid(auditor) == SPEC.auditor_bond + SPEC.trainer_bond // 2


def test_the_contract_takes_no_plain_ether(scene: Scene) -> None:
    """S15: nor any call that the interface does not have."""
    node = scene.chain.node
    for data in ("0x", "0x00000000", "0xdeadbeef" + "00" * 64):
        with pytest.raises(Reverted):
            node.call({"from": RICH[0], "to": scene.address, "data": data, "value": 5})
    payable = {"createJob", "acceptJob", "challenge"}
    for name, selector in SELECTORS.items():
        if name not in payable:
            with pytest.raises(Reverted):
                node.call(
                    {"from": RICH[0], "to": scene.address, "data": "0x" + selector.hex() + "00" * 640, "value": 1}
                )


ENDS: dict[str, tuple[Lies | None, Callable[..., Player]]] = {"final": (None, Mistaken), "convicted": (LIE, Auditor)}


@pytest.mark.parametrize("end", ENDS)
def test_after_the_end_no_call_changes_the_job(scene: Scene, end: str) -> None:
    """S2, S3, S8, S9: every call of the game again, by both sides and by another account: refused, or without effect on
    the job."""
    lies, cls = ENDS[end]
    play = scene.claimed(SETUP, lies)
    auditor = play.auditor(None if end == "convicted" else LIE, cls)
    history: list[Call] = []
    for player in (play.trainer, auditor):
        send = player.game.send

        def record(name: str, *args: Any, value: int = 0, send: Any = send) -> Any:
            history.append(Call(name, args, value))
            return send(name, *args, value=value)

        player.game.send = record
    play.run_to_end(play.trainer, auditor)
    before = (
        play.job,
        play.disputes(),
        play.client.verdict(play.id),
        play.client.burnt(),
        scene.chain.balance(scene.address),
    )
    history += [Call(name, (play.id, 0)) for name in ("timeout", "refund")]
    history += [Call(name, (play.id,)) for name in ("finalize", "expire")]
    games: list[Game] = [play.trainer.game, auditor.game, scene.game()]
    for player in (play.trainer, auditor):
        del player.game.send
    for call in history:
        for game in games:
            with pytest.raises(VgameError):
                call.send(game)
    assert before == (
        play.job, play.disputes(), play.client.verdict(play.id), play.client.burnt(), scene.chain.balance(scene.address)
    )  # fmt: skip
    assert {d.status for d in play.disputes()} <= {Status.DISMISSED, Status.LAPSED, Status.WON}


def test_extreme_numbers(scene: Scene) -> None:
    """S12: bonds, rewards and windows at the limits of their types: no overflow bricks a job."""
    big = 2**128 - 1
    for wallet in (play_wallets := [scene.wallet() for _ in range(3)]):
        scene.chain.node.set_balance(wallet.address, 2**130)
    terms = {"reward": big, "diverged_pay": big, "trainer_bond": big, "auditor_bond": big}
    terms |= dict.fromkeys(
        ("challenge_window", "claim_window", "trainer_budget", "auditor_budget", "accept_window"), 2**32 - 1
    )
    setup = Setup(SETUP.program, steps=8, terms=terms | {"slot": 2**24 - 1})
    scene.nonce += 1
    game = scene.game(play_wallets[0])
    game.send("createJob", astuple(setup.spec), scene.nonce, NAME, setup.program.header, value=big)
    job = game.job_id(setup.spec, game.wallet.address, scene.nonce)
    trainer = Bluffer(scene.game(play_wallets[1]), job, setup.machine(LIE))
    auditor = Auditor(scene.game(play_wallets[2]), job, setup.honest)
    trainer.accept()
    trainer.claim()
    for _ in range(60):
        trainer.step()
        auditor.step()
    v = game.verdict(job)
    assert game.job(job).phase is Phase.CONVICTED and (v.level, v.step, v.operator, v.index, v.part) == place_of(
        6, SUM, 4, 1
    )
    assert game.credits(game.wallet.address) == big


def test_a_dispute_that_was_forced_has_no_share_elsewhere(scene: Scene) -> None:
    """A forcer that came first and stalls in another step is refunded, not rewarded."""
    play = scene.claimed(SETUP, state_lie(6, 1, 7)[0])
    forcer, honest = play.auditor(None, Forcer, step=1), play.auditor()
    forcer.step()
    play.run_to_end(play.trainer, honest, forcer)
    assert play.verdicts[-1] == ("Convicted", 1, "opening")
    assert play.paid(honest) == SPEC.auditor_bond + SPEC.trainer_bond // 2
    assert play.paid(forcer) in (0, SPEC.auditor_bond)
