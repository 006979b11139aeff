"""The trainer: accept, train, claim, defend, finalize, withdraw.

All decisions follow from the chain's state and the trainer's own run, so the trainer can be killed and restarted at any
moment. An adversary is this class with one method changed (vgame/attacks/adversaries.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from vgame.chain.final import Lasting, final_jobs
from vgame.chain.records import ENDED, ZERO_ADDRESS, Dispute, Job, Level, Phase, Turn
from vgame.chain.turns import has_computed_long
from vgame.commit.merkle import Kind, Tree, leaf_hash
from vgame.commit.trees import reveal_depth, run_tree
from vgame.commit.words import LEAF_WORDS, leaf_bytes, words_tree
from vgame.dispute.player import DISPUTE_GAS, Player, one_of
from vgame.errors import Abstain, ChainError, NotYet, Over

if TYPE_CHECKING:
    from vgame.delivery.seller import Seller


#: Upper bound of the gas of acceptance, claim, finalize, key, closing and withdrawal together (docs/gas.json).
COURSE_GAS = 450_000
DISPUTES_AT_ONCE = 2  # disputes to pay for before the first one is won and pays for the next


class Trainer(Player):
    """The side that claims."""

    side = Turn.TRAINER
    seller: Seller | None = None  # for a job with delivery
    check_terms: Callable[[], None] | None = None  # raises if the terms of the order are refused
    prefetch_segments: Callable[[Sequence[int]], None] | None = None  # takes checkpoints that are needed later
    windows = {  # noqa: RUF012
        Phase.CREATED: [("accept_window", "the time to accept")],
        Phase.ACCEPTED: [("claim_window", "the time to claim")],
    }

    # ---- life of the job ----

    def look(self, job: Job | None = None) -> Job:
        """The job as the chain shows it now. A look at a job that has not ended resets `has_ended`, even if the round
        fails."""
        job = super().look(job)
        if job.phase not in {Phase.CONVICTED, *ENDED}:
            self.lasting.shown("ended", False)
        return job

    def accept(self) -> None:
        """Put down the bond."""
        job = self.look()
        self.check(job)
        if job.phase is Phase.CREATED:
            if self.check_terms:
                self.check_terms()
            self.check_funds(job)
            self.attempt("acceptJob", self.id, value=job.spec.trainer_bond)
            self.check(job := self.look())
        if job.phase in (Phase.NONE, Phase.CREATED):
            raise NotYet(f"{self.game.chain.url} does not show the acceptance of job {self.id.hex()[:16]} yet")

    def check_funds(self, job: Job) -> None:
        """ChainError unless the wallet holds the bond and the gas for the rest of the job; credits in the contract are
        withdrawn first."""
        bond, reserve = job.spec.trainer_bond, self.reserve()
        if self.game.chain.balance(self.address) < bond + reserve:
            self.withdraw()
        if (owned := self.game.chain.balance(self.address)) < bond + reserve:
            raise ChainError(
                f"{self.address} has {owned} wei; {bond + reserve} are needed to accept job {self.id.hex()[:16]}: the "
                f"bond of {bond}, and {reserve} for the gas of claim, disputes and delivery; send it some ether"
            )

    def reserve(self) -> int:
        """Wei for the gas without which the bond is at risk, at the prices that a transaction offers now. The client
        pays for answers at the base fee, so the first answers pay for the next; tips are not refunded."""
        base, tip = self.game.chain.fees()
        first, every = self.seller.answers_gas() if self.seller else (0, 0)
        return (COURSE_GAS + DISPUTES_AT_ONCE * DISPUTE_GAS + first) * (2 * base + tip) + every * tip

    def check(self, job: Job) -> None:
        """Raises Over if nothing is left to do, in all looks for long enough and in a final state; NotYet if it was
        shown for a shorter time."""
        lasting = self.lasting.shown("over", bool(why := self.over(job, self.game.chain.now())))
        if not why:
            return
        final, time = final_jobs(self.game, [self.id]) if lasting else (None, 0)
        if final and (why := self.over(final[0], time)):
            self.check_acceptance(final[0])
            raise Over(why)
        raise NotYet(
            f"job {self.id.hex()[:16]} is {job.phase.name.lower()}, so nothing is left to do; this role waits until "
            "that state is final"
        )

    def check_acceptance(self, job: Job) -> None:
        """NotYet if the state names another trainer, but the event of its acceptance is not shown."""
        if job.trainer != self.address and job.accepted_at:
            theirs = lambda event: event.args["trainer"] == job.trainer or None  # noqa: E731
            self.game.content("JobAccepted", self.id, job.accepted_at, theirs, key=job.trainer)

    def over(self, job: Job, now: int) -> str:
        """The reason why nothing is left to do. Empty if the job can be accepted, or if it is this trainer's and has a
        claim or still time for one."""
        name, bond = f"job {self.id.hex()[:16]}", f"the bond of {job.spec.trainer_bond} wei"
        if job.phase is Phase.NONE:  # a reorganisation undid the order too
            return ""
        if job.phase is Phase.CREATED:
            if job.spec.trainer not in (ZERO_ADDRESS, self.address):
                return f"{name} is reserved for the trainer {job.spec.trainer}: {self.address} cannot accept it"
            late = now - job.since - job.spec.accept_window
            return f"the time to accept {name} ended {late} s ago: no bond is staked on it" if late > 0 else ""
        if job.trainer != self.address:
            return f"the job is not this trainer's: it is {job.phase.name.lower()}, its trainer is {job.trainer}"
        if job.phase is Phase.EXPIRED:
            return f"{name} expired without a claim: {bond} is lost, half is burnt, half goes to the client"
        if job.phase is Phase.ACCEPTED and (late := now - job.since - job.spec.claim_window) > 0:
            return (
                f"the time to claim {name} ended {late} s ago: {bond} is lost as soon as any account calls `expire`, "
                "half is burnt, half goes to the client"
            )
        return ""

    def has_ended(self, shown: bool) -> bool:
        """Is nothing left, in all looks for long enough and in a final state? `shown`: the answer of this look."""
        waiting, self.waiting = self.waiting, False
        if not self.lasting.shown("ended", shown and not waiting):
            return False
        final, _ = final_jobs(self.game, [self.id])
        return final is not None and final[0].phase in {Phase.CONVICTED, *ENDED}

    @cached_property
    def lasting(self) -> Lasting:
        return Lasting(self.game.chain)

    def claim(self) -> bool:
        """Post the claim: trained or diverged. True if a transaction was sent."""
        if self.game.job(self.id).phase is not Phase.ACCEPTED:
            return False
        if self.machine.stop is None:
            final, path = self.checkpoint(len(self.machine.checkpoints))
            offer = self._offer(final) if self.look().spec.confirm_window else (bytes(32), bytes(32))
            return self.attempt("postClaim", self.id, self.run_tree().root, final, path, *offer)
        return self.attempt("postDiverged", self.id, self.diverged_post())

    def _offer(self, final: bytes) -> tuple[bytes, bytes]:
        """For a job with delivery: the root of the ciphertext and the hash of the key."""
        if self.seller is None:
            raise Abstain("the order requires delivery of the state, but this trainer has no delivery folder")
        offer = self.seller.offer()
        if offer.final_state != final:
            raise Abstain(
                f"{self.seller.public} holds the state {offer.final_state.hex()[:16]}, but the run ends with "
                f"{final.hex()[:16]}: move the folder away, then the state is encrypted again"
            )
        return offer.cipher_root, offer.key_hash

    def step(self) -> bool:
        """One round of duties; True if anything was done."""
        self.game.chain.turn()
        job = self.look()
        self.check(job)
        if job.phase is Phase.NONE:  # a reorganisation undid the order too
            return False
        if job.phase is Phase.CREATED:  # it undid the acceptance
            self.accept()
            return True
        if self.refill():
            return True
        match job.phase:
            case Phase.ACCEPTED:
                return self.claim()
            case Phase.CLAIMED:
                return self.defend(job) or self.finish(job)
            case Phase.DELIVERING | Phase.REVEALED if self.seller:
                return one_of(self.seller.duties(self.game, job, self.attempt))
        return self.withdraw()

    def finish(self, job: Job) -> bool:
        """Finalize the claim once the challenge window has passed and no dispute is open."""
        if job.open or self.game.chain.now() <= job.since + job.spec.challenge_window:
            return False
        return self.attempt("finalize", self.id)

    # ---- defence ----

    def defend(self, job: Job) -> bool:
        """Answer the dispute whose clock starts first, so that no dispute costs more than two slots of the clock
        (docs/promises.md, T1). If none waits for an answer, end those whose auditor is out of time."""
        standings = self.standings(job)
        waiting = [s for s in standings if s.turn is Turn.TRAINER]
        waiting.sort(key=lambda s: (s.dispute.turn_at + s.dispute.others * job.slot, s.number))
        if self.prefetch_segments:
            later = (s.dispute for s in waiting[1:])
            self.prefetch_segments([d.index + 1 for d in later if d.level is Level.RUN and d.height == 0])
        answers = [partial(self.serve, job, s.number, s.dispute) for s in waiting]
        return one_of([*answers, partial(self.sweep, job, standings)], partial(has_computed_long, self.game.chain))

    def serve(self, job: Job, number: int, d: Dispute) -> bool:
        """Answer a dispute, unless a recent answer to another dispute also answers this one: a node is paid for
        once."""
        return self.turn_of(number) is Turn.TRAINER and self.answer(job, number, d)

    def answer(self, job: Job, number: int, d: Dispute) -> bool:
        """Send the one move that is due at the contested node."""
        match d.level:
            case Level.RUN if d.height == 0:
                return self.attempt("postSegment", self.id, number, d.position, self.segment_post(job, d.index + 1))
            case Level.SEGMENT if d.height == 0:
                return self.post_trace(job, number, d)
            case Level.STATE if d.height == 0:
                return self.tie(number, d)
            case Level.TENSOR if d.height == 0:
                return self.open_leaf(d)
            case Level.ELEMENT if d.blocks > 1:
                place = (d.step, d.operator, d.index)
                partials = [*self.machine.partials(*place), *self.machine.witness(*place)]
                return self.attempt("postPartials", self.id, number, d.position, partials)
            case Level.ELEMENT | Level.PARTIAL:
                return self.prove(number, d)
        tree = self.tree_of(d)
        self.check_own(tree.node(d.height, d.index), d)
        children = tree.descendants(d.height, d.index, reveal_depth(d.height, job.spec.depth))
        return self.attempt("reveal", self.id, int(d.level), d.height, children)

    def check_own(self, node: bytes, d: Dispute) -> None:
        """Raises Abstain if the own node differs from the contested one. The contract accepts only nodes of the claim,
        so the own data then differ from the claim."""
        if node != d.node:
            raise Abstain(
                f"the contested {d.level.name} node differs from the one in this store: give the store that the claim "
                "was made from"
            )

    def open_leaf(self, d: Dispute) -> bool:
        leaf = leaf_bytes(self.machine.words(d.step, d.operator), d.index)
        self.check_own(leaf_hash(Kind.TENSOR, leaf), d)
        return self.attempt("openLeaf", self.id, leaf)

    def post_trace(self, job: Job, number: int, d: Dispute) -> bool:
        """Post the trace root of the step. A trace can be posted only once, so the own data are checked first."""
        self.check_own(self.segment_tree(d.step // self.machine.interval + 1).node(0, d.index), d)
        trace = self.trace_tree(d.step + d.index)
        children = trace.descendants(trace.height, 0, reveal_depth(trace.height, job.spec.depth))
        return self.attempt("postTrace", self.id, number, d.position, children)

    def tie(self, number: int, d: Dispute) -> bool:
        """Show the source of the contested state tensor: an operator output, or the state before the step."""
        self.check_own(self.machine.state(d.step)[d.index], d)
        source = self.machine.source(d.index)
        record = self.machine.source_record(d.index).as_tuple()
        if source is None:
            prior, path = self.prior(d.step)
            state = Tree(Kind.STATE, self.machine.state(d.step - 1))
            leaf, below = state.node(0, d.index), state.path(0, d.index)
            return self.attempt("tieUnchanged", self.id, number, d.position, record, prior, path, leaf, below)
        trace = self.trace_tree(d.step)
        leaf = (trace.node(0, source), trace.path(0, source))
        return self.attempt("tie", self.id, number, d.position, record, *leaf)

    def prove(self, number: int, d: Dispute) -> bool:
        """Make the contract compute the contested element."""
        trace = self.trace_tree(d.step)
        proof = self.machine.prove(d.step, d.operator, d.index, d.block, lambda operator: trace.path(0, operator))
        prior, path = self.prior(d.step) if proof.reads_state else (bytes(32), [])
        return self.attempt("prove", self.id, number, d.position, prior, path, proof.proof)

    # ---- trees of the claim ----

    def run_tree(self) -> Tree:
        stop = self.machine.stop
        count = (stop.step - 1) // self.machine.interval if stop else len(self.machine.checkpoints)
        return run_tree(self.machine.checkpoints, count, self.machine.logs)

    def segment_tree(self, checkpoint: int) -> Tree:
        return Tree(Kind.SEGMENT, self.machine.segment(checkpoint))

    def trace_tree(self, step: int) -> Tree:
        return Tree(Kind.TRACE, self.machine.trace(step))

    def tensor_tree(self, step: int, operator: int) -> Tree:
        return words_tree(self.machine.words(step, operator))

    def tree_of(self, d: Dispute) -> Tree:
        """The tree of the contested node."""
        interval = self.machine.interval
        match d.level:
            case Level.RUN:
                return self.run_tree()
            case Level.SEGMENT:
                return self.segment_tree(d.step // interval + 1)
            case Level.STATE:
                return Tree(Kind.STATE, self.machine.state(d.step))
            case Level.TRACE:
                return self.trace_tree(d.step)
        return self.tensor_tree(d.step, d.operator)

    def prior(self, step: int) -> tuple[bytes, list[bytes]]:
        """The state root before a step, and its path in the segment."""
        tree = self.segment_tree((step - 1) // self.machine.interval + 1)
        index = (step - 1) % self.machine.interval
        return tree.node(0, index), tree.path(0, index)

    # ---- posts ----

    def checkpoint(self, c: int) -> tuple[bytes, list[bytes]]:
        """State root of a checkpoint and its path in the run tree, preceded by the root of its log. The initial state
        has an empty path."""
        if c == 0:
            return self.machine.segment(1)[0], []
        path = self.run_tree().path(0, c - 1)
        return self.machine.checkpoints[c - 1], [self.log_root(c), *path] if self.machine.logs is not None else path

    def log_root(self, c: int) -> bytes:
        """Root of the log of a checkpoint's interval; zero in a mode without logs."""
        return bytes(32) if self.machine.logs is None else self.machine.logs[c - 1]

    def segment_post(self, job: Job, c: int) -> tuple[object, ...]:
        """struct SegmentPost."""
        tree = self.segment_tree(c)
        down = reveal_depth(tree.height, job.spec.depth)
        base = tree.height - down
        prior, prior_path = self.checkpoint(c - 1)
        last = tree.count - 1
        children = tree.descendants(tree.height, 0, down)[: (last >> base) + 1]
        return (
            self.machine.checkpoints[c - 1],
            prior,
            prior_path,
            children,
            tree.path(0, 0, base),
            tree.path(0, last, base),
            self.log_root(c),
        )

    def diverged_post(self) -> tuple[object, ...]:
        """struct DivergedPost."""
        stop = self.machine.stop
        assert stop is not None
        full = (stop.step - 1) // self.machine.interval
        prior, prior_path = self.checkpoint(full)
        segment, trace = self.segment_tree(full + 1), self.trace_tree(stop.step)
        tensor = self.tensor_tree(stop.step, stop.operator)
        leaf = stop.element // LEAF_WORDS
        words = leaf_bytes(self.machine.words(stop.step, stop.operator), leaf)
        return (
            stop.step, self.run_tree().root, segment.root, prior, prior_path, segment.path(0, 0), trace.root,
            stop.operator, self.machine.operator_record(stop.operator).as_tuple(), trace.path(0, stop.operator),
            stop.element, words, tensor.path(0, leaf), self.log_root(full + 1),
        )  # fmt: skip
