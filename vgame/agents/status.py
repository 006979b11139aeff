"""The state on chain, for people and programs: jobs, claims, disputes, clocks, money; and alarms for the players.

In: a game (read only). Out: plain data, from the chain only; an own run can be given for comparison.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

from rich.table import Table

from vgame.agents.news import ENDS
from vgame.agents.retry import Retry
from vgame.agents.times import countdown
from vgame.chain.final import most
from vgame.chain.game import Game
from vgame.chain.records import IN_DELIVERY, Dispute, Job, Phase, Standing, Status, Turn, delivery_window
from vgame.dispute.player import DISPUTE_GAS
from vgame.errors import ChainError
from vgame.system.progress import Reporter

WINDOWS = {Phase.CREATED: "accept_window", Phase.ACCEPTED: "claim_window", Phase.CLAIMED: "challenge_window"}
ETHER = 10**18


@dataclass(frozen=True)
class DisputeState:
    """One dispute: the side to move, its time left, and the contested place."""

    number: int
    auditor: str
    status: str
    level: str
    step: int | None
    turn: str | None = None
    seconds_left: int | None = None
    seconds_waiting: int | None = None


@dataclass(frozen=True)
class JobState:
    """One job. Money in wei, times in seconds."""

    job: str
    name: str  # given by the client
    phase: str
    client: str
    trainer: str | None
    run_root: str | None
    diverged_at: int | None
    steps: int
    window: str | None  # the window that runs now
    seconds_left: int | None
    requests_open: int  # chunks of the state that the client has requested and the trainer has not answered
    reward: int
    trainer_bond: int
    auditor_bond: int
    disputes: list[DisputeState]


def read_job(game: Game, job: bytes, now: int, known: Job | None = None) -> JobState:
    """A job and its disputes at one time; `known`: the job if it was already read."""
    state = known or game.job(job)
    window, end, asked = WINDOWS.get(state.phase), 0, 0
    if window:
        end = state.since + getattr(state.spec, window)
    elif state.phase in IN_DELIVERY:
        exchange = game.exchange(job)
        (window, end), asked = delivery_window(state, exchange, now), exchange.open
    claimed = state.phase >= Phase.CLAIMED and any(state.run_root)
    return JobState(
        job.hex(), state.name, state.phase.name.lower(), state.client,
        state.trainer if int(state.trainer, 16) else None,
        state.run_root.hex() if claimed else None, state.diverged_at or None, state.spec.steps,
        window, end - now if window else None, asked,
        state.spec.reward, state.spec.trainer_bond, state.spec.auditor_bond,
        [_dispute(s, now) for s in game.all_disputes(job, state.disputes)],
    )  # fmt: skip


def _dispute(standing: Standing, now: int) -> DisputeState:
    d, turn, deadline = standing.dispute, standing.turn, standing.deadline
    place = (standing.number, d.auditor, d.status.name.lower(), d.level.name.lower(), d.step or None)
    if turn is None:
        return DisputeState(*place)
    begin = deadline - _left(turn, d)
    return DisputeState(*place, turn.name.lower().replace("_", " "), deadline - now, max(0, now - begin))


def _left(turn: Turn, d: Dispute) -> int:
    return d.trainer_left if turn in (Turn.TRAINER, Turn.TRAINER_EXPIRED) else d.auditor_left


def jobs_of(game: Game, only: bytes | None = None, clients: Sequence[str] = ()) -> list[bytes]:
    """One job and the orders of clients, from the contract's state; if none is given, all orders of a game from its
    events, oldest first."""
    if only or clients:
        return [*([only] if only else []), *(job for client in clients for job in game.orders_of(client))]
    return [event.args["job"] for event in game.events("JobCreated")]


def read_game(game: Game, only: bytes | None = None, clients: Sequence[str] = ()) -> list[JobState]:
    """The jobs of `jobs_of`; ChainError if the job `only` does not exist."""
    game.chain.turn()
    with game.chain.pinned():
        now = game.chain.now()
        jobs = jobs_of(game, only, clients)
        states = game.jobs(jobs)
        if only and states[0].phase is Phase.NONE:
            raise ChainError(f"there is no job {only.hex()} at {game.address}; check the job and the chain")
        return [read_job(game, job, now, state) for job, state in zip(jobs, states, strict=True)]


# ---- status ----


def show_status(
    game: Game, reporter: Reporter, only: bytes | None, account: str | None, follow: float | None,
    clients: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print the state once, or after every change (`follow`); then errors of the endpoint are retried."""
    if follow is None:
        _print_status(game, reporter, only, account, None, clients)
        return
    before, retry = None, Retry(reporter, follow)
    while True:
        with retry:
            before = _print_status(game, reporter, only, account, before, clients)
            time.sleep(follow)


def _print_status(
    game: Game, reporter: Reporter, only: bytes | None, account: str | None, before: Any, clients: Sequence[str]
) -> Any:
    """Print the state if it has changed; returns the state without times, for the next comparison."""
    jobs = read_game(game, only, clients)
    facts: dict[str, Any] = {"jobs": [asdict(j) for j in jobs], "burnt": game.burnt()}
    if account:
        facts["account"] = {
            "address": account, "balance": game.chain.balance(account), "credits": game.credits(account)
        }  # fmt: skip
    if (seen := _without_times(facts)) != before:
        reporter.emit("status", "", **facts)
        if not reporter.json_lines:
            reporter.console.print(_table(jobs))
            _say_money(reporter, facts)
    return seen


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if not k.startswith("seconds")}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def _say_money(reporter: Reporter, facts: dict[str, Any]) -> None:
    if account := facts.get("account"):
        reporter.emit(
            "money",
            f"{account['address']}: {account['balance'] / ETHER:.6f} ether, {account['credits'] / ETHER:.6f} to "
            "withdraw",
        )
    reporter.emit("money", f"burnt so far: {facts['burnt'] / ETHER:.6f} ether")


def _table(jobs: list[JobState]) -> Table:
    table = Table("job", "phase", "left", "dispute", "stands at", "to move", "left")
    for job in jobs:
        table.add_row(f"{job.job[:16]} {job.name}".rstrip(), _phase(job), countdown(job.seconds_left))
        for d in job.disputes:
            place = d.level if d.step is None else f"{d.level}, step {d.step}"
            table.add_row("", "", "", f"{d.number}: {_course(d)}", place, d.turn or "", countdown(d.seconds_left))
    return table


def _phase(job: JobState) -> str:
    """The phase; in a delivery also the running window and the open requests."""
    if job.window is None or job.window in WINDOWS.values():
        return job.phase
    requested = f", {job.requests_open} requested" if job.requests_open else ""
    return f"{job.phase}, {job.window.replace('_', ' ')}{requested}"


def _course(d: DisputeState) -> str:
    """`open`, or the end of the dispute in words."""
    return ENDS.get(Status[d.status.upper()], d.status)


# ---- monitor ----


Place = tuple[str, str | None, int | None]  # an alarm's kind, job and dispute
Shown = dict[int, set[Place]]  # by endpoint: the alarms of its last look


@dataclass(frozen=True)
class Alarm:
    """A condition that needs a player's attention now."""

    kind: str  # clock, timeout, stuck, claim, forecast, bond, balance
    text: str
    job: str | None = None
    dispute: int | None = None


def alarms(
    game: Game, account: str, forecast: Mapping[str, str] | None = None, clients: Sequence[str] = ()
) -> Iterator[Alarm]:
    """All alarms for `account`; `forecast`: own run root per job, hex."""
    cost = DISPUTE_GAS * sum(game.chain.fees())
    need, engaged, now = cost, 0, game.chain.now()
    jobs = jobs_of(game, clients=clients)
    for job, state in zip(jobs, game.jobs(jobs), strict=True):
        if not state.open and state.phase not in WINDOWS:  # no clock or window runs
            continue
        current = read_job(game, job, now, state)
        if state.phase in WINDOWS:
            yield from _about_bonds(current, cost)
            need = max(need, cost + state.spec.stake)
        engaged += sum(d.turn is not None and account in (state.trainer, d.auditor) for d in current.disputes)
        if (
            state.phase is Phase.ACCEPTED
            and state.trainer == account
            and current.seconds_left < state.spec.claim_window // 10
        ):
            text = f"job {current.job[:16]}: the claim is due in {countdown(current.seconds_left)}"
            yield Alarm("claim", text, current.job)
        mine = (forecast or {}).get(current.job)
        if state.phase is Phase.CLAIMED and mine and mine != current.run_root:
            text = f"job {current.job[:16]}: the claim is {current.run_root[:16]}, the own run has {mine[:16]}"
            yield Alarm("forecast", text, current.job)
        for d in current.disputes:
            yield from _about_clocks(current, state, d, account)
    if (owned := game.chain.balance(account)) < (need := max(need, cost * engaged)):
        text = f"{account} has {owned / ETHER:.6f} ether; {max(engaged, 1)} disputes need up to {need / ETHER:.6f}"
        if credit := game.credits(account):
            text += f"; {credit / ETHER:.6f} ether are owed to it and can be withdrawn"
        yield Alarm("balance", text)


def _about_bonds(job: JobState, cost: int) -> Iterator[Alarm]:
    for who, bond in (("auditor", job.auditor_bond), ("trainer", job.trainer_bond)):
        if bond // 2 < cost:
            text = (
                f"job {job.job[:16]}: half of the {who}'s bond is {bond / 2 / ETHER:.6f} ether, a dispute costs the "
                f"other side up to {cost / ETHER:.6f} in gas"
            )
            yield Alarm("bond", text, job.job)


def _about_clocks(job: JobState, state: Job, d: DisputeState, account: str) -> Iterator[Alarm]:
    if d.turn is None:
        return
    name = f"job {job.job[:16]}, dispute {d.number}"
    if d.turn.endswith("expired"):
        text = f"{name}: the {d.turn.split()[0]} is out of time; any account may end the dispute: `vgame job close`"
        yield Alarm("timeout", text, job.job, d.number)
        return
    mine = account == (state.trainer if d.turn == "trainer" else d.auditor)
    budget = state.spec.trainer_budget if d.turn == "trainer" else state.spec.auditor_budget
    if mine and d.seconds_left < budget // 4:
        text = f"{name}: the own clock runs out in {countdown(d.seconds_left)}"
        yield Alarm("clock", text, job.job, d.number)
    if mine and d.seconds_waiting > max(state.spec.slot, 60):
        text = (
            f"{name}: no move for {countdown(d.seconds_waiting)} although it is this account's turn: "
            "check that its process runs"
        )
        yield Alarm("stuck", text, job.job, d.number)


Forecast = Callable[[], Mapping[str, str]]


def watch(
    game: Game, reporter: Reporter, account: str, forecast: Forecast | None, every: float, once: bool,
    clients: Sequence[str] = (),
) -> int:  # fmt: skip
    """Report alarms when they appear and when they end; errors of the endpoint are retried. `once`: report the present
    alarms, or that there are none, and return their number."""
    look = partial(_report_alarms, game, reporter, account, forecast, clients)
    if once:
        found, jobs = look({}), len(jobs_of(game, clients=clients))
        if not found:
            reporter.emit("calm", f"no alarm in {jobs} job{'' if jobs == 1 else 's'}", jobs=jobs)
        return len(found)
    standing: Shown = {}
    retry = Retry(reporter, every)
    while True:
        with retry:
            look(standing)
            time.sleep(every)


def _report_alarms(
    game: Game, reporter: Reporter, account: str, forecast: Forecast | None, clients: Sequence[str],
    standing: Shown,
) -> set[Place]:  # fmt: skip
    """Report the alarms that no endpoint has shown before, those that more than half of the endpoints show now
    (`confirmed`), and those that none shows any more; returns the present ones. One endpoint could invent many."""
    game.chain.turn()
    with game.chain.pinned():
        sounding = alarms(game, account, forecast() if forecast else None, clients)
        found = {(a.kind, a.job, a.dispute): a for a in sounding}
    before, needed = Counter(chain.from_iterable(standing.values())), most(game.chain)
    gone = standing.get(game.chain.endpoint, set()) - found.keys()
    new = found.keys() - standing.get(game.chain.endpoint, set())
    standing[game.chain.endpoint] = set(found)
    for key, alarm in found.items():
        if key in new and before[key] in (0, needed - 1):
            place = {"job": alarm.job, "dispute": alarm.dispute, "confirmed": before[key] == needed - 1}
            reporter.emit("alarm", f"{alarm.kind}: {alarm.text}", kind=alarm.kind, message=alarm.text, **place)
    for kind, job, dispute in gone:
        if before[kind, job, dispute] == 1:
            reporter.emit("over", f"{kind}: over", kind=kind, job=job, dispute=dispute)
    return set(found)
