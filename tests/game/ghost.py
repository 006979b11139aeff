"""A model of the game that knows only its events: after every transaction the contract must agree with it, to the wei
(I1..I6).

In: a RevmNode and a game's address; it calls the contract without web3, so that it can afford to look after every
single call.
"""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from eth_abi import decode
from revm_calls import DATA, SELECTORS, TOPICS, decode_output
from revm_node import RICH, RevmNode

from vgame.chain.records import Dispute, Job, JobSpec, Level, Phase, Status, Turn

ALONE = 1 << 23  # in a job's queue: the rest is the number of the only open dispute


@dataclass
class Ghost:
    """Money and progress, as the events tell them."""

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
    # of a convicted job: what stipends and the reward are paid from
    pool: dict[bytes, int] = field(default_factory=dict)
    settled: set[bytes] = field(default_factory=set)
    requests: dict[tuple[bytes, int, int], tuple[int, int]] = field(default_factory=dict)  # gas, price
    shown: int = 0  # the base fee that the contract sees
    posted: dict[tuple[str, bytes, int], str] = field(default_factory=dict)

    # ---- reading the contract ----

    def ask(self, name: str, *arguments: bytes | int) -> str:
        words = b"".join(a if isinstance(a, bytes) else a.to_bytes(32, "big") for a in arguments)
        data = "0x" + (SELECTORS[name] + words).hex()
        return self.node.call({"from": RICH[0], "to": self.address, "data": data})

    def read(self, name: str, *arguments: bytes | int) -> Any:
        return decode_output(name, self.ask(name, *arguments))[0]

    def job(self, job: bytes) -> Job:
        phase, *rest, spec = self.read("getJob", job)
        return Job(Phase(phase), *rest, JobSpec(*spec))

    def dispute(self, job: bytes, number: int) -> Dispute:
        d = Dispute(*self.read("getDispute", job, number))
        values = {name: getattr(d, name) for name in d.__slots__}
        return Dispute(**values | {"level": Level(d.level), "status": Status(d.status), "entry": Level(d.entry)})

    # ---- going back ----

    def memory(self) -> dict[str, Any]:
        """Everything that it knows, for `remember`."""
        return {name: copy(value) for name, value in vars(self).items() if name != "node"}

    def remember(self, memory: dict[str, Any]) -> None:
        vars(self).update({name: copy(value) for name, value in memory.items()})

    # ---- after every transaction ----

    def check(self) -> None:
        """Follow what happened since the last check, then compare."""
        logs = [log for r in list(self.node.receipts.values())[self.seen :] for log in r["logs"]]
        self.seen = len(self.node.receipts)
        touched = set()
        for log in logs:
            if log["address"].lower() == self.address.lower():
                touched |= self._follow(log)
        self._compare_money()
        for job in touched:
            self._compare_job(job)
        self.calls += 1

    def _follow(self, log: dict[str, Any]) -> set[bytes]:
        name, *topics = TOPICS[log["topics"][0]], *(bytes.fromhex(t[2:]) for t in log["topics"][1:])
        values = decode(DATA[name], bytes.fromhex(log["data"][2:]))
        handler = getattr(self, f"_on_{name}", None)
        if handler:
            handler(topics, values)
        return set() if name == "Withdrawn" else {topics[0]}

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
        tensor, chunk, price, deposit = values
        elements = self.read("getRequest", topics[0], tensor, chunk)[0]
        gas = self.read("answerGas", topics[0], elements, chunk)
        assert deposit == gas * price
        self.locked += deposit
        self.requests[topics[0], tensor, chunk] = gas, price

    def _on_Answered(self, topics: list[bytes], values: Any) -> None:
        job, (tensor, chunk, *_) = self.jobs[topics[0]], values
        gas, price = self.requests.pop((topics[0], tensor, chunk))
        pay = gas * min(price, self.shown)
        assert values[2:4] == (gas * price, pay)
        self._pay(job.trainer, pay)
        self._pay(job.client, gas * price - pay)

    def _deposits(self, job: bytes) -> int:
        """Those of the requests that are not answered go back."""
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
        assert self.node.now <= job.since + job.spec.challenge_window

    def _on_Dismissed(self, topics: list[bytes], values: Any) -> None:
        job = self.jobs[topics[0]]
        self._pay(job.trainer, job.spec.auditor_bond // 2)
        self._burn(job.spec.auditor_bond - job.spec.auditor_bond // 2 + job.spec.fee)

    def _on_Convicted(self, topics: list[bytes], values: Any) -> None:
        job, number = self.jobs[topics[0]], int.from_bytes(topics[1], "big")
        _, stipend = values
        self._pay(self.disputes[topics[0], number].auditor, job.spec.auditor_bond + job.spec.fee + stipend)
        self._pay(job.client, job.spec.reward)
        self.pool[topics[0]] = job.spec.trainer_bond // 2 - stipend
        assert self.pool[topics[0]] >= 0

    def _on_Refunded(self, topics: list[bytes], values: Any) -> None:
        job, number = topics[0], int.from_bytes(topics[1], "big")
        (fee, stipend), spec = values, self.jobs[job].spec
        assert fee in (0, spec.fee)
        self._burn(spec.fee - fee)
        self._pay(self.disputes[job, number].auditor, spec.auditor_bond + fee + stipend)
        self.pool[job] -= stipend
        assert self.pool[job] >= 0 and (stipend == 0 or job not in self.settled)

    def _on_RewardPaid(self, topics: list[bytes], values: Any) -> None:
        bond, (reward,) = self.jobs[topics[0]].spec.trainer_bond, values
        assert reward == self.pool[topics[0]]  # with the stipends half of the bond
        self._burn(bond - bond // 2)
        self.settled.add(topics[0])
        winner = "0x" + topics[1][12:].hex()
        self._burn(reward) if int(winner, 16) == 0 else self._pay(winner, reward)

    def _on_Withdrawn(self, topics: list[bytes], values: Any) -> None:
        account = "0x" + topics[0][12:].hex()
        assert self.credits[account] == values[1]
        self.credits[account] = 0

    def _on_SegmentPosted(self, topics: list[bytes], values: Any) -> None:
        self._once("segment", topics[0], int.from_bytes(topics[1], "big"), values[0])

    def _on_TracePosted(self, topics: list[bytes], values: Any) -> None:
        self._once("trace", topics[0], int.from_bytes(topics[1], "big"), values[0])

    def _once(self, kind: str, job: bytes, place: int, root: bytes) -> None:
        """INVARIANT I5: written once, and never changed after."""
        assert (kind, job, place) not in self.posted
        self.posted[kind, job, place] = root

    def _compare_money(self) -> None:
        """INVARIANT I1: what the contract holds is what it owes."""
        assert self.read("burnt") == self.burnt
        for account, amount in self.credits.items():
            assert self.read("credits", int(account, 16)) == amount
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
        numbers = range(after.disputes)
        for number in numbers:
            self._compare_dispute(job, number)
        found = [self.disputes[job, n] for n in numbers]
        assert after.open == sum(d.status is Status.OPEN for d in found)
        if after.phase is Phase.CLAIMED:
            self._compare_queue(job, after)
        for (kind, owner, place), root in self.posted.items():
            if owner == job:
                assert self.read(f"{kind}Root", job, place) == root

    def _compare_queue(self, job: bytes, state: Job) -> None:
        """INVARIANT I14: the queue counts each thing that is awaited once; of the only open dispute it knows the
        number."""
        open_ = {n: d for (id_, n), d in self.disputes.items() if id_ == job and d.status is Status.OPEN}
        if state.queue & ALONE:
            assert len(open_) == 0 or list(open_) == [state.queue ^ ALONE]
            return
        awaited = {thing for n, d in open_.items() if (thing := self._awaited(job, state, n, d))}
        assert len(awaited) == state.queue

    def _awaited(self, job: bytes, state: Job, number: int, d: Dispute) -> tuple[Any, ...] | None:
        """What a dispute waits for: None if it is open. Late openings have another deadline."""
        turn, deadline = decode_output("turn", self.ask("turn", job, number))
        if turn != Turn.TRAINER and (
            turn != Turn.TRAINER_EXPIRED or deadline != d.turn_at + d.others * state.slot + d.trainer_left
        ):
            return None
        if d.level is Level.RUN and d.height == 0:
            return "segment", d.index
        if d.level is Level.SEGMENT and d.height == 0:
            return "trace", d.step + d.index
        if d.level >= Level.ELEMENT or (d.level is Level.STATE and d.height == 0):
            return d.level, d.step, d.operator, d.index
        return d.level, d.height, d.node

    def _compare_dispute(self, job: bytes, number: int) -> None:
        new, old = self.dispute(job, number), self.disputes.get((job, number))
        self.disputes[job, number] = new
        if old is None:
            return
        # INVARIANT I4: budgets never grow.
        assert new.trainer_left <= old.trainer_left and new.auditor_left <= old.auditor_left
        # INVARIANT I3: each select goes strictly down.
        if (new.node, new.level, new.height, new.index) != (old.node, old.level, old.height, old.index):
            assert (new.level, -new.height) > (old.level, -old.height)
        if old.status is not Status.OPEN:
            assert new == old
