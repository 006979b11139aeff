"""False evaluations of a bonus, and the payer's auditor, which disputes them.

In: a story. Out: histories of false evaluations, the life of the auditor, the verdict on it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import torch
from accuracy import QUICK, SimEscrow, work
from bonus_stage import executor
from branches import BLOCK, START
from judge import PAYING, PROMPT
from revm_calls import decode_log
from seats import Life, Slow

from vgame import Bundle, Run
from vgame.agents.auditor_service import AuditorService
from vgame.agents.named_jobs import Limits
from vgame.agents.retry import QUIET, Retry
from vgame.attacks.computation import CheatingHistory, Patch, PatchedExecutor
from vgame.chain.records import LOST, STANDING, JobSpec, Phase
from vgame.dispute.stakes import Stakes
from vgame.errors import Abstain
from vgame.runs.history import History
from vgame.runs.store import Store
from vgame.runs.training import train

MORE = 9  # what a false word exceeds the right one by
TOTAL = 13  # the operator that adds to the total
#: What is false: an operator's output and all that follows; a state that its trace contradicts; the first state. Then
#: the step, and the operator or the state tensor. The first ones raise the total only.
LIES = [
    ("output", 4, TOTAL), ("state", 4, 3), ("output", 1, TOTAL), ("state", 2, 3), ("output", 3, 12), ("output", 2, 11),
    ("output", 3, 9), ("output", 1, 8), ("output", 4, 7), ("output", 2, 6), ("output", 4, 16), ("output", 3, 17),
    ("output", 1, 4), ("state", 1, 4), ("state", 3, 0), ("first", 0, 3), ("first", 0, 0),
]  # fmt: skip
RIGHT = -1
CLAIMS = 3  # evaluations of one trainer, at most
LATE = 600  # seconds after a window in which a reorganisation can still change what happened in it


# ---- false evaluations ----


def _more(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed.view(-1)[0] += MORE
    return changed


def _patch(lie: int) -> Patch:
    kind, step, place = LIES[lie]

    def output(s: int, o: int, value: torch.Tensor, before: Any) -> torch.Tensor:
        return _more(value) if (s, o) == (step, place) else value

    def state(s: int, before: Any, after: Any) -> Any:
        return [_more(t) if (s, n) == (step, place) else t for n, t in enumerate(after)]

    def first(tensors: Any) -> Any:
        return [_more(t) if n == place else t for n, t in enumerate(tensors)]

    return {"output": Patch(output=output), "state": Patch(state=state), "first": Patch(initial=first)}[kind]


@cache
def measured(lie: int) -> tuple[Run, History]:
    """The run of an evaluation, and its history."""
    if lie == RIGHT:
        return work().measured, work().histories[1]
    bundle = work().measured.bundle
    cheat, folder = PatchedExecutor(executor(bundle), _patch(lie)), Path(mkdtemp(dir=work().measured.folder.parent))
    store = Store(folder, bundle)
    train(store, cheat, lambda *_: None)
    return Run(store), CheatingHistory(store, cheat)


@cache
def root(lie: int) -> bytes:
    return bytes(measured(lie)[0]._store.run_tree.root)


# ---- the auditor ----


def auditor_life(story: Any, folder: Path) -> Life:
    """`vgame bonus prepare --early`, then `vgame auditor` on all claims of this evaluation; it never ends by itself."""

    def life(player: Any) -> None:
        world, notes = player.world, player.notes
        while story.offered is None or story.strangers.job(story.jobs[0]).phase is Phase.CREATED:
            if world.now > START + story.spec.accept_window + LATE:
                return
            world.clock.sleep(BLOCK)
        if "bundle" not in notes:
            try:
                notes["bundle"] = player.command("prepares early", lambda _, e: _prepared(e, story.offered))
            except Abstain as refusal:
                notes["refused"] = str(refusal)
                return
        game, machine = player.game(), Slow(world, work().histories[1])
        computation: Any = SimpleNamespace(
            bundle=notes["bundle"],
            history=machine,
            history_of=lambda _: machine,
            run_root=work().measured._store.roots[-1],
            pace=QUICK,
            known_pace=QUICK,
            log_mismatch=lambda *_: "",
            compute_ahead=lambda *_: False,
            rehearse=lambda: None,
            refuse_small_disk=lambda *_, **__: None,
        )
        stakes = Stakes(game, folder / "stakes.json")
        service = AuditorService(game, computation, player.reporter, 1.0, Limits(), stakes)
        retry = Retry(player.reporter, 1.0)
        while True:
            with retry:
                if not service.round():
                    game.chain.pause(QUIET)

    return life


def _prepared(escrow: SimEscrow, identity: bytes) -> Bundle:
    return escrow.evaluation(identity, work().run, work().task, validate=0, early=True)


def failures(story: Any) -> list[str]:
    """Each false evaluation is convicted, no right one is disputed, no dispute is lost, no second stake is on one
    claim, no money is left."""
    account, found, bonus = story.players["auditor"].account.address, [], story.strangers.held()
    played = story.players["auditor"].notes.get("bundle")
    wanted = JobSpec(**played.order) if played else None
    logs = story.world.tree.logs(story.world.tree.head)
    events = [decode_log(log) for log in logs if log["address"].lower() == story.view.address.lower()]
    for number, job in enumerate(story.strangers.evaluations):
        state, name = story.view.job(job), f"evaluation {number}"
        if not (bonus and bonus.since and state.claimed_at >= bonus.since):
            continue  # no bonus is paid for it
        false = state.run_root != root(RIGHT) or state.diverged_at > 0
        mine = [s.dispute for s in story.view.all_disputes(job) if s.dispute.auditor == account]
        found += [f"{name}: a dispute ended {d.status.name} at {d.level.name}" for d in mine if d.status in LOST]
        found += [f"{name}: a right claim was disputed"] * bool(mine and not false)
        found += [f"{name} does not end"] * (state.phase is Phase.CLAIMED)
        found += [f"{name}: a false claim is final"] * (false and story.rich and state.phase in STANDING)
        found += [f"{name}: {len(mine)} stakes"] * (len(mine) > 1)
        if false and state.spec != wanted:
            found.append(f"{name}: its order is not the one that the auditor plays")
    owed = story.view.credits(account)
    paid = max((story.world.tree.head.ancestor(e.block).time for e in events if e.name in PAYING), default=0)
    if owed and story.world.tree.head.time > paid + PROMPT + story.world.left:
        found.append(f"the auditor has left {owed} wei")
    return found


def stakes(spec: JobSpec, least: int) -> int:
    """The money for a dispute of each false evaluation, with gas at 16 times the least base fee."""
    return CLAIMS * (spec.stake + 20_000_000 * 16 * least)


__all__ = ["CLAIMS", "LIES", "RIGHT", "auditor_life", "failures", "measured", "stakes"]
