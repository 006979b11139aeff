"""Trainers and payers of a bonus with one rule broken: the simulator has to find every one of them."""

from __future__ import annotations

from itertools import count
from typing import Any

import claimants
import evaluations
from accuracy import SimEscrow, work

import vgame.agents.bonus as agents
import vgame.agents.bonus_conditions as conditions
from vgame.agents.bonus import _settled, check
from vgame.agents.bonus_conditions import needed_window
from vgame.chain.connection import FINALITY
from vgame.chain.escrow import BonusTerms, EscrowContract, Promised
from vgame.chain.records import JobSpec
from vgame.errors import ContractError

Patches = tuple[tuple[Any, str, Any], ...]
NONCES = count(1)


def nothing(*_: Any, **__: Any) -> None:
    return None


def none_differ(*_: Any) -> list[str]:
    return []


def any_job(escrow: Any, promised: Promised, training: Any, task: Any, job: bytes | None = None) -> str:
    """The check accepts a bonus for another job of the same order."""
    return check(escrow, promised, training, task)


def never_closes(escrow: EscrowContract, identity: bytes, bonus: Any) -> str:
    """A payer begins the window, and never takes the bonus back."""
    return "started" if bonus.since and not bonus.settled_at else _settled(escrow, identity, bonus)


def others_begin(escrow: EscrowContract, identity: bytes, bonus: Any) -> str:
    """The window's beginning is left to other accounts."""
    return "waiting" if not bonus.since and not bonus.settled_at else _settled(escrow, identity, bonus)


def keeps(escrow: EscrowContract, identity: bytes) -> str:
    """The credits are never withdrawn."""
    return _settled(escrow, identity, escrow.held(identity))


def opens_again(self: Any, terms: BonusTerms, order: JobSpec, layout: list[bytes], amount: int, nonce: int) -> bytes:
    """Each command opens a bonus of its own."""
    return EscrowContract.open(self, terms, order, layout, amount, next(NONCES))


def payer_named(escrow: EscrowContract, promised: Promised) -> str:
    """The evaluation names the payer."""
    return promised.payer


def paid_by_time(escrow: EscrowContract, identity: bytes, job: bytes, run: Any, evaluation: Any) -> int:
    """The trainer never calls `pay`."""
    raise ContractError("NoBonus", ())


def without_early(escrow: SimEscrow, identity: bytes) -> Any:
    """The auditor prepares the evaluation as a trainer does, after the window has begun."""
    return escrow.evaluation(identity, work().run, work().task, validate=0)


def without_waits(evaluation: Any, amount: int) -> int:
    """A role ends as soon as its job does."""
    return needed_window(evaluation, amount) - 3 * FINALITY


BROKEN: dict[str, Patches] = {
    "checks nothing": ((agents, "check_payable", nothing),),
    "does not check the mark": ((conditions, "check_mark", nothing),),
    "does not check the window": ((conditions, "_check_window", nothing),),
    "does not check the interval": ((conditions, "_check_interval", nothing),),
    "does not compare the measure": ((agents, "_differences", none_differ),),
    "does not compare the job": ((agents, "check", any_job),),
    "never closes": ((agents, "_settled", never_closes),),
    "lets others begin": ((agents, "_settled", others_begin),),
    "withdraws nothing": ((agents, "close", keeps),),
    "gives back what is earned": ((agents, "_is_for_caller", lambda *_: False),),
    "ignores that a training has failed": ((agents, "FAILED", frozenset()),),
    "evaluates before the window begins": ((agents, "_check_begun", nothing),),
    "its auditor prepares late": ((evaluations, "_prepared", without_early),),
    "leaves its auditor no time": ((conditions, "_check_disputes", nothing),),
    "counts no wait for finality": tuple(
        (module, "needed_window", without_waits) for module in (agents, claimants, conditions)
    ),
    "names the payer": ((agents, "trainer_of", payer_named),),
    "never pays": ((agents, "pay", paid_by_time),),
    "promises again": ((SimEscrow, "open", opens_again), (agents, "_check_new", nothing)),
}
