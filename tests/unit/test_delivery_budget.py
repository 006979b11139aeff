"""The client's budget for answers: every request, probe and raise keeps to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_delivery_rules import ASKED, CONFIRM, KEY, SPEC, UNTIL, at

from vgame.chain.records import Request
from vgame.delivery.rules import (
    MOST_REQUESTS,
    OWN_GAS,
    STEADY,
    Snapshot,
    bound,
    budget,
    price_of,
    prices_of,
    probing,
    raise_in_time,
    raising,
)

BASE = 50  # of `at`
LOSS = SPEC.reward * 3 // 4  # the client's loss if it calls `decline`
OWN = at(0).own  # cost of a call of the client
PLACES = [(0, c) for c in range(10)]


def answer(tensor: int, chunk: int) -> int:
    """Gas of an answer with which the budget covers 64 answers at 20 times the base fee, and the calls for them."""
    return (LOSS - 64 * OWN) // (64 * 20 * BASE)


def dear(tensor: int, chunk: int) -> int:
    """Gas of an answer with which the budget covers 10 answers at twice the base fee, or 20 at the base fee, and 20
    calls."""
    return (LOSS - 20 * OWN) // (10 * 2 * BASE)


def chunks(count: int, price: int = BASE, **fields: int) -> list[Request]:
    return [replace(ASKED, index=i, tensor=0, chunk=i, price=price, **fields) for i in range(count)]


def test_the_budget_is_the_clients_loss_without_the_answers() -> None:
    assert budget(at(UNTIL - 1)) == LOSS
    assert budget(at(UNTIL + 1)) == SPEC.reward == budget(at(UNTIL - 1, confirmed_at=UNTIL - 5))


def test_open_and_answered_requests_are_bound_and_dropped_ones_are_not() -> None:
    one, two, three = chunks(3, price=70)
    requests = [one, replace(two, answered_at=9), replace(three, answered_at=9, dropped=True)]
    assert bound(requests, answer) == 2 * 70 * answer(0, 0)


def test_the_price_is_the_largest_multiple_of_the_base_fee_that_the_budget_pays() -> None:
    s = at(UNTIL - 4_000)
    assert price_of(s, PLACES, answer) == STEADY * BASE
    assert price_of(s, PLACES, dear) == 2 * BASE  # not refused, though four times the base fee is too much
    assert price_of(s, PLACES * 2, dear) == BASE
    assert price_of(s, [*PLACES * 2, (0, 0)], dear) is None
    assert price_of(at(UNTIL - 4_000, *chunks(5, price=2 * BASE)), PLACES[5:], dear) == 2 * BASE


def test_calls_count_too() -> None:
    """The answers for small chunks cost less than the calls that request them."""

    def small(tensor: int, chunk: int) -> int:
        return OWN // (1_000 * BASE)

    s = replace(at(UNTIL - 4_000), base=BASE * (LOSS // OWN) // 20)  # 20 calls are paid for
    assert price_of(s, PLACES, small) and price_of(s, PLACES * 2, small) is None
    assert price_of(replace(s, tip=s.base), PLACES, small) is None
    paid, more = (replace(s, requests=tuple(chunks(count, answered_at=9))) for count in (25, 35))
    assert price_of(paid, PLACES, small) and price_of(more, PLACES, small) is None
    few, many = (replace(s, requests=tuple(chunks(count))) for count in (9, 15))
    assert raised(replace(few, now=UNTIL - 1_000), small) and not raised(replace(many, now=UNTIL - 1_000), small)


def test_the_gas_of_a_request_is_enough() -> None:
    gas = json.loads((Path(__file__).resolve().parents[2] / "docs" / "gas.json").read_text())
    assert gas["delivery"]["request"]["most"] <= OWN_GAS


def test_paid_answers_do_not_prevent_further_requests() -> None:
    """All requests together cost at most twice the budget."""
    paid = chunks(10, price=2 * BASE, answered_at=9)  # the whole budget
    assert price_of(at(UNTIL - 4_000, *paid), PLACES, dear) == 2 * BASE
    again = [*paid, *(replace(r, index=r.index + 10) for r in paid)]
    assert price_of(at(UNTIL - 4_000, *again), PLACES[:1], dear) is None


def test_requests_keep_to_the_limit_of_the_contract() -> None:
    asked = chunks(MOST_REQUESTS - 1, answered_at=9)
    assert price_of(at(UNTIL - 4_000, *asked), PLACES[:1], answer) == STEADY * BASE
    assert price_of(at(UNTIL - 4_000, *asked), PLACES[:2], answer) is None


@pytest.mark.parametrize("gas", [answer, dear, lambda *_: 1, lambda *_: (LOSS - OWN) // BASE, lambda *_: LOSS])
def test_probes_leave_budget_and_requests_for_the_end(gas) -> None:
    """The trainer answers every probe and serves no data."""
    asked: list[Request] = []
    while (price := probing(s := at(UNTIL - 4_000, *asked), (9, 9), gas)) is not None:
        assert price >= s.base
        asked.append(replace(ASKED, index=len(asked), price=price, answered_at=UNTIL - 4_500))
    assert len(asked) <= MOST_REQUESTS // 4 and bound(asked, gas) <= (LOSS if len(asked) == 1 else LOSS // 4)
    assert bool(asked) == (BASE * gas(9, 9) + OWN <= LOSS)
    assert not asked or price_of(s, [(0, 0)], gas) is not None


def test_no_probe_in_the_last_tenth_or_beside_an_open_request() -> None:
    assert probing(at(UNTIL - 1_001), (0, 0), answer) and probing(at(UNTIL - 1_000), (0, 0), answer) is None
    assert probing(at(UNTIL - 4_000, ASKED), (0, 0), answer) is None


def raised(s: Snapshot, gas) -> dict[int, int]:
    return prices_of(s, raising(s), gas)


def test_a_raise_leaves_budget_for_other_outgrown_requests() -> None:
    """For those that are not due yet."""
    cheap = chunks(20, price=BASE - 1)
    since = UNTIL - 4_000 - KEY // 2
    due = [replace(r, deferred_at=since - 1, since=since - 1) for r in cheap[:2]]
    assert raised(at(UNTIL - 4_000, *due), dear) == dict.fromkeys(range(2), STEADY * BASE)
    ten = raised(at(UNTIL - 4_000, *due, *cheap[2:10]), dear)
    assert set(ten) == {0, 1} and BASE < ten[0] == ten[1] <= 2 * BASE


def test_before_the_end_all_outgrown_requests_are_raised_or_none() -> None:
    cheap = chunks(10, price=BASE - 1)
    assert raised(at(UNTIL - 1_000, *cheap), answer) == dict.fromkeys(range(10), STEADY * BASE)
    assert raised(at(UNTIL - 1_000, *cheap), dear) == dict.fromkeys(range(10), 2 * BASE)
    many = chunks(21, price=BASE - 1)
    assert raised(at(UNTIL - 1_000, *many), dear) == {}
    after = raised(at(UNTIL + 3 * KEY, *many), dear)  # an open request withholds the key; the budget is the reward
    assert len(after) == 21 and set(after.values()) == {
        (SPEC.reward - 42 * OWN) // (21 * dear(0, 0))
    }  # 21 calls were made, 21 will be
    fewer = raised(at(UNTIL + 3 * KEY, *chunks(40, price=1)), dear)
    assert 20 < len(fewer) < 40 and list(fewer) == list(range(len(fewer)))


@pytest.mark.parametrize("gas", [answer, dear])
@pytest.mark.parametrize("now", [UNTIL - 1_000, UNTIL + 3 * KEY])
@pytest.mark.parametrize("count", [1, 10, 20, 27, 60])
def test_raises_keep_to_the_budget(gas, now: int, count: int) -> None:
    s = at(now, *chunks(count, price=BASE - 1))
    found = raised(s, gas)
    requests = [replace(r, price=found.get(r.index, r.price)) for r in s.requests]
    assert bound(requests, gas) <= max(budget(s), bound(s.requests, gas))


def test_a_deferral_is_ended_before_the_base_fee_outgrows_the_price_again() -> None:
    """Otherwise, a key window after its first deferral, two blocks would suffice to defer it a second and a third
    time."""
    deferred = replace(ASKED, price=BASE, deferred_at=UNTIL - 5_000, since=UNTIL - 5_000)
    half = deferred.deferred_at + KEY // 2
    assert not raising(at(half, deferred))
    (duty,) = raising(at(half + 1, deferred))
    assert duty.by == deferred.deferred_at + KEY
    assert prices_of(at(half + 1, deferred), [duty], lambda *_: LOSS) == {0: BASE + 1}  # one wei more needs no budget
    late = deferred.since + KEY
    assert raising(at(late, deferred)) and not raising(at(late + 1, deferred))  # now `refused` is possible
    assert raising(at(late + 1, replace(deferred, since=late)))


AFTER = UNTIL + 4_000  # no request can be added


@pytest.mark.parametrize("gas", [answer, dear])
@pytest.mark.parametrize("beside", [0, 1, 9])
def test_a_few_deferrals_raise_a_price_to_the_budget(gas, beside: int) -> None:
    """The base fee exceeds the price only in single blocks, between two looks."""
    since = AFTER - KEY // 2 - 1
    deferred, others = (
        replace(ASKED, price=BASE, since=since, deferred_at=since),
        chunks(10, price=BASE)[1 : beside + 1],
    )
    level = SPEC.reward // (len(others) + 1) // gas(0, 0)
    raises, most = 0, 0
    while (price := raised(at(AFTER, deferred, *others), gas)[0]) > deferred.price + 1:
        deferred, raises, most = replace(deferred, price=price), raises + 1, price
    assert raises <= 8 and 0.7 * level < most <= level


def test_one_wei_ends_a_deferral_while_other_requests_may_need_the_budget() -> None:
    """Requests that the base fee has outgrown, and future requests."""
    for now, price in ((AFTER, STEADY * BASE), (UNTIL - 4_000, BASE + 1)):
        since = now - KEY // 2 - 1
        two = [replace(r, since=since, deferred_at=since) for r in chunks(2, price=BASE)]
        assert raised(at(now, *two), dear) == dict.fromkeys(range(2), price)
        assert raised(at(now, two[0], replace(two[1], price=BASE - 1)), dear)[0] == BASE + 1


def test_raises_leave_time_to_decline() -> None:
    s = at(UNTIL - 1_000)
    assert raise_in_time(s, UNTIL - 501) and not raise_in_time(s, UNTIL - 500) and not raise_in_time(s, UNTIL)
    assert raise_in_time(s, UNTIL + 1) and raise_in_time(at(UNTIL - 9, confirmed_at=UNTIL - 20), UNTIL - 9)
    s.job.spec = type(SPEC)(**vars(SPEC) | {"confirm_window": 100 * CONFIRM})
    assert raise_in_time(s, UNTIL - 601) and not raise_in_time(s, UNTIL - 600)
