"""A call without a visible effect, or with a fabricated estimate, does not delay any other duty."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from chains import quick_chain
from exchange import Exchange
from false_replies import invented_estimates, own_clock, show_late, show_stale
from frauds import LIE, SETUP, Setup
from scene import Scene, deployed
from test_delivery_agents import Sides
from test_races import end_pauses, last_pause
from test_watch import watch

import vgame.agents.staking
from vgame.agents.named_jobs import Limits
from vgame.attacks.adversaries import FalseAccuser
from vgame.chain import pauses
from vgame.chain.abi import called
from vgame.chain.pauses import LONGEST, PAUSE, Pauses
from vgame.chain.records import Level, Phase, Status, Turn
from vgame.commit.merkle import Kind
from vgame.dispute.player import Player
from vgame.errors import LostRace, Paused, VgameError
from vgame.job.terms import INCLUSION, KEPT_OUT

BLOCK = 12


@pytest.mark.parametrize("hidden", [False, True])
def test_one_stale_dispute_costs_no_bond(hidden: bool) -> None:
    """It is shown as before its `reveal`, which succeeds again and again without effect. `hidden`: the opened node is
    not shown either."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        trainer = play.trainer
        first, second = play.auditor(None, FalseAccuser, step_wanted=1), play.auditor(None, FalseAccuser, step_wanted=8)
        first.step()
        old = play.client.disputes(play.id)[0]
        trainer.step()
        second.step(), second.step()
        show_stale(trainer.game, 0, old)
        if hidden:
            trainer.game.opened = lambda *_: 0
        before = chain.web3.eth.get_transaction_count(trainer.address)
        with patch.object(chain, "is_development", False):
            for _ in range(60):
                for player in (trainer, second):
                    with suppress(VgameError):
                        player.step()
                play.advance(BLOCK)
                if play.phase is not Phase.CLAIMED:
                    break
        late = [s for s in play.client.disputes(play.id) if s.turn is Turn.TRAINER_EXPIRED]
        assert play.phase is not Phase.CONVICTED and not late
        assert chain.web3.eth.get_transaction_count(trainer.address) - before < 12


def test_a_false_credit_costs_no_bond() -> None:
    with quick_chain() as chain:
        play = deployed(chain).claimed(SETUP)
        trainer, accuser = play.trainer, play.auditor(None, FalseAccuser)
        accuser.step()
        trainer.reserve = lambda: chain.balance(trainer.address) + 1  # a little more than it has
        trainer.game.credits = lambda address: 10**18
        with invented_estimates(chain):
            for _ in range(40):
                with suppress(VgameError):
                    trainer.step()
                play.advance(BLOCK)
        assert not any(s.turn is Turn.TRAINER_EXPIRED for s in play.client.disputes(play.id))
        assert trainer.withdrawn == 0


def test_one_stale_job_costs_no_other_dispute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vgame.agents.staking, "auditor_shortcomings", lambda *_: [])
    with quick_chain() as chain:
        scene = deployed(chain)
        plays = [scene.claimed(SETUP, LIE) for _ in range(2)]
        service = watch(plays[0], Limits())

        def rounds(count: int) -> None:
            for _ in range(count):
                for retry in service.retry.values():
                    retry.until = 0.0
                service.round()

        rounds(3)
        plays[0].trainer.step()
        (old,) = plays[0].client.disputes(plays[0].id)
        rounds(1)
        plays[1].trainer.step()
        usual = service.game.disputes
        service.game.disputes = lambda job, *args: [old] if job == plays[0].id else usual(job, *args)
        with invented_estimates(chain):
            for _ in range(40):
                rounds(1)
                chain.advance(BLOCK)
        assert not any(s.turn is Turn.AUDITOR_EXPIRED for s in plays[1].client.disputes(plays[1].id))
        assert plays[1].dispute().status is not Status.LAPSED


def test_one_stale_request_costs_no_reward(tmp_path: Path) -> None:
    """An answered request is shown as open, and the estimate of its answer succeeds."""
    with quick_chain() as chain:
        sides = Sides(deployed(chain), tmp_path)
        sides.claim()
        Exchange(sides.play, sides.game, None, None, []).request(2, 0, 4 * chain.block().base_fee)
        stale = sides.game.requests(sides.play.id)
        assert sides.trainer.step() and not sides.game.requests(sides.play.id)[0].open
        assert sides.receive() is None and sides.play.client.exchange(sides.play.id).confirmed_at
        sides.game.requests = lambda job: stale
        with invented_estimates(chain):
            for _ in range(70):
                with suppress(VgameError):
                    sides.trainer.step()
                if sides.play.phase is not Phase.DELIVERING:
                    break
                sides.play.advance(BLOCK)
        assert sides.play.phase in (Phase.REVEALED, Phase.FINAL)


CALL = ("contract", "reveal", b"job", 3)


def own_pauses(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> Pauses:
    monkeypatch.setattr("vgame.chain.pauses.time", SimpleNamespace(monotonic=lambda: now[0]))
    return Pauses(SimpleNamespace(is_development=False))


def send(own: Pauses, call: tuple[object, ...], number: int, fails: bool = False, shown: bool = True) -> bool:
    """Sign a call; False if it has to wait. `shown`: whether the endpoint shows a receipt."""
    try:
        with own.sending(*call):
            own.check(number)
            own.begin(number)
            if shown:
                own.included()
            if fails:
                raise LostRace(call[1])
    except Paused:
        return False
    except LostRace:
        pass
    return True


def test_pauses_grow_to_a_limit_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seconds = [0.0], []
    own = own_pauses(monkeypatch, now)
    for number in range(9):
        assert send(own, CALL, number) and send(own, (*CALL[:3], 4 + number), 100 + number)
        assert not send(own, CALL, number + 1)
        seconds.append(own.known[pauses._key(*CALL[:2], CALL[2:])].end - now[0])
        now[0] += seconds[-1]
    assert seconds == [min(PAUSE * 2**n, LONGEST) for n in range(9)]
    now[0] += LONGEST + 1
    assert send(own, CALL, 9)
    now[0] += PAUSE
    assert send(own, CALL, 10)


def test_without_a_receipt_a_call_is_sent_again_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number waits, a lower one too: the first may never be reached."""
    now = [0.0]
    own = own_pauses(monkeypatch, now)
    for number in range(5):
        assert send(own, CALL, number, shown=False) and send(own, CALL, number, shown=False)
        now[0] += LONGEST
    now[0] -= 1
    assert send(own, CALL, 4, shown=False) and not send(own, CALL, 3) and not send(own, CALL, 10**6)


def test_arguments_that_an_endpoint_can_vary_make_no_new_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another root to dispute, another number or price of a request, other expired disputes."""
    own = own_pauses(monkeypatch, [0.0])
    for first, varied in (
        (("challenge", b"job", 1, 2), ("challenge", b"job", 3, 4)),
        (("request", b"job", b"offer", 0, 2, 5, 100), ("request", b"job", b"offer", 1, 2, 5, 90)),
        (("timeoutMany", b"job", [1, 2]), ("timeoutMany", b"job", [3])),
    ):
        assert send(own, ("contract", *first), 1) and not send(own, ("contract", *varied), 2)
    assert send(own, ("contract", "timeoutMany", b"other", [3]), 2) and send(own, CALL, 3)


def test_two_contracts_share_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Game and escrow both have `withdraw(account)`."""
    own = own_pauses(monkeypatch, [0.0])
    assert send(own, ("game", "withdraw", "0x1"), 1) and send(own, ("escrow", "withdraw", "0x1"), 2)


def test_a_transfer_in_place_of_a_lost_transaction_begins_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to no call (Stakes.fill)."""
    own = own_pauses(monkeypatch, [0.0])
    own.check(0)
    own.begin(0)
    assert not own.known and send(own, CALL, 1)


def long_dispute(slot: int) -> Setup:
    """Clocks as `needed_budgets` and KEPT_OUT give them for 14 moves."""
    moves = 14
    terms = {
        "slot": slot,
        "trainer_budget": 2 * moves * slot + moves * INCLUSION + KEPT_OUT,
        "auditor_budget": moves * slot + 2 * moves * INCLUSION + KEPT_OUT,
        "challenge_window": 20_000,
    }
    return replace(SETUP, steps=64, interval=8, depth=1, terms=terms)


def test_a_node_one_block_behind_costs_a_trainer_no_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each move counts as not made, in five disputes."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(long_dispute(20))
        own_clock(monkeypatch, chain)
        accusers = [play.auditor(None, FalseAccuser, step_wanted=step) for step in (3, 13, 23, 33, 43)]
        for accuser in accusers:
            accuser.step()
        show_late(play.trainer.game)
        with patch.object(chain, "is_development", False):
            for _ in range(600):
                for player in (play.trainer, *accusers):
                    with suppress(VgameError):
                        player.step()
                if play.phase is not Phase.CLAIMED or not play.job.open:
                    break
                play.advance(BLOCK - 6)
        assert play.phase is Phase.CLAIMED and not play.job.open, play.verdicts


def test_a_node_one_block_behind_costs_an_auditor_no_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four false claims; one transaction in a round, as the service sends them."""
    setup = long_dispute(60)
    with quick_chain() as chain:
        scene = deployed(chain)
        lie = replace(LIE, words={(40, 3, 4): int(setup.honest.output_words(40, 3)[4]) ^ 1})
        plays, game = [scene.claimed(setup, lie) for _ in range(4)], scene.game()
        own_clock(monkeypatch, chain)
        auditors = [type(play.auditor())(game, play.id, play.machine(None)) for play in plays]
        for auditor in auditors:
            auditor.step()
        show_late(game)
        with patch.object(chain, "is_development", False):
            for _ in range(500):
                for play in plays:
                    with suppress(VgameError):
                        play.trainer.step()
                if all(p.phase is not Phase.CLAIMED or p.dispute().status is not Status.OPEN for p in plays):
                    break
                for auditor in auditors:
                    with suppress(VgameError):
                        if auditor.step():
                            break
                chain.advance(BLOCK - 4)
        assert [play.phase for play in plays] == [Phase.CONVICTED] * 4


class Led(FalseAccuser):
    """Disputes one element of operator 0 of a step; waits before it selects the element."""

    element, goes = 0, False

    def order(self, node: Any) -> list[int]:
        first = super().order(node)[0] if node.kind in (Kind.RUN, Kind.SEGMENT) else 0
        return [first, *range(len(node.children))]

    def move(self, view: Any, number: int, d: Any) -> bool:
        if d.level is Level.TENSOR and d.height == 0:
            return self.goes and self.name("selectElement", number, d, self.element, view.leaf(d.node))
        return super().move(view, number, d)


def test_proofs_that_strangers_copy_cost_no_bond(monkeypatch: pytest.MonkeyPatch) -> None:
    """They dispute 12 elements of one leaf, and send the trainer's own `prove` before it; one more dispute waits
    meanwhile."""
    with quick_chain() as chain:
        play = deployed(chain).claimed(long_dispute(20))
        own_clock(monkeypatch, chain)
        trainer, accusers = play.trainer, list[Led]()
        for element in range(12):
            accusers.append(play.auditor(None, Led, step_wanted=3))
            accusers[-1].element = element
            accusers[-1].step()
        last = play.auditor(None, FalseAccuser, step_wanted=60)
        while any([*(player.step() for player in accusers), trainer.step()]):
            pass
        assert all(d.level is Level.TENSOR and d.height == 0 for d in play.disputes())
        copies, usual = play.scene.game().wallet, trainer.game.wallet.send

        def copied(to: Any, data: bytes, value: int = 0, gas: int | None = None) -> Any:
            chain.advance(BLOCK - 2)
            if called(play.client.contract, data)[0] == "prove":
                copies.send(to, data, value, gas)
            return usual(to, data, value, gas)

        trainer.game.wallet.send = copied
        for accuser in accusers:
            accuser.goes = True
            accuser.step()
        last.step(), last.step()
        with patch.object(chain, "is_development", False):
            for _ in range(600):
                for player in (trainer, last):
                    with suppress(VgameError):
                        player.step()
                if play.phase is not Phase.CLAIMED or not play.job.open:
                    break
                play.advance(BLOCK)
        assert play.phase is Phase.CLAIMED and play.dispute(12).status is not Status.OPEN, play.verdicts


def fail_withdrawal(player: Player) -> None:
    own = player.game.wallet.pauses
    with suppress(LostRace), own.sending(player.game.address, "withdraw", player.address):
        own.begin(-1)
        own.included()
        raise LostRace("withdraw")
    last_pause(player).end = inf


def test_a_trainer_with_a_waiting_withdrawal_does_not_end(scene: Scene) -> None:
    play = scene.claimed(SETUP)
    trainer = play.trainer
    play.pass_window()
    assert trainer.step() and play.phase is Phase.FINAL
    fail_withdrawal(trainer)
    assert not trainer.step() and not trainer.has_ended(True)
    end_pauses(trainer)
    assert trainer.step() and not play.client.credits(trainer.address)
    assert not trainer.step() and trainer.has_ended(True)


def test_an_auditor_with_a_waiting_withdrawal_does_not_end(scene: Scene, elsewhere: None, room_for_one: None) -> None:
    play = scene.claimed(SETUP, LIE)
    service = watch(play, Limits(jobs=frozenset({play.id}), any_clocks=True))

    def looks(count: int, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(count):
            if until():
                break
            service.round()
            play.trainer.step()
            play.advance(15)

    looks(60, lambda: play.phase is Phase.CONVICTED)
    auditor = service.auditors[play.id]
    fail_withdrawal(auditor)
    looks(150)
    assert play.client.credits(auditor.address) and not service.over
    end_pauses(auditor)
    looks(150)
    assert not play.client.credits(auditor.address) and service.over
