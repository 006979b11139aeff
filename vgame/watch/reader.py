"""Reads a game, again and again, and gives the state that a page shows.

What can change no more is read once: transactions, times of blocks, jobs that have ended. Only views and events are
asked for, so any endpoint will do; nothing is signed.

INVARIANT: a state is that of one block, so its amounts agree whatever is mined while they are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vgame.chain.connection import RefusedError, TransactionNotFound
from vgame.chain.game import Game
from vgame.chain.records import IN_DELIVERY, Event, Job, Phase, delivery_window
from vgame.errors import ChainError, EndpointError, VgameError
from vgame.watch.differences import State
from vgame.watch.money import flows, owed
from vgame.watch.programs import Programs
from vgame.watch.state import JobFacts, job_records
from vgame.watch.transactions import Transaction

LOOKS = 3  # at a newest block that is undone, or not known, while it is read
LIVE = 180  # seconds that a chain's clock may be behind the wall's where time passes by itself


@dataclass
class Reader:
    """`names`: address -> who that is, `titles`: job -> what it is called; a caller may add to both at any time."""

    game: Game
    programs: Programs = field(default_factory=Programs)
    names: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    budget: int = 400  # transactions that are looked up at one look; the others follow at the next ones

    def __post_init__(self) -> None:
        self._looking = threading.Lock()  # one look at a time: the chain is set to a block
        self._transactions: dict[str, Transaction] = {}
        self._proofs: dict[str, bytes] = {}
        self._times: dict[int, int] = {}
        self._jobs: dict[str, tuple[Any, State, JobFacts]] = {}

    def look(self, beside: Callable[[State], State] = lambda _: {}) -> State:
        """The state after the newest block; `beside` adds records, and reads at the same block."""
        chain = self.game.chain
        problem: ChainError = EndpointError(f"{chain.url} has shown {LOOKS} newest blocks that it then undid")
        with self._looking:
            for _ in range(LOOKS):
                try:
                    with chain.pinned() as newest:
                        state = self._read(newest.time)
                        state |= beside(state)
                    if chain.block(newest.number) == newest:  # logs are asked for by number
                        return state
                except (RefusedError, EndpointError) as refusal:  # the block was undone, or this node lags
                    problem = refusal
            raise problem

    def _read(self, now: int) -> State:
        events = self.game.events()
        complete = self._look_up(events)
        state, facts = dict[str, Any](), []
        for job, own in _by_job(events).items():
            records, told = self._job(job, own)
            state |= records
            facts.append(told)
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
        """Its records; those of before, where nothing has changed."""
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
        """Does the contract owe every account what follows from the events?"""
        paid = [flow for told in facts for flow in flows(told.job, told.events)]
        expected = owed(paid, (e for e in events if e.name == "Withdrawn"))
        return all(self.game.credits(account) == wei for account, wei in expected.items())

    # ---- transactions ----

    def _look_up(self, events: Sequence[Event]) -> bool:
        """Read the newest transactions that are not known yet; are all known now?"""
        missing = list(
            dict.fromkeys(e.transaction for e in reversed(events) if e.transaction not in self._transactions)
        )
        blocks = {e.transaction: e.block for e in events}
        for digest in missing[: self.budget]:
            try:
                self._transactions[digest] = self._transaction(digest, blocks[digest])
            except (ChainError, TransactionNotFound):  # not there yet, or no more: the next look will tell
                continue
        return all(digest in self._transactions for digest in missing)

    def _transaction(self, digest: str, block: int) -> Transaction:
        sender, data, gas = self._alone(digest, block) or self._asked(digest)
        name, number = self.game.called(data)
        if name == "prove":
            self._keep_proof(digest, data)
        return Transaction(name, number, sender, gas, len(data), self._time(block), block)

    def _alone(self, digest: str, block: int) -> tuple[str, bytes, int] | None:
        """Sender, calldata and gas of a transaction that its block has alone: one request, where some nodes search all
        blocks for a transaction or a receipt. None where it is not alone, or the node does not show it so."""
        web3 = self.game.chain.web3
        found = self.game.chain.ask(lambda: web3.eth.get_block(block, full_transactions=True))
        self._times[block] = self.game.chain.ask(lambda: int(found["timestamp"]))
        told, gas = found.get("transactions", []), found.get("gasUsed")
        if len(told) != 1 or gas is None or not hasattr(told[0], "get") or bytes(told[0]["hash"]).hex() != digest:
            return None
        return str(told[0]["from"]), bytes(told[0]["input"]), int(gas)

    def _asked(self, digest: str) -> tuple[str, bytes, int]:
        web3, ask = self.game.chain.web3, self.game.chain.ask
        tx = ask(lambda: web3.eth.get_transaction(bytes.fromhex(digest)))
        receipt = ask(lambda: web3.eth.get_transaction_receipt(bytes.fromhex(digest)))
        return ask(lambda: (str(receipt["from"]), bytes(tx["input"]), int(receipt["gasUsed"])))

    def _keep_proof(self, digest: str, data: bytes) -> None:
        """The bytes that the referee was shown; a stranger can encode a call in ways that nobody reads."""
        try:
            _, arguments = self.game.contract.decode_function_input(data)
            self._proofs[digest] = bytes(arguments["proof"])
        except Exception:  # any bytes can be sent, so reading them can raise anything
            return

    def _time(self, block: int) -> int:
        if block not in self._times:
            found = self.game.chain.ask(lambda: self.game.chain.web3.eth.get_block(block))
            self._times[block] = int(found["timestamp"])
        return self._times[block]


def _by_job(events: Sequence[Event]) -> dict[bytes, list[Event]]:
    """Events of each job that was ordered, oldest job first."""
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
    """What a page says while nothing can be read."""
    return {"text": str(error)}
