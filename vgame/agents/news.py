"""The events of a role's game, one line each: `sent`, a transaction with gas, money and hash; `dispute` and `verdict`,
the start and the end of an own dispute; `phase`, the end of a job or claim.

In: a game whose wallet sends, and the jobs and disputes that a player reads. This module only reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vgame.chain.abi import full_abi
from vgame.chain.game import Game
from vgame.chain.listener import Listener
from vgame.chain.records import CAUSES, Event, Job, Phase, Standing, Status
from vgame.system.progress import Reporter

ETHER = 10**18
#: The end of a dispute, by its status.
ENDS = {
    Status.DISMISSED: "the auditor was wrong and loses its bond",
    Status.LAPSED: "the auditor ran out of time and loses its bond",
    Status.WON: "the auditor was right",
    Status.VOID: "ended with the claim, the auditor has its bond back",
}
#: Phases that end a job or a claim.
JOB_ENDS = {
    Phase.CONVICTED: "the trainer is convicted",
    Phase.FINAL: "the claim is final, the trainer is paid",
    Phase.UNDELIVERED: "the state was not delivered",
    Phase.DECLINED: "the client has declined the delivery",
    Phase.EXPIRED: "no claim was posted in time, the job has expired",
}


class News(Listener):
    """Reports every transaction of a game's wallet, and every change in the jobs and disputes that its players read."""

    def __init__(self, game: Game, reporter: Reporter) -> None:
        self.game, self.reporter, self.account = game, reporter, game.wallet and game.wallet.address
        self.phases: dict[bytes, Phase] = {}
        self.statuses: dict[tuple[bytes, int], Status] = {}
        game.listener = self

    def sent(self, name: str, args: tuple[Any, ...], value: int, receipt: Any) -> None:
        """Report a transaction and the money that it moved."""
        with suppress(Exception):  # the move is made; an error in the report must not matter
            self._sent(name, args, value, receipt)

    def _sent(self, name: str, args: tuple[Any, ...], value: int, receipt: Any) -> None:
        gas, fee = receipt["gasUsed"], receipt["gasUsed"] * receipt["effectiveGasPrice"]
        digest, place = "0x" + bytes(receipt["transactionHash"]).hex(), place_of(name, args)
        what = f"{name}, dispute {place['dispute']}" if "dispute" in place else name
        what += f" of job {place['job'][:16]}" if "job" in place else ""
        events = map(self.game.contents.decode, receipt["logs"])
        drawn = sum(e.args["amount"] for e in events if e and e.name == "Withdrawn")
        paid = f", {ether(value)} paid in" if value else ""
        paid += f", {ether(drawn)} withdrawn" if drawn else ""
        text = f"{what}{paid}: {gas:,} gas for {ether(fee)}, transaction {digest}"
        fields = {"gas": gas, "fee": fee, "value": value, "withdrawn": drawn, "block": receipt["blockNumber"]}
        self.reporter.emit("sent", text, move=name, transaction=digest, **place, **fields)

    def job(self, job: bytes, state: Job) -> None:
        """Report the end of a job or claim, once."""
        before = self.phases.get(job)
        self.phases[job] = state.phase
        if state.phase is before or state.phase not in JOB_ENDS:
            return
        text, fields = JOB_ENDS[state.phase], dict[str, Any]()
        if state.phase is Phase.CONVICTED:
            more, fields = self._conviction(job, state)
            text += more
        place = {"job": job.hex(), "phase": state.phase.name.lower()}
        self.reporter.emit("phase", f"job {job.hex()[:16]}: {text}", **place, **fields)

    def _conviction(self, job: bytes, state: Job) -> tuple[str, dict[str, Any]]:
        """The dispute that convicted the trainer, the winner and its part of the bond; empty if the endpoint does not
        show them."""
        with suppress(Exception):
            event: Event = self.game.content("Convicted", job, self.game.verdict(job).time, lambda e: e)
            a, digest = event.args, "0x" + event.transaction.removeprefix("0x")
            winner = "this account" if a["winner"] == self.account else a["winner"]
            text = f" by dispute {a['dispute']} ({CAUSES[a['cause']]}): {ether(a['amount'])} of its bond to {winner}"
            fields = {"cause": CAUSES[a["cause"]], "winner": a["winner"], "amount": a["amount"], "transaction": digest}
            return f"{text}, transaction {digest}", fields | {"dispute": a["dispute"]}
        return "", {}

    def disputes(self, job: bytes, state: Job, standings: Sequence[Standing]) -> None:
        """Report the start and the end of own disputes."""
        for number, d in ((s.number, s.dispute) for s in standings):
            if self.account not in (state.trainer, d.auditor) or self.statuses.get((job, number)) is d.status:
                continue
            self.statuses[job, number] = d.status
            begun = d.status is Status.OPEN
            change = f"begins in the tree {d.entry.name.lower()}, by {d.auditor}" if begun else ENDS[d.status]
            place = {"job": job.hex(), "dispute": number, "auditor": d.auditor, "status": d.status.name.lower()}
            text = f"dispute {number} of job {job.hex()[:16]}: {change}"
            self.reporter.emit("dispute" if begun else "verdict", text, **place)


def place_of(name: str, args: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a call that identify a job (in hex) and a dispute (its number)."""
    inputs = next(e["inputs"] for e in full_abi() if e["type"] == "function" and e["name"] == name)
    given = dict(zip((i["name"] for i in inputs), args, strict=True))
    job = {"job": given["id"].hex()} if "id" in given else {}
    return job | ({"dispute": given["n"]} if "n" in given else {})


def ether(wei: int) -> str:
    """An amount in ether, as text."""
    return f"{wei / ETHER:.6g} ether"
