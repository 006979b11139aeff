"""The auditor: re-execute, compare with everything that is posted, dispute the first difference, play to the end.

It only ever names what differs from its own computation; where its own data does not suffice it abstains and says so.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial

from vgame.chain.records import Dispute, Job, Level, Phase, Standing, Status, Turn
from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.commit.trees import subtree_path
from vgame.dispute.claim_view import ClaimView, Entry, Node, Openings
from vgame.dispute.player import BATCH, Player, gas_money, one_of, run_duties
from vgame.dispute.stakes import Stakes
from vgame.errors import Abstain, ContractError, NotYet

log = logging.getLogger(__name__)

EMPTY = bytes(32)
DUE = (Turn.AUDITOR, Turn.TRAINER_EXPIRED)  # what an auditor has to answer
TIMEOUT_GAS = 50_000  # of one that has run out of time, and of a conviction by it
LATE = 2  # disputes about one claim that may be lost by time; after these nothing more is staked on it


class Auditor(Player):
    """The side that checks. `refusal`: why nothing may be staked on a job, asked before every stake; empty if it may.
    `stakes`: what was staked before. `kept`: wei that all open disputes of this account may need for gas."""

    side = Turn.AUDITOR
    windows = {  # noqa: RUF012
        Phase.CLAIMED: [("challenge_window", "the time to challenge")],
    }
    refusal: Callable[[Job], str] | None = None
    stakes: Stakes | None = None
    kept: Callable[[], int] | None = None
    compared: bytes | None = None  # run root of the claim that the machine is for
    engaged_in = False  # has an open dispute, as far as the last look saw
    lost_or_won: Set[int] = frozenset()  # own disputes of the claim that have ended, as that look saw
    hurried = False  # and one of its clocks has so little left that nothing else may be done
    pieces = math.inf  # posted pieces that may be executed in this look, which strangers can have posted
    behind = False  # one had to wait for that

    @cached_property
    def checked(self) -> dict[tuple[Level, int, bytes], bool]:
        """Whether my run contradicts a posted root."""
        return {}

    @cached_property
    def confirmed(self) -> set[tuple[str, int, bytes]]:
        """Events of posted roots that the contract's views confirmed: a root is written once (I5), so each is asked for
        once."""
        return set()

    @cached_property
    def openings(self) -> Openings:
        return Openings(self.game, self.id)

    # ---- rounds ----

    def step(self, job: Job | None = None) -> bool:
        """One round of duties; True if anything was done. `job`: as it was seen by who decided what the machine is
        for."""
        job = job or self.look()
        self.engaged_in &= job.phase is Phase.CLAIMED
        match job.phase:
            case Phase.CLAIMED:
                view = ClaimView(self, job)
                return run_duties([lambda: self.refill() or self.play(view) or self.challenge(view), view.complain])
            case Phase.CONVICTED:
                return self.collect(ClaimView(self, job))
        return self.withdraw()

    def look_for_own(self, job: Job) -> None:
        """Is an own dispute of this claim open, perhaps from before a restart?"""
        self.engaged_in = job.phase is Phase.CLAIMED and bool(self.open_of(ClaimView(self, job)))

    def open_of(self, view: ClaimView) -> list[Standing]:
        """Own disputes that have not ended; which others have."""
        mine = view.open_mine
        self.lost_or_won = {number for number, _ in view.mine} - {s.number for s in mine}
        return mine

    # ---- what to dispute ----

    def challenge(self, view: ClaimView) -> bool:
        """Open a dispute where the claim differs from my run, unless I have one: one conviction ends the claim, and
        each further stake would be beside it, with a clock of its own."""
        job = view.job
        if self.game.chain.now() > job.since + job.spec.challenge_window or view.open_mine:
            return False
        self.check_refuted(view)
        entry = next(self.differences(view), None)
        if entry is None:
            return False
        if self.convict(view, self.can_spare):  # what ends it without a stake comes first
            return True
        memory = self.remembered(view)
        self.check_stake(view)
        place = (int(entry.level), entry.where, view.claimed_root(entry), view.basis(entry))
        self.engaged_in = True  # as long as it is not known
        with memory:
            self.engaged_in = self.attempt("challenge", self.id, *place, value=job.spec.stake)
        return self.engaged_in

    def remembered(self, view: ClaimView) -> AbstractContextManager[None]:
        """Remembers the stake that is sent inside of it. NotYet where an earlier one on this claim is not shown: that
        may be a dispute, whatever an endpoint shows."""
        if self.stakes is None:
            return nullcontext()
        claim, seen = f"{self.id.hex()} {view.job.run_root.hex()}", len(view.mine)
        self.engaged_in = True
        number = self.stakes.number_for(claim, seen)
        self.engaged_in = False
        return self.stakes.sending(claim, seen, number)

    def check_refuted(self, view: ClaimView) -> None:
        """A dispute lost by time is opened again, see `check_stake`; one that was lost by what the contract computed
        says that my own run is wrong."""
        for number, d in view.mine:
            if d.status is Status.DISMISSED:
                cause = "opening" if d.level is Level.STATE else "element"
                raise Abstain(
                    f"dispute {number} was dismissed by {cause}: this auditor's own run is wrong; run `vgame doctor`"
                )

    def check_stake(self, view: ClaimView) -> None:
        """A bond is risked only within the limits, and not for ever where disputes (by now all that were lost) were
        lost by time."""
        if self.refusal and (why := self.refusal(view.job)):
            raise Abstain(f"job {self.id.hex()[:16]} is not disputed: {why}")
        late = sum(d.status is Status.LAPSED for _, d in view.mine)
        if late >= LATE:
            raise Abstain(
                f"job {self.id.hex()[:16]} is not disputed again: this auditor has lost {late} disputes about it by "
                "time, and their bonds; it is too slow, or its moves do not arrive"
            )

    def differences(self, view: ClaimView) -> Iterator[Entry]:
        """Roots of the claim that my run contradicts; below a run root that differs, nothing else is needed. First what
        the claim itself holds, so of a claim "diverged" its last segment and trace. Strangers can have the trainer post
        as much as they like, and each piece costs a re-execution: none is begun while an own dispute is open, see
        `challenge`."""
        if view.checkpoints and view.own_run.root != view.job.run_root:
            yield Entry(Level.RUN)
            return
        stop, found = view.job.diverged_at, False
        last = (stop - 1) // self.machine.interval + 1
        for level, posted, own in ((Level.SEGMENT, view.segments, last), (Level.TRACE, view.traces, stop)):
            for where, root in () if found else sorted(posted.items(), key=lambda piece: piece[0] != own):
                if self.contradicts(view, level, where, root):
                    found = True
                    yield Entry(level, where)

    def contradicts(self, view: ClaimView, level: Level, where: int, root: bytes) -> bool | None:
        """Does my run contradict a posted root? None where that has to wait for the next look."""
        if (level, where, root) not in self.checked:
            if not self.pieces:
                self.behind = True
                return None
            self.pieces -= 1
            compare = view.contradicts_segment if level is Level.SEGMENT else view.contradicts_trace
            self.checked[level, where, root] = compare(where, root)
        return self.checked[level, where, root]

    def agrees(self, job: Job | None = None) -> bool | None:
        """The claim itself is what my run gives, None where that has to wait; what its trainer posts in disputes is
        compared piece by piece, see `differences`."""
        view = ClaimView(self, job or self.game.job(self.id))
        if view.checkpoints and view.own_run.root != view.job.run_root:
            return False
        if not (stop := view.job.diverged_at):
            return True
        last = (stop - 1) // self.machine.interval + 1
        for part in ((Level.SEGMENT, last, view.segments[last]), (Level.TRACE, stop, view.traces[stop])):
            if (found := self.contradicts(view, *part)) is not False:
                return None if found is None else False
        return True

    # ---- playing ----

    def play(self, view: ClaimView) -> bool:
        """Make the own move whose clock ends first; where none is due end disputes of others, of which one may
        convict."""
        mine = self.open_of(view)
        self.engaged_in, self.hurried = bool(mine), not self.spare(view.job, mine)
        if not mine:
            return False
        mine.sort(key=lambda s: (s.turn is not Turn.TRAINER_EXPIRED, s.turn is not Turn.AUDITOR, s.deadline))
        moves = [partial(self.turn, view.job, s.number, s.dispute) for s in mine]
        return one_of([*moves, partial(self.convict, view), partial(self.sweep, view.job, view.standings)])

    def convict(self, view: ClaimView, may: Callable[[int], bool] = lambda gas: True) -> bool:
        """Where the trainer's time is over in a dispute of another auditor, that convicts it as well. `may`: is there
        money for so much gas?"""
        over = [s.number for s in view.standings if s.turn is Turn.TRAINER_EXPIRED]
        return bool(over) and may(TIMEOUT_GAS) and self.attempt("timeout", self.id, over[0])

    def turn(self, job: Job, number: int, d: Dispute) -> bool:
        """One dispute: name, end or prove. The view is fresh, for what the turn depends on may have been opened just
        now."""
        turn, view = self.turn_of(number), ClaimView(self, job)
        try:
            match turn:
                case Turn.AUDITOR:
                    return self.move(view, number, d)
                case Turn.TRAINER_EXPIRED:
                    return self.attempt("timeout", self.id, number)
                case Turn.TRAINER if d.level in (Level.ELEMENT, Level.PARTIAL):
                    return self.prove(view, number, d)
        except NotYet as behind:
            log.info("dispute %d waits: %s", number, behind)
        return False

    def name(self, move: str, number: int, d: Dispute, *args: object) -> bool:
        """Send a move of mine; if another instance of me was faster, it is not needed any more."""
        try:
            return self.attempt(move, self.id, number, d.position, *args)
        except ContractError:
            if self.game.dispute(self.id, number) == d:
                raise
            return False

    def move(self, view: ClaimView, number: int, d: Dispute) -> bool:
        """Name the first difference among what was opened."""
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
        """Name child `index` of the contested node."""
        path = subtree_path(node.kind, node.children, index, node.base)
        arguments = (number, d, node.children[index], index, path)
        if node.kind is Kind.TRACE and node.base == 0:
            operator = min(node.first + index, self.machine.operators - 1)  # any record, where only padding is named
            return self.name("selectOperator", *arguments, self.machine.operator_record(operator).as_tuple())
        return self.name("select", *arguments)

    def select_partial(self, number: int, d: Dispute, partials: Sequence[bytes], index: int) -> bool:
        """Name partial sum `index`."""
        tree = Tree(Kind.PARTIAL, [leaf_hash(Kind.PARTIAL, p) for p in partials])
        return self.name("selectPartial", number, d, tree.node(0, index), index, tree.path(0, index))

    def prove(self, view: ClaimView, number: int, d: Dispute) -> bool:
        """Do not wait for the trainer: my operands are its own, for they lie left of the first difference."""
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
        return self.kept() if self.kept else super().reserve()

    def can_spare(self, gas: int) -> bool:
        """Is there money for so much gas that no open dispute may need?"""
        chain = self.game.chain
        return chain.balance(self.address) >= self.reserve() + gas_money(chain, gas)

    def sweep(self, job: Job, standings: Sequence[Standing]) -> bool:
        """End disputes of others whose time is over, with money that no own dispute may need."""
        over = sum(s.turn is Turn.AUDITOR_EXPIRED for s in standings)
        return over > 0 and self.can_spare(min(over, BATCH) * TIMEOUT_GAS) and super().sweep(job, standings)

    def secret(self, what: bytes) -> bytes:
        """Nobody else can know it, and a lost store does not lose it."""
        assert self.game.wallet is not None
        return hmac.digest(self.game.wallet.key, what + self.id, "sha256")

    def collect(self, view: ClaimView) -> bool:
        """After a conviction: bonds back, credits withdrawn."""
        for number, dispute in view.mine:
            if dispute.status is Status.OPEN:
                return self.attempt("refund", self.id, number)
        return self.withdraw()


def first(flags: Iterable[bool]) -> int:
    """Index of the first true one."""
    for index, flag in enumerate(flags):
        if flag:
            return index
    raise Abstain("the posted partial sums are my own: none of them can be named")


__all__ = ["Auditor", "ClaimView", "Entry", "Node"]
