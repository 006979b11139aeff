"""Size of a log: real steps, by bits and encoding, and the freedom of a trainer. In: a job's name, the options.
Out: counts."""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paper_devices import ROOT, bundle_of

SURVEYED = 12  # sampled sums of an operator, fewer if they are long
LONGEST = 1 << 13  # longer sums, which are few, are omitted
ENCODINGS = ("naive", "packed", "sparse")


def storage(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every number of bits, adaptive and proven."""
    base = {kind: bundle_of(job, options.text, 10, thresholds=kind) for kind in options.windows}
    found: dict[str, Any] = {}
    for bits in options.bits:
        for kind, bundle in base.items():
            logged = replace(bundle, log=bundle.log.model_copy(update={"bits": bits}))
            found.setdefault(str(bits), {})[kind] = storage_of(logged, surveyed=2 if options.quick else SURVEYED)
    return found


def large(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """One real step of a full-size job by bits, with the proven window and with the adaptive one's least."""
    from vgame.runs.thresholds import LEAST, PROVEN

    found: dict[str, Any] = {}
    with bundle_of_large(job, options.text) as bundle:
        for bits in options.bits:
            for kind, window in (("proven", PROVEN), ("adaptive", LEAST)):
                if kind in options.windows:
                    log = bundle.log.model_copy(update={"bits": bits, "windows": (window,) * len(bundle.log.windows)})
                    one = storage_of(replace(bundle, log=log), every=("sparse",))
                    one |= {"naive": one["sums"], "packed": -(-one["sums"] // 5)}
                    found.setdefault(str(bits), {})[kind] = one
                    print(job, bits, kind, one, flush=True)
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return found


@contextmanager
def bundle_of_large(job: str, text: Path):
    """ResNet-50 or GPT-2 in mode logged, proven."""
    from vgame.job.file import LogTerms, read_job_file
    from vgame.runs.prepare import prepare

    sys.path.insert(0, str(ROOT / "experiments"))
    from large import random_cifar

    source = read_job_file(ROOT / f"vgame/tasks/{job}.toml")
    update = {"steps": 1, "interval": 1, "mode": "logged", "log": LogTerms(thresholds="proven")}
    with TemporaryDirectory(prefix="vgame-cifar-") as folder:
        if job == "resnet50":
            random_cifar(Path(folder))
        args = {"folder": folder, "check": False} if job == "resnet50" else {"text": str(text)}
        yield prepare(source.model_copy(update=update | {"args": source.args | args}))


def storage_of(bundle, every: tuple[str, ...] = ENCODINGS, surveyed: int = SURVEYED) -> dict[str, Any]:
    """Bytes of the first step in each encoding, and the freedom of a trainer, from `surveyed` sums of every
    operator."""
    from vgame.logged.encoding import Encoding, encode, entropy_bytes
    from vgame.logged.kernels import sum_operators
    from vgame.logged.sums import Entries
    from vgame.runs.logged_store import make_executor

    executor, survey = make_executor(bundle, "cpu"), Survey(bundle.program, surveyed)
    executor.kernels.survey = survey
    started = time.perf_counter()
    executor.step(1, executor.initial(bundle.state))
    seconds = time.perf_counter() - started  # including the survey's sums
    made = executor.made[1]
    elements = {i: bundle.program.operators[i].elements for i in sum_operators(bundle.program)}
    counts = {i: len(made.get(i, Entries())) for i in elements}
    found = {
        "sums": sum(elements.values()),
        "outputs": sum(op.elements for op in bundle.program.operators if not op.integer),
        "entries": sum(counts.values()),
        "free": sum(survey.free.values()) / sum(elements.values()),
        "entropy": round(sum(entropy_bytes(counts[i], n) for i, n in elements.items())),
    }
    for name in every:
        found[name] = sum(len(encode(made.get(i, Entries()), n, Encoding[name.upper()])) for i, n in elements.items())
    exact = sum(executor.kernels.tally.exact.values())
    state = 4 * sum(t.numel() for t in bundle.state)
    return found | {"file": record_bytes(bundle, made), "state": state, "seconds": seconds, "exact": exact}


def record_bytes(bundle, made) -> int:
    """Bytes of a step in the log, with checksums."""
    from vgame.logged.logfile import FRAME, LogFile

    with TemporaryDirectory() as folder:
        log = LogFile(Path(folder) / "log", bundle.program, bundle.identity, bundle.log.bits)
        return FRAME + len(log.sections(1, made))


class Survey:
    """The probability that a sum has two admissible words, from some sums of every operator."""

    def __init__(self, program, surveyed: int) -> None:
        self.program, self.surveyed, self.dice, self.free = program, surveyed, random.Random(1), {}

    def __call__(self, operator: int, enclose: Callable) -> None:
        n, k = self.program.operators[operator].elements, self.program.operators[operator].k
        if 1 < k <= LONGEST:
            found = [enclose(self.dice.randrange(n)) for _ in range(min(self.surveyed, -(-LONGEST // k)))]
            self.free[operator] = n * statistics.mean(e.chance if e else 0.0 for e in found)
