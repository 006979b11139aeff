"""The payments of a job, to the wei, from its events alone. Twin: the sums that Settlement.sol and
Turns.sol credit.

Every read checks these rules against the contract: the computed credit of each account must be the contract's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from vgame.chain.records import Event, Job

CONTRACT, BURNT = "contract", "burnt"


@dataclass(frozen=True, slots=True)
class Flow:
    """A payment of `wei` between two parties, with its reason. Credits stay in the contract until they are
    withdrawn."""

    payer: str
    payee: str
    wei: int
    why: str
    transaction: str
    dispute: int | None = None


def flows(job: Job, events: Iterable[Event]) -> list[Flow]:
    """Every payment of a job, in order."""
    auditors: dict[int, str] = {}
    found: list[Flow] = []
    for event in events:
        number = event.args.get("dispute")
        if event.name == "Challenged":
            auditors[number] = event.args["auditor"]
        for payer, payee, wei, why in _payments(job, event, auditors.get(number, CONTRACT)):
            if wei:
                found.append(Flow(payer, payee, wei, why, event.transaction, number))
    return found


def _payments(job: Job, event: Event, auditor: str) -> list[tuple[str, str, int, str]]:
    spec, args = job.spec, event.args
    match event.name:
        case "JobCreated":
            return [(job.client, CONTRACT, spec.reward, "the reward, put down when the job is ordered")]
        case "JobAccepted":
            return [(job.trainer, CONTRACT, spec.trainer_bond, "the trainer's bond")]
        case "Challenged":
            bond = (auditor, CONTRACT, spec.auditor_bond, "the bond of a dispute")
            return [bond, (auditor, CONTRACT, spec.fee, "the fee of a dispute")]
        case "Dismissed":
            halves = _halves(spec.auditor_bond, job.trainer, "of the bond of an auditor that was wrong")
            return [*halves, (CONTRACT, BURNT, spec.fee, "the fee of a dispute that was dismissed")]
        case "Convicted":
            back = (CONTRACT, job.client, spec.reward, "the reward goes back: the trainer is convicted")
            return [*_back(job, auditor, spec.fee), *_slashed(job, args), back]
        case "Refunded":
            return _back(job, auditor, args["fee"])
        case "Finalized":
            return _final(job, args["diverged"])
        case "JobExpired":
            return _expired(job)
        case _:
            return _delivery(job, event)


def _delivery(job: Job, event: Event) -> list[tuple[str, str, int, str]]:
    """Twin: Delivery.sol. ROUNDING: odd wei are burnt."""
    spec, args, quarter = job.spec, event.args, job.spec.reward // 4
    bond = (CONTRACT, job.trainer, spec.trainer_bond, "the trainer's bond goes back")
    open_ = (CONTRACT, job.client, args.get("deposits", 0), "the deposits of open requests go back")
    match event.name:
        case "Delivered":
            return [(CONTRACT, job.trainer, spec.reward, "the reward: the state was delivered"), bond]
        case "Requested" | "Raised":
            return [(job.client, CONTRACT, args["deposit"], "the deposit of a request")]
        case "Dropped":
            return [(CONTRACT, job.client, args["deposit"], "the deposit of a request whose price was not raised")]
        case "Answered":
            rest = args["deposit"] - args["pay"]
            return [
                (CONTRACT, job.trainer, args["pay"], "for the gas of an answer"),
                (CONTRACT, job.client, rest, "what is left of the deposit of a request"),
            ]
        case "Declined":
            return [
                (CONTRACT, job.client, quarter, "a quarter of the reward: the client declined"), open_,
                (CONTRACT, job.trainer, quarter, "a quarter of the reward: the client declined"), bond,
                (CONTRACT, BURNT, spec.reward - 2 * quarter, "the rest of the reward"),
            ]  # fmt: skip
        case "NotDelivered":
            return [
                (CONTRACT, job.client, spec.reward, "the reward goes back: the state was not delivered"), open_,
                (CONTRACT, args["caller"], args["paid"], "for the gas of a complaint"),
                (CONTRACT, BURNT, spec.trainer_bond - args["paid"], "the bond of a trainer that did not deliver"),
            ]  # fmt: skip
    return []


def _halves(bond: int, winner: str, what: str) -> list[tuple[str, str, int, str]]:
    """ROUNDING: the odd wei is burnt."""
    return [(CONTRACT, winner, bond // 2, f"half {what}"), (CONTRACT, BURNT, bond - bond // 2, f"half {what}")]


def _back(job: Job, auditor: str, fee: int) -> list[tuple[str, str, int, str]]:
    return [
        (CONTRACT, auditor, job.spec.auditor_bond, "the bond of a dispute goes back"),
        (CONTRACT, auditor, fee, "the fee of a dispute goes back"),
        (CONTRACT, BURNT, job.spec.fee - fee, "the fee of a dispute beside the place of the conviction"),
    ]


def _slashed(job: Job, args: dict) -> list[tuple[str, str, int, str]]:
    """Half of the trainer's bond, or less after a timeout, is paid to the guardian or the convicting auditor."""
    return [
        (CONTRACT, args["winner"], args["amount"], "from the bond of the convicted trainer"),
        (CONTRACT, BURNT, job.spec.trainer_bond - args["amount"], "the rest of the convicted trainer's bond"),
    ]


def _final(job: Job, diverged: bool) -> list[tuple[str, str, int, str]]:
    pay = job.spec.diverged_pay if diverged else job.spec.reward
    return [
        (CONTRACT, job.trainer, pay, "the reward" if not diverged else "what is paid if training does not stay finite"),
        (CONTRACT, job.trainer, job.spec.trainer_bond, "the trainer's bond goes back"),
        (CONTRACT, job.client, job.spec.reward - pay, "what is left of the reward"),
    ]


def _expired(job: Job) -> list[tuple[str, str, int, str]]:
    back = [(CONTRACT, job.client, job.spec.reward, "the reward goes back: nothing was claimed in time")]
    if int(job.trainer, 16):
        back += _halves(job.spec.trainer_bond, job.client, "of the bond of a trainer that did not claim in time")
    return back


def balances(found: Iterable[Flow]) -> Counter[str]:
    """By party, income minus payments."""
    totals: Counter[str] = Counter()
    for flow in found:
        totals[flow.payee] += flow.wei
        totals[flow.payer] -= flow.wei
    return totals


def owed(found: Iterable[Flow], withdrawn: Iterable[Event]) -> Counter[str]:
    """By account, the credit in the contract by these rules."""
    totals: Counter[str] = Counter()
    for flow in found:
        if flow.payer == CONTRACT and flow.payee != BURNT:
            totals[flow.payee] += flow.wei
    for event in withdrawn:
        totals[event.args["account"]] -= event.args["amount"]
    return totals
