"""Measure traffic, memory and time of ranks, by job and number of ranks; each run's root must be that of one rank. JSON
on stdout.

    python experiments/ranks.py > docs/ranks.json        # bytes and words; ranks are threads of one process
    python experiments/ranks.py --times                  # seconds too; ranks are processes of one thread, over gloo
    python experiments/ranks.py JOB.toml BUNDLE ... --steps 20 --worlds 1 2  # these jobs
    python experiments/ranks.py BUNDLE --plan --worlds 2 8 64  # bytes and rounds by the plan alone, without a run

Times need an idle machine. Bytes are those that a rank sends in a step; `plain` is the traffic of data-parallel
training in binary32 (an all-reduce of the gradients in a ring: 2 (N - 1) / N words per parameter).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vgame.commit.merkle import Kind, fold, tree_height
from vgame.commit.tensor import tensors_root
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle, load_bundle
from vgame.job.file import read_job_file
from vgame.program.operators import Variant
from vgame.ranks.exchange import Group
from vgame.ranks.group import joined
from vgame.ranks.lead import rank_executor
from vgame.ranks.part import Exchange, Looked, Summed, part_of
from vgame.ranks.plan import make_plan, shared_work
from vgame.ranks.split import Share
from vgame.runs.prepare import prepare

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "unit"))
from rank_groups import together  # noqa: E402

TASKS = ROOT / "vgame" / "tasks"
SHIPPED = ("digits", "small_resnet", "small_gpt", "small_llama", "small_lstm")
WORLDS = (1, 2, 4, 8)


def main() -> None:
    arguments = parse()
    if arguments.worker:
        print(json.dumps(work(arguments.jobs[0], arguments.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        jobs = arguments.jobs or shipped(Path(folder))
        rows = [row for job in jobs for row in measured(job, Path(folder), arguments)]
    print(json.dumps({"command": " ".join(["python", *sys.argv]), "steps": arguments.steps, "rows": rows}, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--plan", action="store_true", help="figures of the plan, without a step")
    parser.add_argument("--worlds", type=int, nargs="+", default=WORLDS, help="numbers of ranks; the first must be 1")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def shipped(folder: Path) -> list[Path]:
    """The shipped jobs, with a text of our own: bytes do not depend on its content."""
    text, jobs = folder / "text.txt", []
    text.write_text("Data are cut by samples, and every operator follows its operands. " * 200)
    for name in SHIPPED:
        jobs.append(folder / f"{name}.toml")
        jobs[-1].write_text((TASKS / f"{name}.toml").read_text().replace('"shakespeare.txt"', json.dumps(str(text))))
    return jobs


def measured(job: Path, folder: Path, arguments: argparse.Namespace) -> list[dict]:
    """One row per number of ranks."""
    bundle = job
    if job.is_file():
        bundle = folder / f"{job.stem}.bundle"
        prepare(read_job_file(job)).save(bundle)
    rows = []
    if arguments.plan:
        loaded = load_bundle(bundle)
        return [{"job": job.stem, "ranks": world} | planned(loaded, world) for world in arguments.worlds if world > 1]
    for world in arguments.worlds:
        found = run(bundle, world, arguments)
        rows.append({"job": job.stem, "ranks": world} | row_of(found, rows[0] if rows else None, arguments.times))
        print(f"{job.stem}, {world}: {rows[-1]}", file=sys.stderr)
    return rows


def planned(bundle: Bundle, world: int) -> dict:
    """The model of docs/ranks.md: words that rank 0 gives, and rounds, by the plan."""
    part = part_of(bundle.program, make_plan(bundle.program, world), 0)
    words, rounds = world - 1, 1
    for operator in part.operators:
        sent, times = _given(operator, world)
        words, rounds = words + sent, rounds + times
    plain = 8 * (world - 1) * parameters(bundle) // world
    return {"planned_bytes": 4 * words, "over_plain": round(4 * words / plain, 2), "rounds": rounds}


def _given(operator: object, world: int) -> tuple[int, int]:
    """(words, rounds) of one operator; open sums are not counted."""
    match operator:
        case Exchange(wanted=None):
            return Share(0, world).elements(operator.given, operator.whole) * (world - 1), 1
        case Exchange():
            return Share(0, world).elements(operator.given, operator.whole) * (world - 1) // world, 1
        case Looked():
            return world * (world - 1), 1
        case Summed(operator=sums, split=split):
            rows = sums.batch * (sums.m + (0 if sums.variant is Variant.SUM else sums.n))
            if split is None:
                return 2 * (world - 1) * (1 + sums.elements + rows), 1
            return 2 * (world - 1) * (1 + sums.elements // world + rows), 2
    return 0, 0


def row_of(found: list[dict], alone: dict | None, times: bool) -> dict:
    """A row from the ranks' results, relative to one rank."""
    if alone and found[0]["root"] != alone["root"]:
        sys.exit(f"roots differ: {found[0]['root']}, one rank: {alone['root']}")
    first, sent, held = found[0], max(r["bytes"] for r in found), max(r["state"] for r in found)
    row = {"root": first["root"], "work_shared": first["work_shared"], "exchanges": first["exchanges"], "bytes": sent}
    plain = 8 * (len(found) - 1) * first["parameters"] // len(found)
    row |= {"bytes_over_plain": round(sent / plain, 2) if plain else None}
    row |= {key: first[key] for key in ("planned_bytes", "rounds") if key in first}
    row |= {"state_words": held, "state_over_one": round(held / (alone or {"state_words": held})["state_words"], 3)}
    if times:
        slowest = max(rank["seconds"] for rank in found)
        row |= {"seconds": slowest, "time_over_one": round(slowest / (alone or {"seconds": slowest})["seconds"], 3)}
        row |= {"peak_mb": max(rank["peak_mb"] for rank in found), "seconds_hashing": first["seconds_hashing"]}
    return row


def run(bundle: Path, world: int, arguments: argparse.Namespace) -> list[dict]:
    """The results of each rank of a group."""
    if not arguments.times:
        loaded = load_bundle(bundle)
        one = [alone(loaded, arguments.steps)]
        if world == 1:
            return one
        found = together(world, lambda group: shared(loaded, group, arguments.steps))
        return [rank | planned(loaded, world) for rank in found]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, __file__, "--worker", str(bundle), "--steps", str(arguments.steps)]
    ranks = [
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=os.environ | meet | {"RANK": str(rank)})
        for rank in range(world)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit(f"a rank of {world} on {bundle} failed")
    return [json.loads(text) for text in outputs]


def work(folder: Path, steps: int) -> dict:
    """One rank as a process."""
    bundle = load_bundle(folder)
    if os.environ["WORLD_SIZE"] == "1":
        return alone(bundle, steps) | {"peak_mb": peak()}
    with joined() as group:
        return shared(bundle, group, steps) | {"peak_mb": peak()}


def peak() -> int:
    """Peak memory of this process, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def alone(bundle: Bundle, steps: int) -> dict:
    """The results of a run without ranks."""
    executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode)
    state, seconds = stepped(executor, executor.initial(bundle.state), steps)
    result = {"bytes": 0, "exchanges": 0, "work_shared": 0.0, "parameters": parameters(bundle), "seconds": seconds}
    start = time.perf_counter()
    root = tensors_root(Kind.STATE, state).hex()
    seconds = round(time.perf_counter() - start, 3)
    return result | {"state": sum(t.numel() for t in state), "root": root, "seconds_hashing": seconds}


def shared(bundle: Bundle, group: Group, steps: int) -> dict:
    """The results of one of several ranks."""
    executor = rank_executor(bundle, "cpu", group)
    state, seconds = stepped(executor, executor.to_device(bundle.state), steps)
    result = {"bytes": group.sent // steps, "parameters": parameters(bundle), "seconds": seconds}
    result |= {"exchanges": sum(isinstance(op, Exchange) for op in executor.program.operators)}
    result |= {"work_shared": round(shared_work(bundle.program, executor.plan.nodes), 4)}
    result |= {"state": sum(t.numel() for t in state)}
    start = time.perf_counter()
    roots = executor.roots(state)  # on rank 0
    result |= {"seconds_hashing": round(time.perf_counter() - start, 3)}
    return result | {"root": fold(Kind.STATE, roots, tree_height(len(roots))).hex() if roots else None}


def parameters(bundle: Bundle) -> int:
    """Words of the module's own tensors."""
    labels, names = bundle.program.labels.state, {name for name, _ in bundle.keys.values()}
    return sum(s.elements for s, l in zip(bundle.program.sources, labels, strict=True) if l.name in names)


def stepped(executor: Executor, state, steps: int):
    """(state after `steps` steps, seconds of the fastest step)."""
    seconds = []
    for step in range(1, steps + 1):
        start = time.perf_counter()
        state = executor.step(step, state).state
        seconds.append(time.perf_counter() - start)
    return state, min(seconds)


if __name__ == "__main__":
    main()
