"""Search for false alarms of the validation, over all available programs: models of a zoo (also under autocast), the
training scripts of tests/user/scripts, the cases of tests/unit/test_lowering.py, each with some optimizer; and a small
model with every optimizer, in float32, under autocast and in bfloat16.

    python experiments/validations.py OUT.json [--zoo ZOO.py] [--minutes 60] [--seconds 60] [--workers 2] [--only 'c*']

Resumable: entries of OUT.json are not repeated. It ends with a table: distinct programs (by root), compared wholly, in
part, found different. ZOO.py as in experiments/zoo.py.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OPTIMIZERS = ("SGD", "AdamW", "Adam", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adafactor", "Rprop", "ASGD")
STEPS = 12

Make = Callable[[], tuple[Any, Any, int]]  # task, schedule, steps


def items(zoo: Path | None) -> Iterator[tuple[str, Make]]:
    """(name, function that makes a task, its schedule and its steps)."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/unit"), str(ROOT / "tests/user/scripts")]
    yield from _cases()
    yield from _scripts()
    yield from _optimizers()
    if zoo is not None:
        yield from _zoo(zoo)


def _cases() -> Iterator[tuple[str, Make]]:
    import cases_indexing
    import cases_layers
    import cases_models
    import cases_pointwise
    from traced import make

    for module in (cases_pointwise, cases_indexing, cases_layers, cases_models):
        for name, case in module.CASES.items():
            yield f"case {name}", lambda case=case: (make(case), case.schedule, max(case.steps, 3))


def _scripts() -> Iterator[tuple[str, Make]]:
    from training_scripts import load

    def made(script: Any) -> tuple[Any, Any, int]:
        job = script.make()
        return job.task, job._file().schedule, job._steps() + STEPS

    for name, script in load().items():
        if script.refused is None:
            yield f"script {name}", lambda script=script: made(script)


def _optimizers() -> Iterator[tuple[str, Make]]:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from vgame.tasks.task import Task

    def made(name: str, form: str) -> tuple[Any, Any, int]:
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 5))
        model = model.bfloat16() if form == "bfloat16" else model
        data = {"x": torch.randn(24, 6), "y": torch.arange(24) % 5}

        def loss(module: nn.Module, batch: Any) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=form == "autocast"):
                x = batch["x"].bfloat16() if form == "bfloat16" else batch["x"]
                return cross_entropy(module(x).float(), batch["y"])

        return Task(model, loss, getattr(torch.optim, name)(model.parameters(), lr=1e-3), data, 4), None, STEPS

    for name in OPTIMIZERS:
        for form in ("float32", "autocast", "bfloat16"):
            yield f"optimizer {name} {form}", lambda n=name, f=form: made(n, f)


def _zoo(path: Path) -> Iterator[tuple[str, Make]]:
    import torch
    import zoo as script

    models = script._module(path)

    def made(name: str, number: int, autocast: bool) -> tuple[Any, Any, int]:
        task = script.make_task(*models.build(name), autocast)
        kind = getattr(torch.optim, OPTIMIZERS[number % len(OPTIMIZERS)])
        object.__setattr__(task, "optimizer", kind(task.model.parameters(), lr=1e-3))
        return task, None, STEPS

    for number, name in enumerate(models.NAMES):
        for autocast in (False, True):
            kind = "autocast" if autocast else "zoo"
            yield f"{kind} {name}", lambda n=name, i=number, a=autocast: made(n, i, a)


def validated(make: Make, seconds: float) -> dict[str, Any]:
    """(root of the program, result of its validation)."""
    import torch

    from vgame.errors import ValidationError, VgameError
    from vgame.program.lower import lower_task
    from vgame.validation.record import record
    from vgame.validation.report import Order
    from vgame.validation.steps import validate

    torch.manual_seed(0)
    begin = time.monotonic()
    try:
        task, schedule, steps = make()
        lowered = lower_task(task, schedule, steps)
    except VgameError as error:
        return {"refused": str(error)[:300]}
    root, lowering = lowered.program.root, time.monotonic() - begin
    try:
        report = validate(Order(task, lowered, lowered.state, schedule, 11, steps), seconds)
    except ValidationError as error:
        return {"program_root": root.hex(), "differs": str(error)}
    return record(report, root) | {"lowering": round(lowering, 1)}


def table(found: dict[str, Any]) -> str:
    """Distinct programs by result."""
    roots: dict[str, str] = {}
    for each in found.values():
        if "program_root" in each:
            state = "differs" if "differs" in each else "whole" if each["complete"] else "in part"
            roots[each["program_root"]] = state
    counts = {state: list(roots.values()).count(state) for state in ("whole", "in part", "differs")}
    refused = sum("refused" in each for each in found.values())
    return f"{len(roots)} programs: {counts}; {refused} items refused by the capture"


def _work(name: str, zoo: Path | None, seconds: float) -> tuple[str, dict[str, Any]]:
    """One item, in a worker."""
    warnings.simplefilter("ignore")
    try:
        return name, validated(dict(items(zoo))[name], seconds)
    except Exception as error:
        return name, {"crashed": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--zoo", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default="*")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    names = [name for name, _ in items(options.zoo) if name not in found and fnmatch.fnmatch(name, options.only)]
    deadline = time.monotonic() + 60 * options.minutes
    with multiprocessing.get_context("spawn").Pool(options.workers, maxtasksperchild=40) as pool:
        work = partial(_work, zoo=options.zoo, seconds=options.seconds)
        for name, result in pool.imap_unordered(work, names):
            found[name] = result
            shown = {k: v for k, v in result.items() if k in ("differs", "refused", "crashed", "unchecked", "seconds")}
            print(name, shown, flush=True)
            options.out.write_text(json.dumps(found, indent=1))
            if time.monotonic() > deadline:
                print("out of time: run again to go on")
                break
    print(table(found))


if __name__ == "__main__":
    main()
