"""A model of the game from its events alone: after every transaction the contract must agree with it, to the wei
(I1..I6).

In: a RevmNode and a game's address; it calls the contract without web3, so that a check after every call is fast. Read
from the contract's state instead of events: the position of each dispute.
"""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from eth_abi import decode
from eth_utils.address import to_checksum_address
from places import contains
from revm_calls import DATA, TOPICS, calldata, decode_output
from revm_node import RICH, RevmNode

from vgame.chain.records import (
    CAUSES,
    Dispute,
    Job,
    JobSpec,
    Level,
    Phase,
    Position,
    Post,
    Standing,
    Status,
    Verdict,
    standing,
)
from vgame.commit.merkle import Kind, Tree, leaf_hash

#: Kinds posted with a first reveal, which opens a place and no node.
POSTED = {"SegmentPosted": Level.SEGMENT, "TracePosted": Level.TRACE}
ALONE = 1 << 31  # in a job's queue: the other bits are the number of the only open dispute


@dataclass
class Ghost:
    """Money and progress, from the events."""

    node: RevmNode
    address: str
    seen: int = 0
    calls: int = 0
    locked: int = 0
    forced: int = 0
    burnt: int = 0
    credits: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    jobs: dict[bytes, Job] = field(default_factory=dict)
    disputes: dict[tuple[bytes, int], Dispute] = field(default_factory=dict)
    ended: dict[tuple[bytes, int], Status] = field(default_factory=dict)
    convicted: dict[bytes, tuple[int, str, str]] = field(default_factory=dict)  # dispute, cause, winner
    requests: dict[tuple[bytes, int], tuple[int, int]] = field(default_factory=dict)  # gas, price
    shown: int = 0  # the base fee that the contract sees
    time: int = 0  # of the block whose events are read
    #: Posts by job, kind and place: at most one each (I5).
    posts: dict[tuple[bytes, Level, int], Post] = field(default_factory=dict)
    #: Time at which a duty of a job was opened.
    openings: dict[tuple[bytes, Any], int] = field(default_factory=dict)
    #: Duties awaited by several disputes, or by one of several.
    marked: set[tuple[bytes, Any]] = field(default_factory=set)
    #: Disputes, by job and number, that have left the root that they entered.
    moved: set[tuple[bytes, int]] = field(default_factory=set)

    # ---- reading the contract ----

    def ask(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        request = {"from": RICH[0], "to": self.address, "data": calldata(name, arguments)}
        return decode_output(name, self.node.call(request))

    def read(self, name: str, *arguments: Any) -> Any:
        return self.ask(name, *arguments)[0]

    def job(self, job: bytes) -> Job:
        phase, *rest, spec = self.read("getJob", job)
        return Job(Phase(phase), *rest, JobSpec(*spec))

    def standings(self, job: bytes) -> list[Standing]:
        return [standing(n, s) for n, s in enumerate(self.read("getDisputes", job, 0, 2**64))]

    def verdict(self, job: bytes) -> Verdict:
        level, *rest, cause, time, winner = self.read("getVerdict", job)
        return Verdict(Level(level), *rest, CAUSES[cause], time, winner)

    # ---- going back ----

    def memory(self) -> dict[str, Any]:
        """The whole model, for `remember`."""
        return {name: copy(value) for name, value in vars(self).items() if name != "node"}

    def remember(self, memory: dict[str, Any]) -> None:
        vars(self).update({name: copy(value) for name, value in memory.items()})

    # ---- after every transaction ----

    def check(self) -> None:
        """Apply the events since the last check, then compare."""
        receipts = list(self.node.receipts.values())[self.seen :]
        self.seen = len(self.node.receipts)
        touched = set()
        for receipt in receipts:
            self.time = int(self.node.blocks[int(receipt["blockNumber"], 16)]["timestamp"], 16)
            logs = [log for log in receipt["logs"] if log["address"].lower() == self.address.lower()]
            for log, after in zip(logs, [*logs, None][1:], strict=True):
                touched |= self._follow(log, after)
        self._compare_money()
        for job in touched:
            self._compare_job(job)
        self.calls += 1

    def _follow(self, log: dict[str, Any], after: dict[str, Any] | None) -> set[bytes]:
        name, *topics = TOPICS[log["topics"][0]], *(bytes.fromhex(t[2:]) for t in log["topics"][1:])
        values = decode(DATA[name], bytes.fromhex(log["data"][2:]))
        if name == "Revealed" and after and TOPICS[after["topics"][0]] in POSTED:
            self._opens(topics[0], POSTED[TOPICS[after["topics"][0]]], int(after["topics"][2], 16))
        elif handler := getattr(self, f"_on_{name}", None):
            handler(topics, values)
        return set() if name == "Withdrawn" else {topics[0]}

    def _opens(self, job: bytes, *thing: Any) -> None:
        """INVARIANT I5: an opening has one time."""
        self.openings.setdefault((job, thing), self.time)

    def _pay(self, account: str, amount: int) -> None:
        self.credits[account.lower()] += amount
        self.locked -= amount

    def _burn(self, amount: int) -> None:
        self.burnt += amount
        self.locked -= amount

    def _on_JobCreated(self, topics: list[bytes], values: Any) -> None:
        self.locked += JobSpec(*values[0]).reward
        self.jobs[topics[0]] = self.job(topics[0])
        assert self.jobs[topics[0]].phase is Phase.CREATED

    def _on_JobAccepted(self, topics: list[bytes], values: Any) -> None:
        self.locked += self.jobs[topics[0]].spec.trainer_bond

    def _on_JobExpired(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        self._pay(job.client, job.spec.reward)
        if job.phase is Phase.ACCEPTED:
            self._pay(job.client, job.spec.trainer_bond // 2)
            self._burn(job.spec.trainer_bond - job.spec.trainer_bond // 2)

    def _on_Finalized(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        pay = job.spec.diverged_pay if values[0] else job.spec.reward
        self._pay(job.trainer, pay + job.spec.trainer_bond)
        self._pay(job.client, job.spec.reward - pay)
        # INVARIANT I6: nothing is open, the window has passed.
        assert job.open == 0 and self.node.now > job.since + job.spec.challenge_window

    def _on_DeliveryOpened(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        assert job.open == 0 and self.node.now > job.since + job.spec.challenge_window
        assert values[0] == self.node.now + job.spec.confirm_window

    def _on_Requested(self, topics: list[bytes], values: Any) -> None:
        index, tensor, chunk, price, deposit = values
        request = self.read("getRequests", topics[0])[index]
        assert request == (tensor, chunk, request[2], price, self.time, 0, 0, False)
        gas = self.read("answerGas", topics[0], request[2], chunk)
        assert deposit == gas * price
        self.locked += deposit
        self.requests[topics[0], index] = gas, price

    def _on_Raised(self, topics: list[bytes], values: Any) -> None:
        index, price, deposit = values
        gas, before = self.requests[topics[0], index]
        assert price > before and deposit == gas * (price - before)
        self.locked += deposit
        self.requests[topics[0], index] = gas, price

    def _on_Answered(self, topics: list[bytes], values: Any) -> None:
        job, (index, deposit, paid, *_) = self.jobs[topics[0]], values
        gas, price = self.requests.pop((topics[0], index))
        pay = gas * min(price, self.shown)
        assert (deposit, paid) == (gas * price, pay)
        assert not self.read("getRequests", topics[0])[index][-1]
        self._pay(job.trainer, pay)
        self._pay(job.client, gas * price - pay)

    def _on_Dropped(self, topics: list[bytes], values: Any) -> None:
        gas, price = self.requests.pop((topics[0], values[0]))
        assert values[1] == gas * price and self.read("getRequests", topics[0])[values[0]][-1]
        self._pay(self.jobs[topics[0]].client, gas * price)

    def _deposits(self, job: bytes) -> int:
        """Remove the job's unanswered requests; the wei of their deposits, which go back."""
        own = [self.requests.pop(key) for key in list(self.requests) if key[0] == job]
        return sum(gas * price for gas, price in own)

    def _on_Declined(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        quarter = job.spec.reward // 4
        deposits = self._deposits(topics[0])
        assert values[0] == deposits
        self._pay(job.client, quarter + deposits)
        self._pay(job.trainer, quarter + job.spec.trainer_bond)
        self._burn(job.spec.reward - 2 * quarter)

    def _on_NotDelivered(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        fault, caller, paid, deposits = values
        assert deposits == self._deposits(topics[0])
        assert paid == 0 or fault in (2, 3)
        assert paid <= job.spec.trainer_bond // 2
        self._pay(caller, paid)
        self._pay(job.client, job.spec.reward + deposits)
        self._burn(job.spec.trainer_bond - paid)

    def _on_Delivered(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        self._pay(job.trainer, job.spec.reward + job.spec.trainer_bond)
        assert self.node.now > job.since + job.spec.complaint_window

    def _on_Challenged(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        self.locked += job.spec.auditor_bond + job.spec.fee
        assert self.time <= job.since + job.spec.challenge_window
        self.ended[topics[0], int.from_bytes(topics[1], "big")] = Status.OPEN

    def _on_Selected(self, topics: list[bytes], values: Any) -> None:
        self.moved.add((topics[0], int.from_bytes(topics[1], "big")))

    def _on_Dismissed(self, topics: list[bytes], values: Any) -> None:
        job, number = self.jobs[topics[0]], int.from_bytes(topics[1], "big")
        timeout = CAUSES[values[0]] == "timeout"
        self.ended[topics[0], number] = Status.LAPSED if timeout else Status.DISMISSED
        self._pay(job.trainer, job.spec.auditor_bond // 2)
        self._burn(job.spec.auditor_bond - job.spec.auditor_bond // 2 + job.spec.fee)
        place = (Level.ELEMENT, self.disputes[topics[0], number].position)
        if not timeout and (topics[0], place) in self.marked:
            self._opens(topics[0], *place)

    def _on_Convicted(self, topics: list[bytes], values: Any) -> None:
        """Half of the bond is burnt; after a timeout the winner gets at most the payment of an auditor's timeout."""
        (id_, spec), number = (topics[0], self.jobs[topics[0]].spec), int.from_bytes(topics[1], "big")
        auditor = self.disputes[id_, number].auditor
        guards = [d for (job, n), d in self.disputes.items() if job == id_ and self.ended.get((job, n)) is Status.OPEN]
        guarded = any(d.auditor == spec.guardian for d in guards)
        timeout = CAUSES[values[0]] == "timeout"
        amount = (min(spec.trainer_bond, spec.auditor_bond) if timeout else spec.trainer_bond) // 2
        assert (values[1], values[2]) == ((spec.guardian if guarded else auditor).lower(), amount)
        self._pay(auditor, spec.auditor_bond + spec.fee)
        self._pay(values[1], amount)
        self._burn(spec.trainer_bond - amount)
        self._pay(self.jobs[id_].client, spec.reward)
        self.ended[id_, number] = Status.WON
        self.convicted[id_] = number, CAUSES[values[0]], to_checksum_address(values[1])

    def _on_Refunded(self, topics: list[bytes], values: Any) -> None:
        job, number, spec = topics[0], int.from_bytes(topics[1], "big"), self.jobs[topics[0]].spec
        d = self.disputes[job, number]
        back = d.auditor == spec.guardian or contains(d, self.verdict(job), self.job(job), (job, number) in self.moved)
        assert values[0] == (spec.fee if back else 0)
        self._burn(spec.fee - values[0])
        self._pay(d.auditor, spec.auditor_bond + values[0])
        self.ended[job, number] = Status.VOID

    def _on_Withdrawn(self, topics: list[bytes], values: Any) -> None:
        account = "0x" + topics[0][12:].hex()
        assert self.credits[account] == values[1]
        self.credits[account] = 0

    def _on_Revealed(self, topics: list[bytes], values: Any) -> None:
        self._opens(topics[0], "node", Level(values[0]), values[1], topics[1])

    def _on_LeafOpened(self, topics: list[bytes], values: Any) -> None:
        self._opens(topics[0], "node", Level.TENSOR, 0, topics[1])

    def _on_SegmentPosted(self, topics: list[bytes], values: Any) -> None:
        self._posted(topics[0], Level.SEGMENT, int.from_bytes(topics[1], "big"), values[0])

    def _on_TracePosted(self, topics: list[bytes], values: Any) -> None:
        self._posted(topics[0], Level.TRACE, int.from_bytes(topics[1], "big"), values[0])

    def _on_PartialsPosted(self, topics: list[bytes], values: Any) -> None:
        d = self.disputes[topics[0], int.from_bytes(topics[1], "big")]
        leaves = [leaf_hash(Kind.PARTIAL, partial) for partial in values[0][: d.blocks]]
        self._posted(topics[0], Level.ELEMENT, d.position, Tree(Kind.PARTIAL, leaves).root)
        self._opens(topics[0], Level.ELEMENT, d.position)

    def _posted(self, job: bytes, kind: Level, place: int, root: bytes) -> None:
        """INVARIANT I5: written once, and never changed after."""
        assert (job, kind, place) not in self.posts
        log = self._post(job, kind, place).log
        assert any(log) == (kind is Level.SEGMENT and self.jobs[job].spec.mode != 0)
        self.posts[job, kind, place] = Post(root, log, self.time)

    def _post(self, job: bytes, kind: Level, place: int) -> Post:
        (post,) = self.read("getPosts", job, kind, [place])
        return Post(*post)

    def _compare_money(self) -> None:
        """INVARIANT I1: the contract's balance equals its obligations."""
        assert self.read("burnt") == self.burnt
        for account, amount in self.credits.items():
            assert self.read("credits", account) == amount
        owed = self.locked + sum(self.credits.values()) + self.burnt
        assert self.node.evm.get_balance(self.address) == owed + self.forced

    def _compare_job(self, job: bytes) -> None:
        before, after = self.jobs[job], self.job(job)
        # INVARIANT I2: phases advance; Final, Convicted, Expired, Undelivered and Declined are ends.
        allowed = {Phase.CREATED: (Phase.ACCEPTED, Phase.EXPIRED), Phase.ACCEPTED: (Phase.CLAIMED, Phase.EXPIRED)}
        ends = {
            Phase.CLAIMED: (Phase.FINAL, Phase.CONVICTED, Phase.DELIVERING),
            Phase.DELIVERING: (Phase.REVEALED, Phase.UNDELIVERED, Phase.DECLINED),
            Phase.REVEALED: (Phase.FINAL, Phase.UNDELIVERED),
        }
        assert after.phase is before.phase or after.phase in (allowed | ends)[before.phase]
        if before.phase in (Phase.FINAL, Phase.CONVICTED, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED):
            assert (after.since, after.run_root, after.disputes) == (before.since, before.run_root, before.disputes)
        self.jobs[job] = after
        found = self.standings(job)
        for one in found:
            self._compare_dispute(job, after, one)
        assert len(found) == after.disputes and after.open == sum(s.dispute.status is Status.OPEN for s in found)
        if (before.phase, after.phase) == (Phase.CLAIMED, Phase.CONVICTED):
            v = self.verdict(job)
            place = Position(v.level, v.height, v.part, v.operator, v.step, v.index).word
            assert place == found[v.dispute].dispute.position
            assert (v.dispute, v.cause, v.winner) == self.convicted[job] and v.time == self.time
        if after.phase is Phase.CLAIMED:
            self._compare_queue(job, after, found)
        for (owner, kind, place), post in self.posts.items():
            if owner == job:
                assert self._post(job, kind, place) == post

    def _compare_queue(self, job: bytes, state: Job, found: list[Standing]) -> None:
        """INVARIANT I14: the queue counts each awaited duty once; for the only open dispute it has its number."""
        open_ = [s for s in found if s.dispute.status is Status.OPEN]
        awaited = {thing for s in open_ if not s.opened_at and (thing := self._thing(job, state, s.dispute))}
        if state.queue & ALONE:
            assert len(open_) == 0 or [s.number for s in open_] == [state.queue ^ ALONE]
            return
        assert len(awaited) == state.queue
        self.marked |= {(job, thing) for thing in awaited}

    def _thing(self, job: bytes, state: Job, d: Dispute) -> tuple[Any, ...] | int:
        """The duty that a dispute waits for, or the time from which it no longer waits."""
        if d.level is Level.TRACE and d.height == 0:
            return d.turn_at  # one operator: its output is the trace root
        if d.index == 0 and d.level is d.entry and d.level is not Level.RUN:
            place = d.step // state.spec.interval + 1 if d.level is Level.SEGMENT else d.step
            root = self.posts[job, d.level, place].root
            if d.node == root and (time := self.openings.get((job, (d.level, place)))):
                return time
        if d.level is Level.RUN and d.height == 0:
            return Level.SEGMENT, d.index + 1
        if d.level is Level.SEGMENT and d.height == 0:
            return Level.TRACE, d.step + d.index
        if d.level >= Level.ELEMENT or (d.level is Level.STATE and d.height == 0):
            return Level.ELEMENT, d.position
        return "node", d.level, d.height, d.node

    def _opened_at(self, job: bytes, state: Job, d: Dispute) -> int:
        """Time of the opening that a dispute waits for; 0: not yet."""
        thing = self._thing(job, state, d)
        return thing if isinstance(thing, int) else self.openings.get((job, thing), 0)

    def _compare_dispute(self, job: bytes, state: Job, found: Standing) -> None:
        new, old = found.dispute, self.disputes.get((job, found.number))
        self.disputes[job, found.number] = new
        assert new.status is self.ended[job, found.number]
        live = new.status is Status.OPEN and state.phase is Phase.CLAIMED
        assert found.opened_at == (self._opened_at(job, state, new) if live else 0)
        assert (found.turn is not None) == live
        if old is None:
            return
        # INVARIANT I4: budgets never grow.
        assert new.trainer_left <= old.trainer_left and new.auditor_left <= old.auditor_left
        # INVARIANT I3: each select goes strictly down.
        if new.position != old.position or new.node != old.node:
            assert (new.level, -new.height) > (old.level, -old.height)
        if old.status is not Status.OPEN:
            assert new == old
