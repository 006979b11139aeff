"""Commands on a bonus by accuracy (docs/bonus.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgame.cli.options import (
    BundleFolder,
    ChainId,
    GameAddress,
    Json,
    Rpc,
    Validate,
    bonus_app,
    job_id,
    seat_of,
    wei_of,
)
from vgame.errors import VgameError
from vgame.system.progress import Reporter

if TYPE_CHECKING:
    from vgame.api_bonus import Escrow
    from vgame.tasks.task import Task

Identity = Annotated[str, typer.Argument(help="identity of the bonus, hex")]
EscrowAddress = Annotated[str, typer.Option("--escrow", help="address of the escrow")]
JobFile = Annotated[Path, typer.Option("--task", help="job file (TOML) whose task has an `evaluate`")]
RunFolder = Annotated[Path, typer.Option("--run", help="the trained run, or a role's store of it")]
Disk = Annotated[Path, typer.Option("--store", help="folder on the disk where a role keeps the evaluation")]


def _look_at(rpc: Sequence[str], game: str, escrow: str, chain_id: int | None) -> Escrow:
    """Open the escrow for reading, without a key."""
    seat = seat_of(rpc, game, Path(), Path(), "default", chain_id)
    from vgame.api_bonus import Escrow
    from vgame.chain.anywhere import anywhere
    from vgame.chain.registry import open_reading

    found = open_reading(seat.rpc, seat.game, seat.chain_id)
    anywhere(found.chain, found.check_parts)
    found.chain.checks.append(found.check_parts)
    return Escrow(found, escrow)


def _open(rpc: Sequence[str], game: str, escrow: str, chain_id: int | None) -> Escrow:
    seat = seat_of(rpc, game, Path(), Path(), "default", chain_id)
    from vgame.agents.config import open_game
    from vgame.api_bonus import Escrow

    return Escrow(open_game(seat), escrow)


def _task(path: Path) -> Task:
    from vgame.job.factory import make_task
    from vgame.job.file import read_job_file

    return make_task(read_job_file(path))


@bonus_app.command()
def deploy(rpc: Rpc, game: GameAddress, chain_id: ChainId = None, json: Json = False) -> None:
    """Deploy an escrow for a game, with the key in VGAME_KEY."""
    seat = seat_of(rpc, game, Path(), Path(), "default", chain_id)
    from vgame.agents.config import open_game
    from vgame.api_bonus import Escrow

    address = Escrow.deploy(open_game(seat)).address
    Reporter(json).emit("deployed", f"escrow at {address} for the game {game}", escrow=address)


@bonus_app.command()
def promise(
    rpc: Rpc,
    game: GameAddress,
    escrow: EscrowAddress,
    job: Annotated[str, typer.Option(help="identity of the training job, hex")],
    bundle: BundleFolder,
    task: JobFile,
    total: Annotated[str, typer.Option(help="one of the evaluation's integer totals, by name")],
    least: Annotated[int, typer.Option(help="the mark: the smallest total for which the bonus is paid")],
    amount: Annotated[str, typer.Option(help='payment of the trainer, "0.5 ether"')],
    window: Annotated[
        int | None,
        typer.Option(help="seconds for the evaluation; default: the shortest safe window"),
    ] = None,
    nonce: Annotated[int, typer.Option(help="a different number for a second bonus with the same terms")] = 0,
    validate: Validate = None,
    store: Disk = Path(),
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Pay for a bonus of a job that is not claimed yet: its trainer gets it if the trained state reaches the mark."""
    wei = wei_of(amount, "--amount")
    identity, contract = job_id(job), _open(rpc, game, escrow, chain_id)
    from vgame.job.bundle import load_bundle

    terms = {"least": least, "amount": wei, "window": window, "nonce": nonce, "validate": validate, "store": store}
    found = contract.promise(identity, load_bundle(bundle), _task(task), total, **terms).hex()
    text = f"bonus {found}: {amount} for the trainer of job {job[:16]} at {total} >= {least}"
    Reporter(json).emit("promised", text, bonus=found, job=identity.hex(), amount=wei, least=least)


@bonus_app.command()
def check(
    bonus: Identity,
    rpc: Rpc,
    game: GameAddress,
    escrow: EscrowAddress,
    bundle: BundleFolder,
    task: JobFile,
    job: Annotated[
        str | None, typer.Option(help="identity of the job to accept, hex; default: any of the bundle")
    ] = None,
    validate: Validate = None,
    store: Disk = Path(),
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """As a trainer, before accepting, check that a bonus is for the job and its evaluation, and can be paid."""
    identity, contract = job_id(bonus), _look_at(rpc, game, escrow, chain_id)
    wanted = None if job is None else job_id(job)
    from vgame.job.bundle import load_bundle

    found = contract.promised(identity, contract.final(identity))
    total = contract.check(identity, load_bundle(bundle), _task(task), job=wanted, validate=validate, store=store)
    text = (
        f"{found.amount / 10**18:.6f} ether for the trainer of job {found.terms.training.hex()[:16]}, at "
        f"{total} >= {found.terms.least}, within {found.terms.window} s; its evaluation needs a bond of "
        f"{found.evaluation.trainer_bond / 10**18:.6f} ether"
    )
    Reporter(json).emit(
        "checked", text, bonus=identity.hex(), amount=found.amount, total=total, least=found.terms.least
    )


@bonus_app.command()
def prepare(
    bonus: Identity,
    rpc: Rpc,
    game: GameAddress,
    escrow: EscrowAddress,
    run: RunFolder,
    task: JobFile,
    out: Annotated[Path, typer.Option(help="folder of the evaluation's bundle")],
    early: Annotated[
        bool, typer.Option("--early", help="for an auditor, before the window begins; it must not be claimed then")
    ] = False,
    validate: Validate = None,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Write the bundle of the bonus's evaluation of the trained state; order it with `vgame job post` and play it."""
    if (out / "spec.json").exists():
        raise VgameError(f"{out} holds a bundle already; choose another folder")
    identity, contract = job_id(bonus), _look_at(rpc, game, escrow, chain_id)
    from vgame.validation.record import line

    bundle = contract.evaluation(identity, run, _task(task), validate=validate, early=early)
    bundle.save(out)
    reporter = Reporter(json)
    reporter.emit("validated", line(bundle.validation), **bundle.validation)
    text = f"{out}: {bundle.steps} batches, initial state {bundle.initial_root.hex()}"
    reporter.emit("prepared", text, **bundle.rendering())


@bonus_app.command()
def pay(
    bonus: Identity,
    rpc: Rpc,
    game: GameAddress,
    escrow: EscrowAddress,
    job: Annotated[str, typer.Option(help="identity of the final evaluation job, hex")],
    run: RunFolder,
    evaluation: Annotated[Path, typer.Option(help="the evaluation's run, or a role's store of it")],
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Prove that a final evaluation reaches the mark. Any account may do so; the trainer is paid."""
    identity, contract = job_id(bonus), _open(rpc, game, escrow, chain_id)
    amount = contract.pay(identity, job_id(job), run, evaluation)
    text = (
        f"bonus {identity.hex()[:16]}: {amount / 10**18:.6f} ether for the trainer, who withdraws it with "
        "`vgame bonus close`"
    )
    Reporter(json).emit("paid", text, bonus=identity.hex(), amount=amount)


@bonus_app.command()
def close(
    bonus: Identity,
    rpc: Rpc,
    game: GameAddress,
    escrow: EscrowAddress,
    chain_id: ChainId = None,
    json: Json = False,
) -> None:
    """Begin the window of a bonus, or give it back after it; withdraw what the escrow owes this account."""
    identity, contract = job_id(bonus), _open(rpc, game, escrow, chain_id)
    outcome = contract.close(identity)
    text = {
        "paid": "the trainer was paid",
        "returned": "the money was returned to its payer",
        "started": "the training is final, the window has begun",
        "waiting": "the training has not ended",
        "kept": "the training has ended without a trained state, and the payer can take the money back",
    }[outcome]
    Reporter(json).emit("closed", f"bonus {identity.hex()[:16]}: {text}", bonus=identity.hex(), outcome=outcome)
