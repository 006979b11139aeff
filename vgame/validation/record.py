"""The result of a validation, as a line and as the bundle's validation.json.

In: a report of vgame/validation/steps.py, or the reason for its absence. Out: JSON, and one line.
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
    """Seconds of a validation: the argument, else the environment variable, else SECONDS."""
    source, value = ("validate", given) if given is not None else (VARIABLE, os.environ.get(VARIABLE, SECONDS))
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise VgameError(f"{source} = {value}: a number of seconds is expected, 0 for no validation")
    return seconds


def record(report: Report | None, program_root: bytes, against: dict[str, Any] | None = None) -> dict[str, Any]:
    """The content of validation.json. `validated`: at least one comparison was made; `complete`: all comparisons of
    docs/validation.md were made; `against`: the losses of the user's own loop, if given."""
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
    """Losses of the user's own loop: numbers compared and given."""

    losses: int
    given: int


class Record(BaseModel):
    """The fields of a record that `line` reads; the file may be untrusted."""

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
    text = f"{', '.join(parts) or 'nothing'} in {found['batches']} batches, {found['seconds']} s"
    if losses := found.get("against"):
        text += f"; {losses['losses']} of {losses['given']} losses of your own loop"
    if found["flips"]:
        text += f"; {sum(found['flips'].values())} elements flip with the last bit"
    if found["unchecked"]:
        text += f"; not compared: {'; '.join(found['unchecked'])}"
    return f"{'validated' if found['validated'] else 'not validated'}: {text}"
