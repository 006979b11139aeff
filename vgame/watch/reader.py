"""Polls a game, and gives the state that a page shows.

Final data are read once: transactions, times of blocks, jobs that have ended. Only views and events are read, so any
endpoint suffices; nothing is signed.

INVARIANT: a state is that of one block, so its amounts agree even if blocks are mined while they are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vgame.chain.abi import called
from vgame.chain.connection import RefusedError, TransactionNotFound
from vgame.chain.game import Game
from vgame.chain.records import IN_DELIVERY, Event, Job, Phase, delivery_window
from vgame.errors import ChainError, EndpointError, VgameError
from vgame.watch.differences import State
from vgame.watch.money import flows, owed
from vgame.watch.programs import Programs
from vgame.watch.state import JobFacts, job_records
from vgame.watch.transactions import Transaction

LOOKS = 3  # attempts at a newest block that is undone or unknown while it is read
LIVE = 180  # maximum difference in seconds between a live chain's time and this machine's clock


@dataclass
class Reader:
    """`names`: by address, `titles`: by job; a caller may add to both at any time."""

    game: Game
    programs: Programs = field(default_factory=Programs)
    names: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    budget: int = 400  # transactions looked up in one read; the others follow in the next ones

    def __post_init__(self) -> None:
        self._looking = threading.Lock()  # one read at a time: the chain is set to a block
        self._transactions: dict[str, Transaction] = {}
        self._proofs: dict[str, bytes] = {}
        self._times: dict[int, int] = {}
        self._jobs: dict[str, tuple[Any, State, JobFacts]] = {}

    def look(self, beside: Callable[[State], State] = lambda _: {}) -> State:
        """The state after the newest block; `beside` adds records, and reads at the same block."""
        chain = self.game.chain
        problem: ChainError = EndpointError(f"{chain.url} has shown {LOOKS} newest blocks that it then undid")
        with self._looking:
            if chain.lost:
                chain.turn()
            for _ in range(LOOKS):
                try:
                    with chain.pinned() as newest:
                        state = self._read(newest.time)
                        state |= beside(state)
                    if chain.block(newest.number) == newest:  # logs are requested by number
                        return state
                except (RefusedError, EndpointError) as refusal:  # the block was undone, or this node lags
                    problem = refusal
            raise problem

    def _read(self, now: int) -> State:
        events = self.game.events()
        complete = self._look_up(events)
        state, facts = dict[str, Any](), []
        for job, own in _by_job(events).items():
            records, fact = self._job(job, own)
            state |= records
            facts.append(fact)
        state["game"] = {
            "chain": self.game.chain.chain_id,
            "address": self.game.address,
            "now": now,
            "live": abs(time.time() - now) < LIVE,
            "burnt": str(self.game.burnt()),
            "events": len(events),
            "complete": complete,
            "names": dict(self.names),
            "titles": dict(self.titles),
            "agrees": self._agrees(facts, events),
        }
        return state

    # ---- one job ----

    def _job(self, job: bytes, events: Sequence[Event]) -> tuple[State, JobFacts]:
        """The records of a job; the previous ones if nothing has changed."""
        name = job.hex()
        known = sum(e.transaction in self._transactions for e in events)
        seen = self._jobs.get(name)
        if seen and seen[0] == (len(events), events[-1].transaction, known, len(self.programs)) and _over(seen[2].job):
            return seen[1], seen[2]
        facts = self._facts(name, job, events)
        records = job_records(facts, self._transactions, self.programs)
        self._jobs[name] = ((len(events), events[-1].transaction, known, len(self.programs)), records, facts)
        return records, facts

    def _facts(self, name: str, job: bytes, events: Sequence[Event]) -> JobFacts:
        state = self.game.job(job)
        verdict = self.game.verdict(job) if state.phase is Phase.CONVICTED else None
        delivery, exchange = None, None
        if state.phase in IN_DELIVERY:
            exchange = self.game.exchange(job)
            delivery = delivery_window(state, exchange, self.game.chain.now())
        disputes = list(self.game.all_disputes(job))
        return JobFacts(name, state, disputes, events, verdict, self._proofs, delivery, exchange)

    def _agrees(self, facts: Iterable[JobFacts], events: Sequence[Event]) -> bool:
        """Whether the contract's credit of every account agrees with the events."""
        paid = [flow for each in facts for flow in flows(each.job, each.events)]
        expected = owed(paid, (e for e in events if e.name == "Withdrawn"))
        return all(self.game.credits(account) == wei for account, wei in expected.items())

    # ---- transactions ----

    def _look_up(self, events: Sequence[Event]) -> bool:
        """Read the newest unknown transactions; returns whether all are known."""
        missing = list(
            dict.fromkeys(e.transaction for e in reversed(events) if e.transaction not in self._transactions)
        )
        blocks = {e.transaction: e.block for e in events}
        for digest in missing[: self.budget]:
            try:
                self._transactions[digest] = self._transaction(digest, blocks[digest])
            except (ChainError, TransactionNotFound):  # not there yet, or undone: read again next time
                continue
        return all(digest in self._transactions for digest in missing)

    def _transaction(self, digest: str, block: int) -> Transaction:
        sender, data, gas = self._alone(digest, block) or self._searched(digest)
        name, number = called(self.game.contract, data)
        if name == "prove":
            self._keep_proof(digest, data)
        return Transaction(name, number, sender, gas, len(data), self._time(block), block)

    def _alone(self, digest: str, block: int) -> tuple[str, bytes, int] | None:
        """Sender, calldata and gas of the only transaction of its block, by one request (some nodes search all blocks
        for a transaction or a receipt). None if it is not the only one, or the node's answer is incomplete."""
        web3 = self.game.chain.web3
        found = self.game.chain.ask(lambda: web3.eth.get_block(block, full_transactions=True))
        self._times[block] = self.game.chain.ask(lambda: int(found["timestamp"]))
        transactions, gas = found.get("transactions", []), found.get("gasUsed")
        if (
            len(transactions) != 1
            or gas is None
            or not hasattr(transactions[0], "get")
            or bytes(transactions[0]["hash"]).hex() != digest
        ):
            return None
        return str(transactions[0]["from"]), bytes(transactions[0]["input"]), int(gas)

    def _searched(self, digest: str) -> tuple[str, bytes, int]:
        web3, ask = self.game.chain.web3, self.game.chain.ask
        tx = ask(lambda: web3.eth.get_transaction(bytes.fromhex(digest)))
        receipt = ask(lambda: web3.eth.get_transaction_receipt(bytes.fromhex(digest)))
        return ask(lambda: (str(receipt["from"]), bytes(tx["input"]), int(receipt["gasUsed"])))

    def _keep_proof(self, digest: str, data: bytes) -> None:
        """Store the proof in a call to the referee; calls with unusual encodings are skipped."""
        try:
            _, arguments = self.game.contract.decode_function_input(data)
            self._proofs[digest] = bytes(arguments["proof"])
        except Exception:  # untrusted bytes: reading them can raise anything
            return

    def _time(self, block: int) -> int:
        if block not in self._times:
            found = self.game.chain.ask(lambda: self.game.chain.web3.eth.get_block(block))
            self._times[block] = int(found["timestamp"])
        return self._times[block]


def _by_job(events: Sequence[Event]) -> dict[bytes, list[Event]]:
    """Events of each job, oldest job first."""
    found: dict[bytes, list[Event]] = {}
    for event in events:
        if event.name == "JobCreated":
            found.setdefault(event.args["job"], [])
        if (job := event.args.get("job")) in found:
            found[job].append(event)
    return found


def _over(job: Job) -> bool:
    return job.phase in (Phase.FINAL, Phase.EXPIRED, Phase.UNDELIVERED, Phase.DECLINED) or (
        job.phase is Phase.CONVICTED and not job.open
    )


def problem(error: VgameError) -> dict[str, str]:
    """The record of an error that prevents reading."""
    return {"text": str(error)}
