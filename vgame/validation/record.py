"""What a validation found, for people and for the bundle's validation.json.

In: a report of vgame/validation/steps.py, or the reason why there is none. Out: JSON, and one line.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from pydantic import BaseModel

from vgame.errors import VgameError
from vgame.system.version import sources
from vgame.validation.report import Report

VARIABLE, SECONDS = "VGAME_VALIDATE", 60.0


def seconds_of(given: float | None) -> float:
    """Of a validation: as given, else what the environment says, else a minute."""
    told, value = ("validate", given) if given is not None else (VARIABLE, os.environ.get(VARIABLE, SECONDS))
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise VgameError(f"{told} = {value}: a number of seconds is expected, 0 for no validation")
    return seconds


def record(report: Report | None, program_root: bytes, against: dict[str, Any] | None = None) -> dict[str, Any]:
    """`validated`: something was compared; `complete`: all that is written in docs/validation.md; `against`: the losses
    of the user's own loop, if they were given."""
    report = report or Report(unchecked=["nothing was compared: 0 seconds were given"])
    return {
        "validated": bool(report.tally.compared),
        "complete": report.complete,
        "program_root": program_root.hex(),
        "compared": report.tally.compared,
        "steps": report.steps,
        "batches": report.batches,
        "samples": report.samples,
        "rung": report.tally.rung,
        "flips": report.tally.flips,
        "unchecked": report.unchecked,
        "seconds": round(report.seconds, 1),
        "versions": {"vgame": sources(), "torch": torch.__version__},
    } | ({"against": against} if against else {})


class Losses(BaseModel):
    """Of the user's own loop: how many were compared, how many given."""

    losses: int
    given: int


class Record(BaseModel):
    """What `line` reads of a record, which may be a file of strangers."""

    validated: bool
    compared: dict[str, int]
    batches: int
    flips: dict[str, int]
    unchecked: list[str]
    seconds: float
    against: Losses | None = None


def line(found: dict[str, Any]) -> str:
    """The record in one line."""
    parts = [f"{count} of {stage}" for stage, count in found["compared"].items()]
    told = f"{', '.join(parts) or 'nothing'} in {found['batches']} batches, {found['seconds']} s"
    if losses := found.get("against"):
        told += f"; {losses['losses']} losses of your own loop, of {losses['given']}"
    if found["flips"]:
        told += f"; {sum(found['flips'].values())} elements flip with the last bit"
    if found["unchecked"]:
        told += f"; not compared: {'; '.join(found['unchecked'])}"
    return f"{'validated' if found['validated'] else 'not validated'}: {told}"
