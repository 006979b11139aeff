"""The run.json of a run's folder: the identity of its bundle; the divergence, if it diverged."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from vgame.errors import StoreError
from vgame.job.bundle import Bundle
from vgame.system.files import parse_json, read_file, write_atomic

VERSION = 1  # of a run folder
MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first `step` with a result that is not finite: the number of the `operator` and the `element` of its
    output."""

    step: int
    operator: int
    element: int


def read_header(folder: Path, bundle: Bundle) -> Divergence | None:
    """The divergence of a run; StoreError unless it is a run of this bundle."""
    path, label_root = folder / "run.json", bundle.program.labels.root.hex()
    try:
        header = parse_json(read_file(path, MOST_BYTES))
        version, identity, diverged = header["version"], header["identity"], header["divergence"]
        names = header.get("labels", label_root)  # not written by earlier versions
        divergence = Divergence(**diverged) if diverged is not None else None
        if divergence is not None:
            _check(divergence, bundle)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); move {folder} away and run again") from None
    if version != VERSION:
        raise StoreError(
            f"{folder} is a run of version {str(version)[:20]}, this vgame reads version {VERSION}: use the "
            "vgame that wrote it, or train again in another folder"
        )
    if identity != bundle.identity.hex():
        raise StoreError(f"{folder} holds another run (identity {str(identity)[:16]}...); choose another folder")
    if names != label_root:
        raise StoreError(
            f"{folder} holds a run whose tensors have other names (label root {str(names)[:16]}...); continue "
            "with the bundle that it was begun with"
        )
    return divergence


def _check(d: Divergence, bundle: Bundle) -> None:
    operators = bundle.program.operators
    numbers, limits = (d.step - 1, d.operator, d.element), (bundle.steps, len(operators), 2**31)
    within = all(type(n) is int and 0 <= n < limit for n, limit in zip(numbers, limits, strict=True))
    if not within or d.element >= operators[d.operator].elements:
        raise ValueError(f"there is no {d}")


def write_header(folder: Path, bundle: Bundle, divergence: Divergence | None = None) -> None:
    """Write the run.json of a run of this bundle."""
    names, diverged = bundle.program.labels.root.hex(), asdict(divergence) if divergence else None
    header = {"version": VERSION, "identity": bundle.identity.hex(), "labels": names, "divergence": diverged}
    write_atomic(folder / "run.json", (json.dumps(header, indent=2) + "\n").encode())
