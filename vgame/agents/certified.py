"""Does a final claim certify a file of weights? In: a file, a game and a job. Out: the number of tensors and the
state's root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vgame.agents.order import find_order
from vgame.chain.game import Game
from vgame.chain.records import STANDING, Event
from vgame.chain.registry import open_reading
from vgame.errors import VgameError
from vgame.job.bundle import load_bundle
from vgame.job.weights import check_weights


def final_state(game: Game, job: bytes) -> bytes:
    """Root of the final state of a final claim. The contract has checked that it is the last checkpoint below the run
    root."""
    state, name = game.job(job), f"job {job.hex()[:16]}"
    if state.phase not in STANDING:
        raise VgameError(f"{name} is {state.phase.name.lower()}: only a final claim certifies weights")
    if state.diverged_at:
        raise VgameError(f"{name} diverged at step {state.diverged_at}: its claim certifies no weights")

    def final(event: Event) -> bytes | None:
        return event.args["finalState"] if event.args["runRoot"] == state.run_root else None

    return game.content("ClaimPosted", job, state.claimed_at, final, key=state.run_root)


def check_claim(weights: Path, rpc: Sequence[str], address: str, job: bytes, folder: Path | None) -> tuple[int, bytes]:
    """Number of tensors and state root; raises VgameError naming the failed check."""
    game = open_reading(rpc, address)
    game.check_parts()
    bundle = None if folder is None else load_bundle(folder)
    if bundle is not None:
        find_order(game, bundle, job)
    root = final_state(game, job)
    return len(check_weights(weights, root, bundle)), root
