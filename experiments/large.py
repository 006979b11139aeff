"""Run some steps of the paper's two workloads at full size on several devices: state roots, seconds, peak memory.
Writes docs/large.md and .json.

    python experiments/large.py --text shakespeare.txt [--cifar FOLDER] [--steps 5] [--only gpt2] [--devices default
    compatible]

Without --cifar the images are random, in files of exactly the published format. Each device is a process of its own;
the bundle is made once, by a process of its own too. Results of earlier runs in docs/large.json stay, so devices can be
added one by one.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/large.json"
WORKLOADS = {"resnet50": "ResNet-50, CIFAR form, batch 64", "gpt2": "GPT-2 small, batch 8 x 64 tokens"}


def random_cifar(folder: Path) -> None:
    """50,000 random images in the Python form of CIFAR-10."""
    draw = np.random.default_rng(0)
    for i in range(1, 6):
        images = draw.integers(0, 256, (10_000, 3072), dtype=np.uint8)
        batch = {b"data": images, b"labels": draw.integers(0, 10, 10_000).tolist()}
        (folder / f"data_batch_{i}").write_bytes(pickle.dumps(batch))


def prepare(name: str, steps: int, args: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Make the bundle of a workload; returns facts about it."""
    from vgame.job.bundle import save_bundle
    from vgame.job.file import read_job_file
    from vgame.runs.prepare import prepare

    job = read_job_file(ROOT / f"vgame/tasks/{name}.toml")
    job = job.model_copy(update={"args": job.args | args, "steps": steps, "interval": 1})
    started = time.perf_counter()
    bundle = prepare(job)
    seconds = time.perf_counter() - started
    save_bundle(bundle, folder)
    return {
        "program": bundle.program.root.hex(),
        "operators": len(bundle.program.operators),
        "state": sum(t.numel() for t in bundle.state),
        "seconds": round(seconds, 1),
        "memory": memory(),
    }


def run(folder: Path, device: str) -> dict[str, Any]:
    """All steps of the bundle on a device."""
    from vgame.commit.merkle import Kind
    from vgame.commit.tensor import tensors_root
    from vgame.execute.devices import use_device
    from vgame.job.bundle import load_bundle
    from vgame.runs.folder import executor_of

    with use_device(device) as kind:
        bundle = load_bundle(folder)
        executor = executor_of(bundle, kind)
        state, roots, seconds, losses = executor.initial(bundle.state), [], [], []
        for step in range(1, bundle.steps + 1):
            started = time.perf_counter()
            result = executor.step(step, state)
            state = result.state
            losses.append(float(result.loss))
            seconds.append(round(time.perf_counter() - started, 1))
            roots.append(tensors_root(Kind.STATE, state).hex())
            print(
                f"{device} step {step}: {seconds[-1]} s, loss {losses[-1]:.4f}, root {roots[-1][:16]}", file=sys.stderr
            )
    return {"roots": roots, "losses": losses, "seconds": seconds, "memory": memory()}


def memory() -> float:
    """Peak of this process in GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def child(*arguments: str) -> dict[str, Any]:
    """This script in a process of its own."""
    result = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def table(record: dict[str, Any]) -> str:
    """docs/large.md."""
    lines = [
        "# The paper's two workloads at full size",
        "",
        "Written by `python experiments/large.py` (all roots: large.json). Equal roots are equal bits of every "
        "parameter, slot and buffer.",
        "Memory is the peak of the process. Seconds per step were measured on a shared machine.",
        "",
        "| workload | operators | device | steps | root after each step | seconds a step | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    statements: list[str] = []
    for name, entry in record.items():
        for device, r in entry["devices"].items():
            roots = " ".join(f"`{root[:8]}`" for root in r["roots"])
            seconds = f"{min(r['seconds'])} to {max(r['seconds'])}"
            cells = [WORKLOADS[name], f"{entry['bundle']['operators']:,}", device, str(len(r["roots"])), roots, seconds]
            lines.append("| " + " | ".join([*cells, f"{r['memory']} GB"]) + " |")
        found = [tuple(r["roots"]) for r in entry["devices"].values()]
        shortest = min(map(len, found))
        same = len({roots[:shortest] for roots in found}) == 1
        data = f"data: {entry['data']}; program `{entry['bundle']['program'][:16]}`"
        statements.append(
            f"- {WORKLOADS[name]}: {'identical roots' if same else 'ROOTS DIFFER'} on {len(found)} devices; {data}."
        )
    return "\n".join([*lines, "", *statements, ""])


def measure(name: str, options: argparse.Namespace, record: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory(prefix="vgame-large-") as scratch:
        folder = Path(scratch)
        if name == "gpt2":
            args, data = {"text": str(options.text)}, options.text.name
        elif options.cifar:
            args, data = {"folder": str(options.cifar)}, "CIFAR-10"
        else:
            args, data = {"folder": scratch, "check": False}, "random images"
            random_cifar(folder)
        bundle = child("--prepare", name, str(options.steps), json.dumps(args), str(folder / "job"))
        entry = record.get(name, {})
        if entry.get("bundle", {}).get("program") != bundle["program"]:
            entry = {"devices": {}}
        record[name] = entry | {"bundle": bundle, "data": data}
        for device in options.devices:
            record[name]["devices"][device] = child("--run", str(folder / "job"), device)
            RECORD.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    if sys.argv[1:2] == ["--prepare"]:
        name, steps, args, folder = sys.argv[2:]
        return print(json.dumps(prepare(name, int(steps), json.loads(args), Path(folder))))
    if sys.argv[1:2] == ["--run"]:
        from vgame.execute.devices import prepare_environment

        prepare_environment(sys.argv[3])
        return print(json.dumps(run(Path(sys.argv[2]), sys.argv[3])))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, help="a text file, for GPT-2")
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--devices", nargs="+", default=["default", "compatible"])
    options = parser.parse_args()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in [options.only] if options.only else WORKLOADS:
        if name == "gpt2" and options.text is None:
            parser.error("GPT-2 needs --text FILE")
        measure(name, options, record)
    (ROOT / "docs/large.md").write_text(table(record))
    return None


if __name__ == "__main__":
    main()
