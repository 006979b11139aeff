"""The auditor: re-execute, compare with the claim, dispute the first difference, play to the end.

An auditor only selects nodes that differ from its own computation. If its own data are not sufficient, it abstains and
reports the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Protocol

from vgame.chain.final import MOMENT, Lasting
from vgame.chain.records import Dispute, Job, Level, Phase, Standing, Status, Turn
from vgame.chain.turns import has_computed_long
from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.commit.trees import subtree_path
from vgame.dispute.claim_view import ClaimView, Entry, Node, Viewer
from vgame.dispute.player import BATCH, gas_money, lapsed, one_of
from vgame.dispute.stakes import Stakes
from vgame.errors import Abstain, ContractError, NotYet

EMPTY = bytes(32)
DUE = (Turn.AUDITOR, Turn.TRAINER_EXPIRED)  # turns that need an auditor's transaction
TIMEOUT_GAS = 50_000  # gas to end one dispute by timeout, also for a conviction by timeout


class Staking(Protocol):
    """Conditions for a stake (vgame/agents/staking.py)."""

    def allows(self, view: ClaimView) -> bool: ...

    def kept(self, disputes: int = 1) -> int: ...


class Auditor(Viewer):
    """The side that checks. `stakes`: the earlier stakes of this account. `staking`: the conditions for a stake.

    INVARIANT: a round decides on one block's state. Each call names the data that it relies on.
    """

    side = Turn.AUDITOR
    windows = {Phase.CLAIMED: [("challenge_window", "the time to challenge")]}  # noqa: RUF012
    stakes: Stakes | None = None
    staking: Staking | None = None
    compared: bytes | None = None  # run root of the claim that `machine` is compared with
    hidden = 0.0  # seconds for which each look has not shown a stake that was sent
    at_risk = False  # in the last round, an own dispute was open or could still be included
    _found: tuple[tuple[object, ...], Entry | None] | None = None  # a claim, and its first difference

    # ---- rounds ----

    def step(self) -> bool:
        """One round of duties; True if anything was done."""
        self.game.chain.turn()
        with self.game.chain.pinned():
            view = self.view()
            duties = [*(move for _, move in self.moves(view)), partial(self.others, view), partial(self.open, view)]
            return one_of(duties, partial(has_computed_long, self.game.chain))

    def view(self, job: Job | None = None) -> ClaimView:
        """The claim as the chain shows it; `job`: the job if it was already read."""
        self.waiting = False
        view = ClaimView(self, self.look(job))
        self.at_risk = view.job.phase is Phase.CLAIMED and bool(self.unshown(view) or view.open_mine)
        return view

    def unshown(self, view: ClaimView) -> bool:
        """Was a stake on this claim sent that the chain does not show yet, but can still include?"""
        over = self.game.chain.now() > view.job.since + view.job.spec.challenge_window
        hidden = not (over or view.mine) and self.stakes is not None and view.claim in self.stakes.claims
        self.hidden = self.lasting.held("hidden", hidden)
        return hidden

    def moves(self, view: ClaimView) -> list[tuple[int, Callable[[], bool]]]:
        """The own moves that are due, with their deadlines: first convictions by timeout, then own turns by
        deadline, then proofs that need not wait for the trainer."""
        mine = view.open_mine if view.job.phase is Phase.CLAIMED else []
        mine = sorted(mine, key=lambda s: (s.turn is not Turn.TRAINER_EXPIRED, s.turn is not Turn.AUDITOR, s.deadline))
        return [(s.deadline, partial(self.turn, view, s)) for s in mine if s.turn in DUE or _provable(s)]

    def others(self, view: ClaimView) -> bool:
        """Duties without an own clock: withdrawals, and disputes of others that have expired."""
        match view.job.phase:
            case Phase.CLAIMED if view.open_mine:
                rest = [
                    self.refill,
                    partial(self.convict, view, self.can_convict),
                    partial(self.sweep, view.job, view.standings),
                ]
                return one_of(rest)
            case Phase.CONVICTED:
                return self.collect(view)
        return view.job.phase is not Phase.CLAIMED and self.withdraw()

    def open(self, view: ClaimView) -> bool:
        """Dispute a false claim."""
        return view.job.phase is Phase.CLAIMED and self.challenge(view)

    # ---- challenges ----

    def challenge(self, view: ClaimView) -> bool:
        """Open a dispute where the claim differs from the own run, unless this auditor already has an open dispute.
        One conviction ends the claim; a further stake would only add another clock."""
        job = view.job
        if self.game.chain.now() > job.since + job.spec.challenge_window or view.open_mine:
            return False
        self.check_lost(view)
        entry = self.difference(view)
        if entry is None:
            return False
        # actions that can end the claim without a new stake come first
        if self.refill() or self.convict(view, self.can_convict):
            return True
        expired = (s.number for s in view.standings if s.turn is Turn.TRAINER_EXPIRED)
        if any(self.game.was_sent("timeout", self.id, number) for number in expired):
            return False  # a conviction is possible, and is sent again after the pause
        if self.staking is not None and not self.staking.allows(view):
            return False
        if self.stakes and self.unshown(view) and (self.hidden < MOMENT or self.stakes.included(view.claim)):
            return False  # a node lags, or the stake is pending
        place = (int(entry.level), entry.where, view.claimed_root(entry), view.basis(entry))
        self.at_risk = True  # until the result of the transaction is known
        with self.stakes.recording(view.claim) if self.stakes else nullcontext():
            try:
                made = self.attempt("challenge", self.id, *place, value=job.spec.stake)
            except ContractError as refusal:
                if refusal.name != "AlreadyDisputed":
                    raise
                if self.stakes:
                    self.stakes.believe(view.claim)
                raise NotYet(
                    f"{self.game.chain.url} does not show the dispute of {self.address} on this claim, but the "
                    "contract has it: the endpoint lags, or is wrong; if this continues, use another endpoint"
                ) from None
        self.at_risk = made or self.unshown(view)
        return made

    def check_lost(self, view: ClaimView) -> None:
        """Raises Abstain if an own dispute on this claim was lost, or if an endpoint shows it as lost. Lost by
        computation: the own run is wrong. Lost by time: the next dispute may be late too."""
        for number, d in view.mine:
            if d.status is Status.DISMISSED:
                cause = "opening" if d.level is Level.STATE else "element"
                raise Abstain(
                    f"dispute {number} was dismissed by {cause}: this auditor's own run is wrong; run `vgame doctor`"
                )
            raise Abstain(
                f"job {self.id.hex()[:16]} is not disputed again: this auditor ran out of time in dispute {number} and "
                "has lost its bond; it is too slow, or its moves do not arrive; an auditor with another key can "
                "dispute the job"
            )

    def difference(self, view: ClaimView) -> Entry | None:
        """The first root of the claim that the own run contradicts: the run root and, for a claim "diverged", also the
        last segment and the last trace. If these roots are equal, no other posted root needs a check."""
        stop = view.job.diverged_at
        last = (stop - 1) // self.machine.interval + 1
        named = (view.segments[last], view.traces[stop]) if stop else ()
        claim = (view.job.run_root, stop, *named)
        if self._found is None or self._found[0] != claim:
            self._found = claim, self._compare(view, last)
        return self._found[1]

    def _compare(self, view: ClaimView, last: int) -> Entry | None:
        stop = view.job.diverged_at
        if view.checkpoints and view.own_run.root != view.job.run_root:
            return Entry(Level.RUN)
        if stop and view.contradicts_segment(last, view.segments[last]):
            return Entry(Level.SEGMENT, last)
        if stop and view.contradicts_trace(stop, view.traces[stop]):
            return Entry(Level.TRACE, stop)
        return None

    def agrees(self, view: ClaimView | None = None) -> bool:
        """Does the claim equal the own run?"""
        return self.difference(view or ClaimView(self, self.look())) is None

    # ---- playing ----

    def convict(self, view: ClaimView, may: Callable[[int], bool] = lambda gas: True) -> bool:
        """Convict the trainer if its time is over in any dispute, also in one of another auditor. `may`: is there
        money for that much gas?"""
        over = [s.number for s in view.standings if s.turn is Turn.TRAINER_EXPIRED]
        return bool(over) and may(TIMEOUT_GAS) and self.attempt("timeout", self.id, over[0])

    def turn(self, view: ClaimView, s: Standing) -> bool:
        """One dispute: select, end or prove."""
        match s.turn:
            case Turn.AUDITOR:
                return self.move(view, s.number, s.dispute)
            case Turn.TRAINER_EXPIRED:
                return self.attempt("timeout", self.id, s.number)
            case _:
                return self.prove(view, s.number, s.dispute)

    def name(self, move: str, number: int, d: Dispute, *args: object) -> bool:
        """Send an own move. It reverts if the dispute is no longer at the position that the move was chosen for."""
        return self.attempt(move, self.id, number, d.position, *args)

    def move(self, view: ClaimView, number: int, d: Dispute) -> bool:
        """Select the first difference among the opened children, words or partial sums."""
        view.check_place(d)
        if d.level is Level.TENSOR and d.height == 0:
            words = view.leaf(d.node)
            return self.name("selectElement", number, d, view.first_word(d, words), words)
        if d.level is Level.ELEMENT:
            theirs, own = view.partials(d), self.machine.partials(d.step, d.operator, d.index)
            return self.select_partial(number, d, theirs, first(a != b for a, b in zip(theirs, own, strict=True)))
        if d.level is Level.SEGMENT and d.height == 0 and not view.contests_trace(d):
            return self.name("selectState", number, d, view.traces[view.step_of(d)])
        node = view.base(d)
        return self.select(number, d, node, view.first_difference(d, node))

    def select(self, number: int, d: Dispute, node: Node, index: int) -> bool:
        """Select child `index` of the contested node."""
        path = subtree_path(node.kind, node.children, index, node.base)
        arguments = (number, d, node.children[index], index, path)
        if node.kind is Kind.TRACE and node.base == 0:
            operator = min(node.first + index, self.machine.operators - 1)  # for padding any record will do
            return self.name("selectOperator", *arguments, self.machine.operator_record(operator).as_tuple())
        return self.name("select", *arguments)

    def select_partial(self, number: int, d: Dispute, partials: Sequence[bytes], index: int) -> bool:
        """Select partial sum `index`."""
        tree = Tree(Kind.PARTIAL, [leaf_hash(Kind.PARTIAL, p) for p in partials])
        return self.name("selectPartial", number, d, tree.node(0, index), index, tree.path(0, index))

    def prove(self, view: ClaimView, number: int, d: Dispute) -> bool:
        """Prove the element without waiting for the trainer. The operands of both sides are equal, because they lie
        left of the first difference."""
        if d.level is Level.ELEMENT and d.blocks > 1:
            return False
        trace = view.claimed_trace(d.step)
        proof = self.machine.prove(d.step, d.operator, d.index, d.block, lambda operator: trace.path(0, operator))
        prior, path = (EMPTY, [])
        if proof.reads_state:
            segment = view.claimed_segment((d.step - 1) // self.machine.interval + 1)
            index = (d.step - 1) % self.machine.interval
            prior, path = segment.node(0, index), segment.path(0, index)
        return self.attempt("prove", self.id, number, d.position, prior, path, proof.proof)

    # ---- money ----

    def reserve(self) -> int:
        return self.staking.kept() if self.staking else super().reserve()

    def can_spare(self, gas: int, least: int = 1) -> bool:
        """Is there money for that much gas, beside the reserve of the open disputes? `least`: the minimum number of
        disputes in that reserve, even if none is open."""
        chain, kept = self.game.chain, self.staking.kept(least) if self.staking else self.reserve()
        return chain.balance(self.address) >= kept + gas_money(chain, gas)

    def can_convict(self, gas: int) -> bool:
        """Is there money for the gas of a conviction? A conviction pays more than it costs, so no money is reserved
        for future disputes."""
        return self.can_spare(gas, 0)

    def sweep(self, job: Job, standings: Sequence[Standing]) -> bool:
        """End disputes of others whose time is over, with money outside the reserve of own disputes."""
        over = len(self.ended_by(job, standings))
        return over > 0 and self.can_spare(min(over, BATCH) * TIMEOUT_GAS) and super().sweep(job, standings)

    def ended_by(self, job: Job, standings: Sequence[Standing]) -> list[int]:
        """Disputes to end. An own dispute is ended only after every look, for long enough, has shown that no other
        dispute can convict: so one false reply cannot burn a bond."""
        found = lapsed(self.address, job, self.game.chain.now(), standings)
        mine = {s.number for s in standings if self.plays(job, s.dispute)}
        last = self.lasting.shown("own dispute is the last", not mine.isdisjoint(found))
        return [number for number in found if last or number not in mine]

    @cached_property
    def lasting(self) -> Lasting:
        return Lasting(self.game.chain)

    def collect(self, view: ClaimView) -> bool:
        """After a conviction: refund the bonds of open own disputes, then withdraw the credits."""
        for number, dispute in view.mine:
            if dispute.status is Status.OPEN:
                return self.attempt("refund", self.id, number)
        return self.withdraw()


def _provable(s: Standing) -> bool:
    return s.turn is Turn.TRAINER and s.dispute.level in (Level.ELEMENT, Level.PARTIAL)


def first(flags: Iterable[bool]) -> int:
    """Index of the first true flag; Abstain if all are false."""
    for index, flag in enumerate(flags):
        if flag:
            return index
    raise Abstain("the posted partial sums equal the own ones: none of them can be contested")
