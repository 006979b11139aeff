"""Conditions for an auditor's stake: docs/players.md, "Before a stake"."""

from __future__ import annotations

from collections.abc import Mapping

from vgame.agents.local_run import LocalRun
from vgame.agents.named_jobs import Limits
from vgame.chain.final import MOMENT, Lasting, one
from vgame.chain.game import Game
from vgame.chain.records import JobSpec
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView
from vgame.dispute.player import DISPUTE_GAS, gas_money
from vgame.errors import Abstain, NotYet
from vgame.job.bundle import Bundle
from vgame.job.terms import Pace, auditor_shortcomings


class Staking:
    """Terms, limits, clocks and money of an account that may dispute several claims. `auditors`: by job."""

    dispute_gas = DISPUTE_GAS  # upper bound of the gas of one dispute

    def __init__(self, game: Game, computation: LocalRun, limits: Limits, auditors: Mapping[bytes, Auditor]) -> None:
        self.game, self.computation, self.limits, self.auditors = game, computation, limits, auditors
        self.lasting = Lasting(game.chain)
        self._pace: Pace | None = None

    def allows(self, view: ClaimView) -> bool:
        """May a claim be disputed now? Abstain with the reason if not. INVARIANT: fees, balances and the own disputes
        come from an untrusted endpoint; a stake depends on values that each look has shown for MOMENT."""
        why = self._why_not(view)
        held = self.lasting.held(view.claim, not why, one)
        if why:
            raise Abstain(f"job {view.id.hex()[:16]} is not disputed: {why}")
        return held >= MOMENT

    @property
    def at_risk(self) -> list[bytes]:
        """Jobs with an own dispute that is open or may be open."""
        return [job for job, auditor in self.auditors.items() if auditor.at_risk]

    def kept(self, disputes: int = 1) -> int:
        """Wei kept for the gas of the open disputes; at least for `disputes` of them."""
        return gas_money(self.game.chain, max(disputes, len(self.at_risk)) * self.dispute_gas)

    def measure(self, again: bool = False) -> None:
        """Measure this device and rehearse a dispute's work, once; `again`: only if no earlier process did. INVARIANT:
        never while a clock of an own dispute may run."""
        if again:
            self._pace = self._pace or self.computation.known_pace
        if self._pace is None:
            self.computation.rehearse()
            self._pace = self.computation.pace

    @property
    def is_measured(self) -> bool:
        return self._pace is not None

    @property
    def pace(self) -> Pace:
        """The pace of this device. INVARIANT: known before a stake; measured by this process or an earlier one."""
        self._pace = self._pace or self.computation.known_pace
        if self._pace is None:
            raise NotYet(
                "this device is not measured yet: no stake is sent before; it is measured while no own dispute can be "
                "open"
            )
        return self._pace

    def _why_not(self, view: ClaimView) -> str:
        """The reason against a dispute: the order, the own limits or the money; empty if it is allowed."""
        spec, others = view.job.spec, sum(job != view.id for job in self.at_risk)
        if why := why_not_staked(self.computation.bundle, spec, self.pace, self.limits, others):
            return why
        kept, account = self.kept(others + 1), view.auditor.address
        if (owned := self.game.chain.balance(account)) >= spec.stake + kept:
            return ""
        return (
            f"{account} has {owned} wei; {spec.stake} are needed for bond and fee, and {kept} for the gas of "
            f"{others + 1} open disputes; send it some ether"
        )


def why_not_staked(bundle: Bundle, spec: JobSpec, pace: Pace, limits: Limits, others: int = 0) -> str:
    """The reason why an auditor with that pace must not dispute a claim of an order: an honest auditor could lose its
    bond, or the stake is above its limit. Empty if it may. `others`: open disputes of other claims."""
    most = spec.trainer_bond if limits.bond is None else limits.bond
    if spec.stake > most:
        return f"the auditor's bond and the fee are {spec.stake} wei, more than {most} (--max-bond allows more)"
    short = auditor_shortcomings(bundle, pace, others)
    if limits.any_clocks or not short:
        return ""
    beside = f"together with {others} open disputes of other claims: " if others else ""
    return f"{beside}{'; '.join(short)} (--any-terms disputes in spite of it)"
