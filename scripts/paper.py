"""The paper's tables again (Srivastava, Arora, Boneh 2024): docs/paper.json, the tables in docs/paper.md and the pictures beside it.

    python scripts/paper.py --text shakespeare.txt [--steps 2000] [--only divergence ...] [--jobs digits ...] [--device cuda]
    python scripts/paper.py --quick --out FOLDER      seconds; the same code on few steps

Experiments: divergence (between two devices, and by data order), storage, corrections, thresholds, time, large (one real step of ResNet-50
and of GPT-2). Every device is a process of its own; results of earlier calls stay in the JSON, so experiments can be run one by one.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
JOBS = {"digits": "CNN on the digits", "small_gpt": "small GPT"}
MODES = ("fp32", "nearest", "logged", "proven", "correct")
SURVEYED = 12  # sums of an operator whose freedom is computed, fewer if they are long
LONGEST = 1 << 13  # longer sums, of which there are few, are left out of that


def bundle_of(
    name: str, text: Path, steps: int, mode: str = "logged", thresholds: str = "proven", bits: int = 32, seed: int = 0
):
    """A shipped job as a bundle with other numbers."""
    from vgame.spec import LogTerms, prepare, read_job_file

    job = read_job_file(ROOT / f"vgame/tasks/{name}.toml")
    args = job.args | ({"text": str(text)} if "text" in job.args else {})
    log = LogTerms(bits=bits, thresholds=thresholds) if mode == "logged" else None
    return prepare(
        job.model_copy(
            update={"args": args, "steps": steps, "interval": steps, "mode": mode, "log": log, "seed": job.seed + seed}
        )
    )


# ---- one device: a process of its own ----


def worker(order: dict[str, Any]) -> dict[str, Any]:
    """Steps of one mode on one device: state roots, losses, weights at the marked steps; in logged modes the log is made or followed."""
    from vgame.commit.merkle import Kind
    from vgame.commit.tensor import tensors_root
    from vgame.execute.devices import settle
    from vgame.execute.executor import Executor
    from vgame.logged.logfile import LogFile
    from vgame.logged.run import make_executor
    from vgame.spec import load_bundle

    with settle(order["device"]) as kind:
        bundle = load_bundle(Path(order["bundle"]))
        steps, marks = order["steps"], set(order["marks"])
        log = None
        if bundle.mode == "logged":
            executor = make_executor(bundle, kind)
            log = LogFile(Path(order["log"]), bundle.program, bundle.identity, bundle.log.bits)
            executor.read = follower(log) if order["device"] == order["follows"] else lambda step: None
        else:
            executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, order["mode"], kind)
        state, roots, losses, weights = executor.initial(bundle.state), [], [], {}
        floats = [i for i, t in enumerate(bundle.state) if t.is_floating_point()]
        for step in range(1, steps + 1):
            result = executor.step(step, state)
            state = result.state
            roots.append(tensors_root(Kind.STATE, state).hex())
            losses.append(float(result.loss))
            if step in marks:
                weights[str(step)] = np.concatenate([state[i].cpu().numpy() for i in floats])
            if log is not None and executor.made:
                log.append(executor.made)
                executor.made.clear()
        np.savez(order["out"], **weights)
        found = {"roots": roots, "losses": losses}
        if log is not None:
            labels, tally = bundle.program.labels.operators, executor.kernels.tally
            backward = sum(n for i, n in tally.corrections.items() if "backward" in labels[i])
            found |= {
                "log": log.path.stat().st_size,
                "entries": sum(tally.entries.values()),
                "backward": backward,
                "forward": sum(tally.corrections.values()) - backward,
                "exact": sum(tally.exact.values()),
            }
        if order["job"] == "digits":
            from vgame.tasks.digits import accuracy

            named = {l.name: t.cpu().reshape(l.shape) for l, t in zip(bundle.program.labels.state, state, strict=True)}
            found["accuracy"] = accuracy(named)
        return found


def follower(log) -> Callable:
    """Reads the steps of a log while another process makes it."""

    def read(step: int):
        for _ in range(6000):
            if log.steps >= step:
                break
            time.sleep(0.1)
            log.look()
        return log.read(step)

    return read


def on_devices(bundle, order: dict[str, Any], devices: list[str], folder: Path) -> list[tuple]:
    """The worker on two devices at once; in logged modes the second follows the log that the first one makes."""
    from vgame.logged.logfile import LogFile

    if bundle.log:
        LogFile(
            Path(order["log"]), bundle.program, bundle.identity, bundle.log.bits
        )  # it is there before either looks for it
    orders = [
        order | {"device": d, "follows": devices[1], "out": str(folder / f"{order['mode']}-{d}.npz")} for d in devices
    ]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(on_device, orders))


def on_device(order: dict[str, Any]) -> tuple[dict[str, Any], dict[int, np.ndarray]]:
    """The worker in a process of its own; its weights at the marked steps too."""
    command = [sys.executable, __file__, "--worker", json.dumps(order)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(result.stderr[-2000:])
    with np.load(order["out"]) as file:
        weights = {int(step): file[step] for step in file.files}
    return json.loads(result.stdout.splitlines()[-1]), weights


# ---- experiments ----


def marked(steps: int) -> list[int]:
    """Some twenty steps, closer at the beginning."""
    return sorted({round(steps ** (i / 20)) for i in range(21)})


def divergence(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Two devices in every mode, and two orders of the data on one device: where they part, L2 distances, losses, accuracy."""
    from vgame.spec import save_bundle

    steps, found = options.steps, {}
    with tempfile.TemporaryDirectory(prefix="vgame-paper-") as name:
        folder = Path(name)
        for mode in options.modes:
            bundle = bundle_of(
                job,
                options.text,
                steps,
                "logged" if mode in ("logged", "proven") else mode,
                {"logged": "adaptive"}.get(mode, "proven"),
            )
            save_bundle(bundle, folder / mode)
            order = {"job": job, "bundle": str(folder / mode), "mode": mode, "steps": steps, "marks": marked(steps)}
            order |= {"log": str(folder / f"{mode}.vglog")}
            runs = on_devices(bundle, order, options.devices, folder)
            found[mode] = compare(*runs)
            print(job, mode, "parted at", found[mode]["parted"], flush=True)
            if mode == "fp32":
                save_bundle(bundle_of(job, options.text, steps, "fp32", seed=1), folder / "order")
                other = on_device(
                    order
                    | {"bundle": str(folder / "order"), "device": options.devices[0], "out": str(folder / "order.npz")}
                )
                found["order"] = compare(runs[0], other)
        for run in found.values():
            run["steps"] = steps
    return {"devices": options.devices, "modes": found}


def compare(first: tuple, second: tuple) -> dict[str, Any]:
    """What two runs have in common."""
    (a, weights_a), (b, weights_b) = first, second
    parted = next((i for i, (x, y) in enumerate(zip(a["roots"], b["roots"], strict=True), 1) if x != y), None)
    distances = {s: float(np.linalg.norm(weights_a[s].astype(float) - weights_b[s])) for s in weights_a}
    result = {"parted": parted, "distance": distances, "loss": [float(np.mean(r["losses"][-50:])) for r in (a, b)]}
    result["apart"] = float(np.max(np.abs(np.subtract(a["losses"], b["losses"]))))
    if "accuracy" in a:
        result["accuracy"] = [a["accuracy"], b["accuracy"]]
    if "log" in a:
        result |= {
            "log": a["log"],
            "entries": a["entries"],
            "forward": b["forward"],
            "backward": b["backward"],
            "exact": a["exact"],
        }
    return result


def storage_of(
    bundle, step: int = 1, every: tuple[str, ...] = ("naive", "packed", "sparse"), follow: bool = False
) -> dict[str, Any]:
    """Bytes of one real step in each encoding, and how much freedom a trainer has there; the step is made from the initial state."""
    from vgame.logged.encoding import Encoding, encode, entropy_bytes
    from vgame.logged.kernels import sum_operators
    from vgame.logged.logfile import LogFile
    from vgame.logged.run import make_executor
    from vgame.logged.sums import Entries

    executor, free = make_executor(bundle, "cpu"), {}
    dice = random.Random(1)

    def survey(operator: int, enclose: Callable) -> None:
        """The chance that a sum has two admissible words, from some of them."""
        n, k = bundle.program.operators[operator].elements, bundle.program.operators[operator].k
        if 1 < k <= LONGEST:
            found = [enclose(dice.randrange(n)) for _ in range(min(SURVEYED, -(-LONGEST // k)))]
            free[operator] = n * statistics.mean(e.chance if e else 0.0 for e in found)

    executor.kernels.survey = survey
    started = time.perf_counter()
    executor.step(step, executor.initial(bundle.state))
    seconds, made = time.perf_counter() - started, executor.made[step]  # the survey's seconds among them
    elements = {i: bundle.program.operators[i].elements for i in sum_operators(bundle.program)}
    floats = sum(op.elements for op in bundle.program.operators if not op.integer)
    counts = {i: len(made.get(i, Entries())) for i in elements}
    found = {
        "sums": sum(elements.values()),
        "outputs": floats,
        "entries": sum(counts.values()),
        "free": sum(free.values()) / sum(elements.values()),
    }
    found["entropy"] = round(sum(entropy_bytes(counts[i], n) for i, n in elements.items()))
    for name in every:
        found[name] = sum(len(encode(made.get(i, Entries()), n, Encoding[name.upper()])) for i, n in elements.items())
    with tempfile.TemporaryDirectory() as folder:
        log = LogFile(Path(folder) / "log", bundle.program, bundle.identity, bundle.log.bits)
        found["file"] = 12 + len(log.sections(step, made))
    found |= {
        "state": 4 * sum(t.numel() for t in bundle.state),
        "seconds": seconds,
        "exact": sum(executor.kernels.tally.exact.values()),
    }
    return found


def storage(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every number of bits, adaptive and proven."""
    base = {kind: bundle_of(job, options.text, 10, thresholds=kind) for kind in options.windows}
    found: dict[str, Any] = {}
    for bits in options.bits:
        for kind, bundle in base.items():
            logged = replace(bundle, log=bundle.log.model_copy(update={"bits": bits}))
            found.setdefault(str(bits), {})[kind] = storage_of(logged)
    return found


def corrections(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Corrections of the second device that follows the first one's log, by bits."""
    from vgame.spec import save_bundle

    found = {}
    steps = max(2, options.steps // 40)
    with tempfile.TemporaryDirectory(prefix="vgame-paper-") as name:
        folder = Path(name)
        for bits in options.bits:
            bundle = bundle_of(job, options.text, steps, thresholds="proven", bits=bits)
            save_bundle(bundle, folder / str(bits))
            order = {"job": job, "bundle": str(folder / str(bits)), "mode": "logged", "steps": steps, "marks": []}
            order |= {"log": str(folder / f"{bits}.vglog")}
            runs = on_devices(bundle, order, options.devices, folder)
            result, sums = compare(*runs), sum(op.elements for op in bundle.program.operators if not op.integer)
            keys = ("parted", "forward", "backward", "entries")
            found[str(bits)] = {k: result[k] for k in keys} | {"steps": steps, "outputs": sums}
            print(job, bits, "bits", found[str(bits)], flush=True)
    return found


def thresholds(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """The least safe window per kind and layer, and what the paper's threshold would be."""
    from vgame.logged.thresholds import calibrate

    found = calibrate(bundle_of(job, options.text, 10), 3, tuple(options.devices))
    return {group: {"window": found.safe[group], "plain": found.plain[group]} for group in found.safe}


def timing(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the same steps, one variant after the other, again and again; medians of the ratios to plain binary64."""
    import torch

    from vgame.execute.executor import Executor
    from vgame.logged.run import make_executor
    from vgame.spec import make_task, read_job_file

    bundle = bundle_of(job, options.text, 1000, thresholds="adaptive" if not options.quick else "proven")
    source = read_job_file(ROOT / f"vgame/tasks/{job}.toml")
    task_args = source.args | ({"text": str(options.text)} if "text" in source.args else {})
    source = source.model_copy(update={"args": task_args})
    variants: dict[str, Callable[[int], object]] = {}
    for name, dtype in (("PyTorch binary32", torch.float32), ("PyTorch binary64", torch.float64)):
        variants[name] = eager(make_task(source), dtype)
    state = list(bundle.state)
    for name, mode in (("program binary32", "fp32"), ("program binary64", "nearest"), ("correct", "correct")):
        executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed, mode)
        variants[name] = lambda step, executor=executor: executor.step(step, state)
    trainer, auditor = make_executor(bundle, "cpu"), make_executor(bundle, "cpu")
    auditor.read = lambda step: trainer.made[step]
    variants["trainer"] = lambda step: trainer.step(step, state)
    variants["auditor"] = lambda step: auditor.step(step, state)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for step in range(1, options.repeats + 3):
        for name, run in variants.items():
            started = time.perf_counter()
            run(step)
            if step > 2:
                seconds[name].append(time.perf_counter() - started)
    base = ("PyTorch binary64", "program binary64")
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratios = {
        name: [statistics.median(x / y for x, y in zip(times, seconds[b], strict=True)) for b in base]
        for name, times in seconds.items()
    }
    return {"steps": options.repeats, "median": medians, "ratio": ratios, "threads": torch.get_num_threads()}


def eager(task, dtype) -> Callable[[int], object]:
    """A step of an ordinary PyTorch loop in this precision."""
    import torch

    model, optimizer = task.model.to(dtype), task.optimizer

    def step(number: int) -> None:
        batch = task.samples((torch.arange(task.batch) + number * task.batch) % task.population)
        optimizer.zero_grad()
        task.loss(model, {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}).backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()

    return step


def large(job: str, options: argparse.Namespace) -> dict[str, Any]:
    """One real step of a full-size job: storage with the proven window and with the adaptive one's least."""
    from vgame.logged.thresholds import LEAST

    if job == "resnet50":
        sys.path.insert(0, str(ROOT / "scripts"))
        from large import random_cifar

        folder = Path(tempfile.mkdtemp(prefix="vgame-cifar-"))
        random_cifar(folder)
        bundle = bundle_of_large(job, {"folder": str(folder), "check": False})
    else:
        bundle = bundle_of_large(job, {"text": str(options.text)})
    found = {}
    for kind, window in (("proven", 2.0), ("adaptive", LEAST)):
        if kind not in options.windows:
            continue
        windows = (window,) * len(bundle.log.windows)
        found[kind] = storage_of(
            replace(bundle, log=bundle.log.model_copy(update={"windows": windows})), every=("sparse",)
        )
        found[kind]["packed"] = -(-found[kind]["sums"] // 5)
        print(job, kind, found[kind], flush=True)
    found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return found


def bundle_of_large(job: str, args: dict[str, Any]):
    """ResNet-50 or GPT-2 in mode logged, proven."""
    from vgame.spec import LogTerms, prepare, read_job_file

    source = read_job_file(ROOT / f"vgame/tasks/{job}.toml")
    update = {
        "args": source.args | args,
        "steps": 1,
        "interval": 1,
        "mode": "logged",
        "log": LogTerms(thresholds="proven"),
    }
    return prepare(source.model_copy(update=update))


EXPERIMENTS: dict[str, Callable] = {
    "thresholds": thresholds,
    "storage": storage,
    "corrections": corrections,
    "time": timing,
    "divergence": divergence,
    "large": large,
}


# ---- tables and pictures ----


def take_in(results: dict[str, Any], name: str, job: str, found: dict[str, Any]) -> None:
    """Add what an experiment found; modes of one divergence experiment come one by one."""
    place = results.setdefault(name, {})
    if name == "divergence" and job in place:
        found["modes"] = place[job]["modes"] | found["modes"]
    place[job] = place.get(job, {}) | found if name == "large" else found


def title(job: str) -> str:
    """A job for people; with its second device, where that is not the usual one."""
    name, _, device = job.partition(" ")
    return JOBS[name] + (f", device B: {device}" if device else "")


def number(x: float) -> str:
    """Two or three digits that a reader can take in."""
    if x == 0 or 0.01 <= abs(x) < 10:
        return f"{x:.2f}".rstrip("0").rstrip(".") or "0"
    return f"{x:,.0f}" if abs(x) >= 10 else f"{x:.1e}"


def table(head: list[str], rows: list[list[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(number(c) if isinstance(c, float) else str(c) for c in row) + " |" for row in lines
    )


def divergence_table(found: dict[str, Any]) -> str:
    """Where two devices part, by job and mode."""
    rows = []
    for job, one in found.items():
        for mode, run in one["modes"].items():
            name = "fp32, another order of the data" if mode == "order" else mode
            last = max(run["distance"], key=int, default=None)
            accuracy = " / ".join(f"{100 * a:.1f} %" for a in run["accuracy"]) if "accuracy" in run else ""
            losses = " / ".join(f"{x:.4f}" for x in run["loss"])
            parted = f"at step {run['parted']}" if run["parted"] else f"never in {run['steps']:,} steps"
            log = (
                f"{run['log'] / run['steps']:,.0f} bytes, {run['forward']} + {run['backward']}" if "log" in run else ""
            )
            rows.append([title(job), name, parted, run["distance"][last] if last else 0.0, losses, accuracy, log])
    return table(
        [
            "job",
            "mode",
            "states part",
            "L2 distance at the end",
            "loss, last 50 steps",
            "test accuracy",
            "log per step, corrections",
        ],
        rows,
    )


def storage_table(found: dict[str, Any]) -> str:
    """Bytes per step by bits and encoding."""
    rows = []
    for job, by_bits in found.items():
        for bits, kinds in by_bits.items():
            for kind, one in kinds.items():
                rows.append(
                    [title(job), bits, kind, one["entries"], f"{one['naive']:,}", f"{one['packed']:,}", f"{one['file']:,}",
                     f"{one['entropy']:,}",
                     f"{one['packed'] / one['file']:,.0f}", f"{100 * one['free']:.2g} %"]
                )  # fmt: skip
    head = [
        "job",
        "b",
        "window",
        "entries",
        "naive",
        "packed",
        "sparse record",
        "entropy",
        "packed / sparse",
        "sums with two admissible words",
    ]
    return table(head, rows)


def large_table(found: dict[str, Any]) -> str:
    """The full-size steps."""
    names, rows = {"resnet50": "ResNet-50, batch 64", "gpt2": "GPT-2, 8 x 64 tokens"}, []
    for job, kinds in found.items():
        for kind in sorted(kinds.keys() - {"memory"}, reverse=True):
            one = kinds[kind]
            every = one["outputs"] / 5
            rows.append(
                [names[job], kind, f"{one['outputs'] / 1e6:,.0f} M", f"{one['sums'] / 1e6:,.0f} M", f"{one['entries']:,}",
                 f"{every / 1e6:,.1f} MB",
                 f"{one['packed'] / 1e6:,.1f} MB", f"{one['file'] / 1e3:,.1f} kB", f"{one['packed'] / one['file']:,.0f}",
                 f"{one['state'] / 1e6:,.0f} MB", f"{100 * one['free']:.2g} %"]
            )  # fmt: skip
    head = [
        "step",
        "window",
        "outputs",
        "sums",
        "entries",
        "packed, every output",
        "packed, sums",
        "sparse",
        "packed sums / sparse",
        "a checkpoint",
        "sums with two admissible words",
    ]
    return table(head, rows)


def corrections_table(found: dict[str, Any]) -> str:
    """Corrections per step."""
    rows = []
    for job, by_bits in found.items():
        for bits, one in by_bits.items():
            total = one["forward"] + one["backward"]
            share = total / one["steps"] / one["outputs"]
            rows.append(
                [title(job), bits, one["steps"], one["entries"] / one["steps"], one["forward"], one["backward"],
                 f"{100 * share:.1e} %" if total else "0", one["parted"] or "never"]
            )  # fmt: skip
    return table(
        ["job", "b", "steps", "entries per step", "corrections forward", "backward", "share of outputs", "states part"],
        rows,
    )


def thresholds_table(found: dict[str, Any]) -> str:
    """By kind and layer; groups whose devices agreed in every bit are counted only."""
    rows = []
    for job, groups in found.items():
        moved = {g: one for g, one in groups.items() if one["window"]}
        rows += [
            [title(job), g, one["window"], f"{one['plain']:.6f}"]
            for g, one in sorted(moved.items(), key=lambda x: -x[1]["window"])[:12]
        ]
        rows.append([title(job), f"{len(groups) - len(moved)} of {len(groups)} groups", "0", "0.5"])
    return table(
        ["job", "kind and layer", "least safe window, in bounds e", "the paper's threshold that would be safe, in ulp"],
        rows,
    )


def time_table(found: dict[str, Any]) -> str:
    """Ratios of paired steps."""
    rows = [
        [title(job), name, 1e3 * one["median"][name], ratio[1], ratio[0]]
        for job, one in found.items()
        for name, ratio in one["ratio"].items()
    ]
    return table(
        ["job", "variant", "ms per step", "ratio to the program in binary64", "ratio to PyTorch in binary64"], rows
    )


TABLES = {
    "divergence": divergence_table,
    "storage": storage_table,
    "large": large_table,
    "corrections": corrections_table,
    "thresholds": thresholds_table,
    "time": time_table,
}


def render(results: dict[str, Any], folder: Path) -> None:
    """The pictures, and the tables between the marks of paper.md where there is one."""
    page = folder / "paper.md"
    text = page.read_text() if page.exists() else ""
    for name, make in TABLES.items():
        if name in results:
            start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
            if start in text:
                text = text[: text.index(start)] + f"{start}\n\n{make(results[name])}\n\n" + text[text.index(end) :]
            else:
                print(make(results[name]))
    if page.exists():
        page.write_text(text)
    if "divergence" in results:
        draw(results["divergence"], folder / "paper-divergence.svg")


def draw(found: dict[str, Any], path: Path) -> None:
    """L2 distance of the two devices' weights against steps, one panel per job; what is 0 has no line."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "vgame"
    figure, panels = plt.subplots(1, len(found), figsize=(6 * len(found), 4), squeeze=False)
    for panel, (job, one) in zip(panels[0], found.items(), strict=True):
        for mode, run in one["modes"].items():
            points = [(int(s), d) for s, d in run["distance"].items() if d > 0]
            label = "fp32, another order of the data" if mode == "order" else mode
            panel.plot(*zip(*points, strict=True), label=label) if points else panel.plot(
                [], [], label=f"{label}: 0 throughout"
            )
        some = any(d > 0 for run in one["modes"].values() for d in run["distance"].values())
        scales = {"xscale": "log", "yscale": "log"} if some else {}
        panel.set(
            xlim=(1, max(run["steps"] for run in one["modes"].values())),
            xlabel="step",
            ylabel="L2 distance of the state",
            title=title(job),
            **scales,
        )
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=ROOT / "LICENSE", help="any text file, for the language model")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--bits", type=int, nargs="*", default=[26, 28, 30, 32])
    parser.add_argument(
        "--only",
        nargs="*",
        choices=list(EXPERIMENTS),
        default=["thresholds", "storage", "corrections", "time", "divergence"],
    )
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--windows", nargs="*", default=["adaptive", "proven"])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--devices", nargs=2, default=["default", "compatible"])
    parser.add_argument("--device", choices=["cuda"], help="the second device is a GPU")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of paper.json and the pictures")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument(
        "--merge", type=Path, nargs="*", default=[], help="other paper.json files whose experiments are taken in first"
    )
    options = parser.parse_args()
    if options.worker:
        from vgame.execute.devices import prepare_environment

        order = json.loads(options.worker)
        prepare_environment(order["device"])
        print(json.dumps(worker(order)))
        return
    if options.device:
        options.devices[1] = options.device
    if options.quick:
        options.steps, options.repeats, options.bits, options.jobs, options.windows = 2, 2, [32], ["digits"], ["proven"]
        options.only, options.modes = ["storage", "divergence", "time"], ["proven"]
    path = options.out / "paper.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for other in options.merge:
        for name, jobs in json.loads(other.read_text()).items():
            for job, found in jobs.items():
                take_in(results, name, job, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        for job in options.jobs:
            for modes in [[mode] for mode in options.modes] if name == "divergence" else [options.modes]:
                options.modes = modes
                other = name == "divergence" and options.devices[1] != "compatible"
                take_in(results, name, f"{job} {options.devices[1]}" if other else job, EXPERIMENTS[name](job, options))
                path.write_text(json.dumps(results, indent=1) + "\n")
                print(name, job, "done", flush=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    render(results, options.out)


if __name__ == "__main__":
    main()
