"""A small job file, written as a user would; parts of it can be replaced."""

from __future__ import annotations

from pathlib import Path

JOB = """
model = "{model}"
seed = {seed}
steps = 6
interval = 2
[args]
{args}
[schedule]
{schedule}
"""


def write(path: Path, model="vgame.tasks.digits:task", seed="1", args="batch = 4", schedule='lr = "0.1"') -> Path:
    path.write_text(JOB.format(model=model, seed=seed, args=args, schedule=schedule))
    return path
