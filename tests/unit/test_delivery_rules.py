"""The rules of a delivery, without a chain: the due call, its time, its reason."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from vgame.chain.records import Exchange, Phase, Request
from vgame.delivery.rules import (
    STEADY,
    WORST_INCLUSION,
    Snapshot,
    confirming,
    declining,
    look_end,
    overdue,
    raising,
    requesting,
    selling,
    undecided,
    unrequested,
)

CONFIRM, KEY, COMPLAINT = 10_000, 4_000, 3_000
SPEC = SimpleNamespace(confirm_window=CONFIRM, key_window=KEY, complaint_window=COMPLAINT, reward=10**15)
OFFER = b"o" * 32
UNTIL = 100_000
ASKED = Request(0, 1, 2, 300, 50, UNTIL - 9_000, 0, 0, False)


def at(now: int, *requests: Request, phase: Phase = Phase.DELIVERING, final: int = 0, **exchange: Any) -> Snapshot:
    stands = Exchange(OFFER, UNTIL, 0, 0, 0, sum(r.open for r in requests), 0)
    job = SimpleNamespace(phase=phase, spec=SPEC, since=UNTIL - CONFIRM)
    return Snapshot(7, now, 50, job, replace(stands, **exchange), requests, final)


def due(s: Snapshot) -> list[str]:
    return [d.call for d in selling(s) if d.due]


@pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.DELIVERING, Phase.REVEALED)])
def test_no_call_is_due_outside_a_delivery(phase: Phase) -> None:
    s = at(UNTIL, ASKED, phase=phase)
    assert not selling(s) and overdue(s) is None and not undecided(s)


def test_the_key_is_revealed_once_the_confirmation_is_final_or_its_deadline_is_near() -> None:
    word, late = UNTIL - 5_000, UNTIL - 5_000 + KEY - WORST_INCLUSION
    for now, final, sent in [
        (word, 0, []),
        (late - 1, word - 1, []),
        (late - 1, word, ["revealKey"]),
        (late, 0, ["revealKey"]),
    ]:
        assert due(at(now, confirmed_at=word, final=final)) == sent
    assert not due(at(UNTIL, final=UNTIL)) and due(at(UNTIL + 1, final=UNTIL + 1)) == ["revealKey"]  # a silent buyer
    assert not due(at(UNTIL + 1, final=UNTIL))
    (duty,) = selling(at(word, confirmed_at=word))
    assert (duty.by, duty.begun, duty.why) == (word + KEY, word, "the confirmation is not final yet")


def test_no_key_while_a_request_is_open() -> None:
    *_, key = selling(at(UNTIL + KEY, ASKED))
    assert not key.due and key.why == "1 requests are open"


def test_requests_are_answered_in_the_order_of_their_time() -> None:
    later = replace(ASKED, index=1, since=ASKED.since + 5)
    s = at(UNTIL - 8_000, later, ASKED, replace(ASKED, index=2, answered_at=9))
    assert [d.request.index for d in selling(s) if d.request] == [0, 1] and due(s) == ["answer", "answer"]


@pytest.mark.parametrize(
    ("passed", "deferred", "sent"),
    [
        (KEY // 2, 0, []),
        (KEY // 2 + 1, 0, ["defer"]),
        (1, KEY, []),
        (1, KEY + 1, ["defer"]),
        (KEY - 1, 0, ["defer"]),
        (KEY, 0, ["answer"]),
        (KEY, KEY + 1, ["answer"]),
    ],
)
def test_a_request_below_the_base_fee_is_deferred_dropped_or_late(passed: int, deferred: int, sent: list[str]) -> None:
    now = ASKED.since + passed
    cheap = replace(ASKED, price=49, deferred_at=now - deferred if deferred else 0)
    assert due(at(now, cheap)) == sent


def test_a_late_trainer_is_reported() -> None:
    end = ASKED.since + KEY
    assert overdue(at(end, ASKED)) is None and overdue(at(end + 1, ASKED)).call == "refused"
    assert overdue(at(end + 1, replace(ASKED, price=49))) is None  # not while the base fee is above the price
    assert overdue(at(UNTIL + KEY)) is None and overdue(at(UNTIL + KEY + 1)).call == "closeDelivery"
    assert overdue(at(UNTIL, answered_at=UNTIL - 1)) is None


def test_prices_are_raised_before_the_request_may_be_dropped() -> None:
    cheap = replace(ASKED, price=49, deferred_at=UNTIL - 5_000)
    assert not raising(at(cheap.deferred_at + KEY // 2, cheap))
    (duty,) = raising(at(cheap.deferred_at + KEY // 2 + 1, cheap))
    assert (duty.call, duty.by) == ("raise", cheap.deferred_at + KEY)
    assert not raising(at(UNTIL, ASKED))


def test_the_price_of_a_request_that_cannot_be_reported_as_late_is_raised() -> None:
    """Above the price there is no `refused`, so a trainer that neither answers nor defers could delay without end."""
    cheap = replace(ASKED, price=49, since=UNTIL - 9_500)
    end = cheap.since + 2 * KEY
    assert overdue(at(end + 1, cheap)) is None and not raising(at(end, cheap))
    (duty,) = raising(at(end + 1, cheap))
    assert (duty.call, duty.by, duty.begun) == ("raise", None, cheap.since)
    assert not raising(at(end + 1, ASKED)) and not raising(at(end + 1, replace(cheap, answered_at=end)))
    raised = replace(cheap, price=STEADY * 50, since=end + 1)
    assert overdue(at(end + KEY + 2, raised)).call == "refused"  # if it stays silent


def test_all_prices_below_the_base_fee_are_raised_in_the_last_tenth() -> None:
    """A chunk that is dropped after the window cannot be requested again."""
    cheap = replace(ASKED, price=49, since=UNTIL - 2_000)
    assert not raising(at(UNTIL - 1_001, cheap)) and not raising(at(UNTIL + 1, cheap))
    assert [d.request for d in raising(at(UNTIL - 1_000, cheap, ASKED))] == [cheap]


def test_a_look_ends_before_the_next_decision() -> None:
    """The time of `requests` first, then of `decline`, then of the end."""
    s = at(UNTIL - CONFIRM)
    assert (s.margin, s.pressing) == (1_000, 6_000)
    assert look_end(s) == UNTIL - 5_999
    assert look_end(at(UNTIL - 5_999)) == UNTIL - 5_499 and look_end(at(UNTIL - 1_400)) == UNTIL - 1_000
    assert look_end(at(UNTIL - 1_001)) == UNTIL - 1_000 and look_end(at(UNTIL - 1_000)) == UNTIL - 500
    assert look_end(at(UNTIL - 500)) == UNTIL - 250 and look_end(at(UNTIL + 9)) == UNTIL + 509
    asked = replace(ASKED, since=UNTIL - CONFIRM)  # the price of an open request is checked in each half key window
    assert look_end(at(UNTIL - CONFIRM, asked)) == UNTIL - CONFIRM + KEY // 20 * 20 // 8
    longer = SimpleNamespace(**vars(SPEC) | {"confirm_window": 50 * CONFIRM})
    for now in (UNTIL - 300_000, UNTIL - 20_000, UNTIL + 9):
        s = at(now, asked)
        s.job.spec = longer
        assert now < look_end(s) <= now + KEY // 8


def test_requests_leave_half_of_the_last_tenth() -> None:
    s = at(UNTIL - 1_000)
    assert requesting(s, UNTIL - 501) and not requesting(s, UNTIL - 500)


def test_requests_and_a_decline() -> None:
    s = at(UNTIL - 1_000, ASKED, replace(ASKED, index=1, chunk=3, answered_at=4))
    assert unrequested(s, [(1, 2), (1, 3), (1, 4)]) == [(1, 4)]
    dropped = replace(ASKED, answered_at=5, dropped=True)
    assert unrequested(at(UNTIL - 1_000, dropped), [(1, 2)]) == [(1, 2)]
    assert declining(s, True).due and not declining(s, False).due and not declining(at(UNTIL - 1_001), True).due
    assert not declining(at(UNTIL), True).due and not declining(at(UNTIL - 9, confirmed_at=5), True).due
    assert not declining(at(UNTIL - 25), True, waits=True).due and declining(at(UNTIL - 24), True, waits=True).due


def test_only_received_data_are_confirmed() -> None:
    s = at(UNTIL - 500)
    assert confirming(s, OFFER).due and not confirming(s, bytes(32)).due and not confirming(s, None).due
    assert not confirming(at(UNTIL - 500, ASKED), OFFER).due and not confirming(at(UNTIL), OFFER).due
    assert not confirming(at(UNTIL - 500, confirmed_at=3), OFFER).due


def test_the_reward_is_taken_after_the_complaint_window() -> None:
    s = at(UNTIL + COMPLAINT, phase=Phase.REVEALED, key_at=UNTIL)
    assert not due(s) and due(replace(s, now=s.now + 1)) == ["closeDelivery"]
