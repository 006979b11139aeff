"""Decide elements of real training steps by the referee: every kind of operator and every function of the shipped jobs.

In: names of jobs (none: the small ones; --full: ResNet-50 and GPT-2 too, at their real sizes). Out:
docs/adjudication.json and .md. Each drawn element is proven as in a dispute (Machine.prove) and decided by the
checked-in contracts on an in-process EVM. The contract's word must be the executor's and the reference's, bit for bit,
also against a claim with one bit flipped; and a proof with one bit flipped must revert. Exits with 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "twin"))

# ruff: noqa: E402
from onchain import StepOnChain, deploy_referee

from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.job.file import JobFile, read_job_file
from vgame.program.operators import ArgMax, Contract, Operator, ReduceMax, RefClass, operand_refs
from vgame.runs.history import History
from vgame.runs.prepare import prepare
from vgame.runs.store import Store
from vgame.tasks import cifar10

RECORD = ROOT / "docs" / "adjudication.json"
STEP, STEPS = 2, 4
DRAWS = 5  # elements of each kind and function of a job, and one of its longest
LONG = 65_536  # terms; a longer sum (of all squared gradients, say) has 64 larger blocks
LEAF_GAS = 1_000_000  # limit of the gas of one call, for sums of at most LONG terms


def job(model: str, **args: Any) -> Bundle:
    """A job of a few steps."""
    schedule = {"lr": "0.003", "kind": "cosine", "warmup": 1}
    return prepare(JobFile(model=model, args=args, seed=7, steps=STEPS, interval=STEPS, schedule=schedule))


def text(folder: Path) -> str:
    """A text of 30,000 bytes."""
    path = folder / "text"
    path.write_bytes(bytes(Random(1).choices(b"the quick brown fox jumps over a lazy dog.\n", k=30_000)))
    return str(path)


def images(folder: Path) -> str:
    """CIFAR-10's binary form with random pixels."""
    for name in cifar10.TRAINING:
        records = np.random.default_rng(0).integers(0, 256, (cifar10.IMAGES, cifar10.RECORD), np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / f"{name}.bin")
    return str(folder)


def language(name: str) -> Callable[[Path], Bundle]:
    return lambda folder: job("vgame.tasks.shipped:language_model", text=text(folder), name=name)


SMALL: dict[str, Callable[[Path], Bundle]] = {
    "digits": lambda _: prepare(read_job_file(Path(str(files("vgame.tasks") / "digits.toml")))),
    "SmallResNet": lambda _: job("vgame.tasks.shipped:small_resnet"),
    "SmallGPT": language("SmallGPT"),
    "SmallLlama": language("SmallLlama"),
    "SmallLSTM": language("SmallLSTM"),
}
FULL: dict[str, Callable[[Path], Bundle]] = {
    "ResNet-50": lambda folder: job("vgame.tasks.shipped:resnet50", folder=images(folder), check=False),
    "GPT-2": lambda folder: job("vgame.tasks.shipped:gpt2", text=text(folder)),
}


# ---- choice of elements ----


def kind_of(operator: Operator) -> str:
    """`map EXP`, `contract DOT`, `contract SUM, long`, `gather` ..."""
    detail = getattr(operator, "function", getattr(operator, "variant", None))
    kind = " ".join([type(operator).__name__.lower(), *([detail.name] if detail is not None else [])])
    return f"{kind}, long" if terms(operator) > LONG else kind


def terms(operator: Operator) -> int:
    """Words of a row read by one element; 0 for single words."""
    match operator:
        case Contract():
            return operator.k
        case ReduceMax():
            return min(operator.block, operator.length)
        case ArgMax():
            return operator.length
    return 0


def draw(operators: tuple[Operator, ...], random: Random) -> dict[str, list[tuple[int, int]]]:
    """(operator, element) of every kind: DRAWS at random, and one of the operator with the longest rows."""
    groups: dict[str, list[int]] = defaultdict(list)
    for i, operator in enumerate(operators):
        groups[kind_of(operator)].append(i)
    found = {}
    for kind, members in sorted(groups.items()):
        chosen = [*random.choices(members, k=DRAWS), max(members, key=lambda i: terms(operators[i]))]
        found[kind] = [(i, random.randrange(operators[i].elements)) for i in chosen]
    return found


# ---- one job ----


def step_of(bundle: Bundle, folder: Path) -> StepOnChain:
    executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode)
    return StepOnChain(deploy_referee(), History(Store(folder / "run", bundle), executor), STEP)


def keep(step: StepOnChain, chosen: set[int]) -> None:
    """Compute the trace, then all tensors of the chosen operators, in one execution of the step each."""
    assert len(step.trace.levels[0]) == step.history.operators
    wanted = {
        r.index
        for i in chosen
        for r, _, _ in operand_refs(step.history.program.operators[i])
        if r.cls is RefClass.OPERATOR
    }
    step.history.room = 1 << 40
    step.history.outputs(STEP, wanted | chosen)


def adjudicate(name: str, bundle: Bundle, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """(the job's entry of the record, all problems)."""
    started, random, wrong, table = time.perf_counter(), Random(name), [], {}
    step, operators = step_of(bundle, folder), bundle.program.operators
    chosen = draw(operators, random)
    keep(step, {i for group in chosen.values() for i, _ in group})
    for kind, elements in chosen.items():
        gas: list[int] = []
        for operator, element in elements:
            faults, ruling = step.faults(operator, element, random)
            wrong += [f"{name}, {bundle.program.operator_name(operator)}, element {element}: {f}" for f in faults]
            gas += ruling.gas
        longest = max(terms(operators[i]) for i, _ in elements)
        table[kind] = {"elements": len(elements), "longest": longest, "calls": len(gas), "gas": [min(gas), max(gas)]}
        print(f"{name}: {kind}: {len(elements)} elements, {max(gas):,} gas at most", flush=True)
    dear = [kind for kind, row in table.items() if row["longest"] <= LONG and row["gas"][1] > LEAF_GAS]
    wrong += [f"{name}, {kind}: a call costs {table[kind]['gas'][1]:,} gas" for kind in dear]
    entry = {"operators": len(operators), "state": sum(t.numel() for t in bundle.state), "kinds": table}
    return entry | {"seconds": round(time.perf_counter() - started)}, wrong


# ---- the record ----

INTRODUCTION = """# Adjudication: elements of real steps, decided by the contract

Written by `experiments/adjudicate.py` (with `--full`: ResNet-50 and GPT-2 too). From step 2 of each
job, 5 elements of every kind of operator and every function of its program are drawn, and one more
of the operator with the longest rows. Each is proven as in a dispute and decided by the checked-in
contracts. The contract's word equals that of the executor and of the reference, bit for bit. It is
the same for a trace in which one bit of the claimed word is flipped. A proof with one flipped bit
reverts with an error that names the fault.

Gas is for one call to the referee as a transaction, calldata included (the other moves are in
gas.json). A sum of more than 1,024 terms is decided in blocks, one call each and one that combines
them: 64 blocks at most, so a call costs less than a million gas up to 65,536 terms, and more where
a sum is "long". The seconds are for three steps, all proofs and all calls on two CPU cores.
"""


def lines(record: dict[str, Any]) -> Iterator[str]:
    """docs/adjudication.md."""
    yield INTRODUCTION
    yield (
        "| job | operators | words of state | kinds and functions | elements | longest row | dearest call, gas | "
        "seconds |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, entry in record.items():
        rows = entry["kinds"].values()
        longest, gas = max(r["longest"] for r in rows), max(r["gas"][1] for r in rows)
        yield (
            f"| {name} | {entry['operators']:,} | {entry['state']:,} | {len(rows)} | "
            f"{sum(r['elements'] for r in rows)} | {longest:,} | {gas:,} | {entry['seconds']:,} |"
        )
    yield "\n| kind and function | jobs | elements | calls | longest row | gas of a call, least to most |"
    yield "|---|---|---|---|---|---|"
    for kind in sorted({k for entry in record.values() for k in entry["kinds"]}):
        rows = [entry["kinds"][kind] for entry in record.values() if kind in entry["kinds"]]
        elements, calls = sum(r["elements"] for r in rows), sum(r["calls"] for r in rows)
        longest = max(r["longest"] for r in rows)
        least, most = min(r["gas"][0] for r in rows), max(r["gas"][1] for r in rows)
        yield (
            f"| {kind} | {len(rows)} | {elements} | {calls} | {f'{longest:,}' if longest else ''} | {least:,} to "
            f"{most:,} |"
        )


def write(entries: dict[str, Any]) -> None:
    """Replace the entries of these jobs."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record |= entries
    record = {name: record[name] for name in [*SMALL, *FULL] if name in record}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    RECORD.with_suffix(".md").write_text("\n".join(lines(record)) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[*SMALL, *FULL, []], help="default: the small ones")
    parser.add_argument(
        "--full",
        action="store_true",
        help="ResNet-50 and GPT-2 too: a quarter of an hour, 9 GB of memory, transformers",
    )
    arguments = parser.parse_args()
    wrong: list[str] = []
    for name in arguments.jobs or [*SMALL, *(FULL if arguments.full else ())]:
        with tempfile.TemporaryDirectory() as folder:
            entry, faults = adjudicate(name, (SMALL | FULL)[name](Path(folder)), Path(folder))
        wrong += faults
        if not faults:
            write({name: entry})
    print("\n".join(wrong) or "every element is decided as it was computed, and every forgery is refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
