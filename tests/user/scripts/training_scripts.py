"""Training scripts in the style of the documentation of torch and others, rewritten and small: each returns a job.

A script's name is that of its page. `refused`: a part of the refusing sentence.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import vgame

STEPS = 2
MODULES = (
    "torch_images", "torch_sequences", "torch_others", "library_transformers", "library_timm", "library_lightning",
    "library_peft", "library_torchrl",
)  # fmt: skip


@dataclass(frozen=True)
class Script:
    library: str
    name: str
    make: Callable[[], vgame.Job]
    refused: str | None = None

    @property
    def lines(self) -> int:
        """The lines of the function, without the decorator that enters it into the table."""
        return len(inspect.getsource(self.make).splitlines()) - 1


@dataclass(frozen=True)
class Outcome:
    """Either the program's operators and whether an audit by other kernels is equal, or the sentence that refuses."""

    operators: int = 0
    audited: bool = False
    sentence: str = ""


AUDIT = """
import json, sys
from pathlib import Path
from vgame.execute.devices import prepare_environment
prepare_environment("compatible")
from vgame.cli.runs import audit_offline
from vgame.system.progress import Reporter
for line in sys.stdin:
    found = audit_offline(Path(line.strip()), "compatible", None, None, 0, Reporter())
    print(json.dumps(found), file=sys.stderr, flush=True)
"""


class Auditor:
    """The device "compatible", a process of its own that audits one run after the other."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-c", AUDIT], text=True, **pipes)

    def __enter__(self) -> Auditor:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait(30)

    def matches(self, run: Path) -> bool:
        print(run, file=self.process.stdin, flush=True)
        for line in self.process.stderr:
            if line.strip() in ("true", "false"):
                return json.loads(line)
        raise RuntimeError(f"the audit of {run} ended")


def outcome(script: Script, folder: Path, auditor: Auditor) -> Outcome:
    """Capture, train, audit."""
    torch.manual_seed(0)
    try:
        bundle = vgame.prepare(script.make())
    except vgame.VgameError as error:
        return Outcome(sentence=str(error))
    vgame.train(bundle, folder)
    return Outcome(len(bundle.program.operators), auditor.matches(folder))


def load() -> dict[str, Script]:
    """The scripts of the libraries that are installed. torchvision comes first: others look for it."""
    for module in ("torchvision_anyhow", *MODULES):
        with suppress(pytest.skip.Exception):
            import_module(module)
    return SCRIPTS


SCRIPTS: dict[str, Script] = {}


def script(library: str, name: str, refused: str | None = None) -> Callable[[Callable[[], vgame.Job]], Callable]:
    """Enter a function into the table."""

    def entered(make: Callable[[], vgame.Job]) -> Callable[[], vgame.Job]:
        assert name not in SCRIPTS
        SCRIPTS[name] = Script(library, name, make, refused)
        return make

    return entered


def job(model: Any, loss: Any, optimizer: Any, data: Mapping[str, torch.Tensor], batch: int = 4, **more: Any):
    """Two steps of a task."""
    return vgame.Job(vgame.Task(model, loss, optimizer, data, batch, **more), steps=STEPS, interval=1, seed=7)


def images(count: int = 16, channels: int = 3, size: int = 16, classes: int = 10) -> dict[str, torch.Tensor]:
    return {"x": torch.rand(count, channels, size, size), "y": torch.arange(count) % classes}


def tokens(count: int = 16, length: int = 12, vocabulary: int = 40) -> torch.Tensor:
    return torch.randint(3, vocabulary, (count, length))
