"""`vgame terms`: measures this device, and prints the safe terms of a job as TOML."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, astuple, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from vgame.errors import VgameError
from vgame.execute.devices import use_device
from vgame.execute.work import operations
from vgame.job.bundle import load_bundle
from vgame.job.file import Terms, problems
from vgame.job.terms import GWEI, Pace, Prices, auditor_shortcomings, count_moves, safe_terms, trainer_shortcomings
from vgame.runs.folder import executor_of
from vgame.runs.pace import checkpoint_seconds, measure
from vgame.system.progress import Reporter


def propose(folder: Path, device: str, slower: float, prices: Prices, reporter: Reporter) -> None:
    """Print safe terms as TOML, for devices that are `slower` times as slow as this one."""
    if not 1e-9 <= prices.audited <= 1:
        raise VgameError(f"--audited is a probability from 1e-9 to 1, got {prices.audited}")
    if not 0 <= slower <= 1e9:
        raise VgameError(f"--slower is a number from 0 to 1e9, got {slower}")
    if prices.censorship < 0:
        raise VgameError(f"--censorship is a number of seconds, at least 0, got {prices.censorship}")
    bundle = load_bundle(folder)
    with use_device(device) as kind:
        reporter.stage(f"# measures a few steps of {operations(bundle.program):.1e} operations each")
        here = measure(bundle, executor_of(bundle, kind))
    with TemporaryDirectory() as scratch, suppress(VgameError):  # without space: two hashings of the state
        here = replace(here, checkpoint=checkpoint_seconds(Path(scratch), bundle))
    pace = Pace(*(slower * seconds for seconds in astuple(here)))
    moves, safe = count_moves(bundle), replace(bundle, terms=safe_terms(bundle, pace, prices))
    fields = safe.terms.model_dump()
    try:
        Terms.model_validate(fields)
    except ValidationError as error:
        raise VgameError(f"no job can have terms for such prices and times: {problems(error)}") from None
    if short := trainer_shortcomings(safe, pace, prices.gas) + auditor_shortcomings(safe, pace):
        raise VgameError(
            f"this run needs more than a trainer or an auditor accepts: {'; '.join(short)}; order fewer steps "
            "or a shorter interval"
        )
    trainer_gas, auditor_gas = moves.trainer_gas * prices.gas, moves.auditor_gas * prices.gas
    text = "\n".join(
        [
            f"# a step of {pace.step:.3f} s, {pace.trace:.3f} s with hashing, {pace.worst:.3f} s at worst, "
            f"a checkpoint of {pace.checkpoint:.3f} s",
            f"# {prices.gas / GWEI:g} gwei, audited with probability {prices.audited:g}",
            f"# longest dispute: {moves.trainer} moves of the trainer ({moves.trainer_gas:,} gas), "
            f"{moves.auditor} of the auditor ({moves.auditor_gas:,} gas)",
            f"# gas money beside the bonds, for each dispute open at once: {_ether(trainer_gas)} of the trainer, "
            f"{_ether(auditor_gas)} of the auditor; gains are withdrawn in time",
            "[terms]",
            *(f"{name} = {_toml(value)}" for name, value in fields.items()),
        ]
    )
    fields |= {"trainer_gas_reserve": trainer_gas, "auditor_gas_reserve": auditor_gas}
    money = {k: str(v) if isinstance(v, int) and v > 2**53 else v for k, v in fields.items()}
    seconds = {f"{name}_seconds": value for name, value in asdict(pace).items() if name != "state"}
    reporter.emit("terms", text, **seconds, **money)


def _ether(wei: int) -> str:
    return f"{wei / 10**18:.6f} ether"


def _toml(value: int | str) -> str:
    """TOML integers have 64 bits."""
    if isinstance(value, str):
        return f'"{value}"'
    return str(value) if value < 2**63 else f'"{value} wei"'
