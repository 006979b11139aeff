"""The client's payments for answers, and its reaction to data that an endpoint hides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from exchange import DELIVERY
from test_delivery_agents import MARGIN, Partial, chunk_1_of_tensor_1
from test_delivery_client import GWEI, SPEC, poor

from vgame.chain import final
from vgame.chain.records import Phase
from vgame.delivery import calls, looks
from vgame.errors import ChainError, ContractError, NotYet, VgameError

assert poor  # a fixture


def set_base(sides: Partial, monkeypatch: pytest.MonkeyPatch, price: int) -> None:
    monkeypatch.setattr(sides.play.scene.chain, "fees", lambda **_: (price, GWEI), raising=False)


def bound(sides: Partial) -> int:
    game, job = sides.play.client, sides.play.id
    return sum(r.price * game.answer_gas(job, r.elements, r.chunk) for r in game.requests(job) if not r.dropped)


def is_refused(sides: Partial) -> None:
    with pytest.raises(VgameError):
        sides.receive()


# ---- one budget ----


@pytest.mark.parametrize("answers", [0.01, 1, 3, 6])
def test_answers_to_probes_keep_to_the_budget(poor: Partial, monkeypatch: pytest.MonkeyPatch, answers: float) -> None:
    """The trainer answers each probe, and serves nothing. `answers`: the number that the budget covers at the base
    fee."""
    gas = poor.game.answer_gas(poor.play.id, DELIVERY.program.states[1].elements, 0)
    set_base(poor, monkeypatch, int(SPEC.reward * 3 // 4 / (answers * 1.03 * gas)))
    monkeypatch.setattr("vgame.delivery.buyer.fetch", unknown(poor))
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 10**22)
    poor.wait(SPEC.confirm_window // 2)
    for left in range(SPEC.confirm_window // 2, 0, -30):
        poor.wait(left)
        if poor.play.phase is Phase.DELIVERING:
            is_refused(poor)
            poor.trainer.step()
    assert poor.play.phase is Phase.DECLINED
    assert bound(poor) <= SPEC.reward * 3 // 4 and bool(poor.requested_chunks()) == (answers >= 1)


def unknown(sides: Partial) -> Any:
    """No chunk is stored, and the list of missing chunks may be incomplete."""
    from vgame.delivery.fetch import Missing

    chunks = [(t, c) for t, count in enumerate(sides.buyer.shape.chunks) for c in range(count)]

    def fetch(*_: Any) -> None:
        raise Missing("refused", chunks, all_known=False)

    return fetch


def test_a_small_sale_is_possible_at_less_than_four_times_the_base_fee(
    poor: Partial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to all chunks cost four fifths of the loss by `decline`, and no base fee makes them more expensive."""
    poor.refuse = lambda *_: True
    poor.play.scene.chain.node.evm.set_balance(poor.play.client.wallet.address, 10**22)
    states = DELIVERY.program.states
    gas = sum(
        poor.game.answer_gas(poor.play.id, states[t].elements, c) for t in range(3) for c in range(1 + 2 * (t == 1))
    )
    base = SPEC.reward * 3 // 5 // gas
    set_base(poor, monkeypatch, base)
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    assert len(poor.requested_chunks()) == sum(poor.buyer.shape.chunks)
    assert base < poor.play.client.requests(poor.play.id)[0].price < 2 * base
    set_base(poor, monkeypatch, 3 * base)
    poor.wait(MARGIN - 1)
    is_refused(poor)
    assert poor.play.phase is Phase.DELIVERING  # the base fee may fall
    poor.wait(MARGIN // 2 - 1)
    is_refused(poor)
    assert bound(poor) <= SPEC.reward * 3 // 4 and poor.play.phase is Phase.DECLINED
    assert not poor.game.events("Raised", poor.play.id)


def test_no_price_is_raised_before_all_can_be_paid(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    poor.refuse = lambda *_: True
    node, address = poor.play.scene.chain.node, poor.play.client.wallet.address
    node.evm.set_balance(address, 10**22)
    set_base(poor, monkeypatch, GWEI)
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    gas = poor.game.answer_gas(poor.play.id, DELIVERY.program.states[1].elements, 0)
    set_base(poor, monkeypatch, 10 * GWEI)
    node.evm.set_balance(address, 2 * gas * 36 * GWEI + 10**16)  # for two
    poor.wait(MARGIN - 1)
    is_refused(poor)
    assert poor.play.phase is Phase.DECLINED and not poor.game.events("Raised", poor.play.id)


def test_a_raise_that_the_contract_refuses_is_not_made(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the endpoint claims that there is no such request."""
    game, move = poor.play.client, poor.play.client.move

    def refused(name: str, *args: object, value: int = 0) -> object:
        if name == "raise":
            raise ContractError("NotRequested", ())
        return move(name, *args, value=value)

    poor.refuse = chunk_1_of_tensor_1
    game.chain.node.evm.set_balance(game.wallet.address, 10**22)
    set_base(poor, monkeypatch, 1000)
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    set_base(poor, monkeypatch, 10_000)
    monkeypatch.setattr(game, "move", refused)
    for left, phase in ((MARGIN - 1, Phase.DELIVERING), (MARGIN // 2 - 1, Phase.DECLINED)):
        poor.wait(left)
        is_refused(poor)
        assert poor.play.phase is phase


# ---- answers that are not shown ----


def fails(*_: Any) -> None:
    raise ChainError("no answer (HTTPError); is the node running?")


@pytest.mark.parametrize("shown", [lambda *_: [], fails], ids=["nothing", "an error"])
def test_an_answer_that_is_not_shown_is_neither_paid_again_nor_declined_for(poor: Partial, shown: Any) -> None:
    """The answer is on chain. The client searches for its log until it appears, and requests other chunks meanwhile."""
    contents = poor.play.client.contents
    usual = contents.logs, contents.receipts
    poor.refuse = chunk_1_of_tensor_1
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    assert poor.trainer.step()
    contents.logs = contents.receipts = shown
    poor.wait(SPEC.confirm_window // 5)
    poor.is_refused()
    poor.refuse = lambda name, first, size: name != "chunks"
    poor.buyer.folder = poor.folder / "empty"
    is_refused(poor)
    asked = poor.requested_chunks()
    assert len(asked) == len(set(asked)) == sum(poor.buyer.shape.chunks)
    while poor.trainer.step():
        pass
    for left in (MARGIN - 1, MARGIN // 2 - 1, 5):
        poor.wait(left)
        is_refused(poor)
    assert poor.play.phase is Phase.DELIVERING and poor.requested_chunks() == asked
    assert not poor.game.exchange(poor.play.id).confirmed_at
    contents.logs, contents.receipts = usual
    poor.until(Phase.REVEALED)
    assert poor.receive() is not None


def test_an_answer_of_another_size_is_not_taken(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint shows it once."""
    usual, shown = poor.play.client.content, []

    def shortened(name: str, job: bytes, at: int, accept: Any, key: Any = None) -> Any:
        def look(event: Any) -> Any:
            if name != "Answered" or shown:
                return accept(event)
            shown.append(event)
            return accept(replace(event, args=event.args | {"leaves": event.args["leaves"][512:]}))

        return usual(name, job, at, look, key=key)

    poor.refuse = chunk_1_of_tensor_1
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    assert poor.trainer.step()
    monkeypatch.setattr(poor.play.client, "content", shortened)
    assert poor.receive() is None and shown
    assert poor.game.exchange(poor.play.id).confirmed_at and poor.requested_chunks() == [(1, 1)]


def test_the_search_for_answers_ends_with_the_time_of_a_look(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint takes a minute for each log, and shows none."""
    game, chain, looked = poor.play.client, poor.play.scene.chain, []
    poor.refuse = lambda *_: True
    poor.wait(SPEC.confirm_window // 4)
    is_refused(poor)
    while poor.trainer.step():
        pass

    def slow(name: str, *args: Any, key: Any = None) -> Any:
        if name != "Answered":
            return usual(name, *args, key=key)
        looked.append(key)
        poor.play.advance(60)
        raise NotYet("no log")

    usual = game.content
    monkeypatch.setattr(game, "content", slow)
    poor.wait(MARGIN)
    begin = chain.now()
    is_refused(poor)
    assert len(poor.requested_chunks()) > len(looked) > 0 and chain.now() - begin <= MARGIN // 2 + 75


def test_a_wrong_answer_is_read_again(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    game, content = poor.play.client, poor.play.client.content
    wrong: list[Any] = []

    def altered(name: str, *args: Any, key: Any = None) -> Any:
        if name == "Answered" and key in (wrong or [key]):
            leaves, hashes = content(name, *args, key=(key, "altered"))
            wrong[:] = [key]
            return bytes(len(leaves)), hashes
        return content(name, *args, key=key)

    poor.refuse = chunk_1_of_tensor_1
    poor.wait(SPEC.confirm_window // 4)
    poor.is_refused()
    assert poor.trainer.step()
    monkeypatch.setattr(game, "content", altered)
    poor.is_refused()
    assert wrong and poor.receive() is None
    assert poor.game.exchange(poor.play.id).confirmed_at and poor.requested_chunks() == [(1, 1)]


def test_a_temporary_error_is_no_reason_to_decline(poor: Partial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offer cannot be read. If that lasts, nothing can be fetched, and the client declines."""
    chain = poor.play.scene.chain
    monkeypatch.setattr(chain, "is_development", False)
    for module in (calls, final, looks):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=chain.now))
    poor.receive = poor.buyer.ready
    poor.refuse = chunk_1_of_tensor_1
    poor.wait(MARGIN - 1)
    is_refused(poor)
    poor.play.advance(MARGIN // 8 + 1)
    is_refused(poor)
    offer = poor.buyer.offer
    poor.wait(MARGIN // 2 - 1)
    for broken, phase in ((True, Phase.DELIVERING), (False, Phase.DELIVERING), (True, Phase.DELIVERING)):
        poor.buyer.offer = fails if broken else offer
        is_refused(poor)
        assert poor.play.phase is phase
    poor.play.advance(MARGIN // 8 + 1)
    is_refused(poor)
    assert poor.play.phase is Phase.DECLINED
