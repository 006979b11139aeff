"""The small models trained by vgame on two devices and by plain PyTorch on the same batches: docs/curves.svg and docs/curves.md.

    python scripts/curves.py --text shakespeare.txt [--steps 300] [--autocast]

Roots must be equal on the devices; the curves of vgame and of PyTorch (binary32, its own dropout masks) lie on each other until rounding
and dropout part them. With --autocast both train in bfloat16: docs/curves-bf16.svg and docs/curves-bf16.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from vgame.arithmetic.reference.philox import shuffle_index
from vgame.commit.trees import run_tree
from vgame.job.bundle import load_bundle, save_bundle
from vgame.job.factory import make_task
from vgame.job.file import JobFile, read_job_file
from vgame.runs.prepare import prepare
from vgame.runs.store import Store

ROOT = Path(__file__).resolve().parents[1]
JOBS = ("small_resnet", "small_gpt", "small_llama", "small_lstm")
VGAME = Path(sys.executable).with_name("vgame")


def job_of(name: str, text: Path, steps: int, autocast: bool) -> JobFile:
    """The shipped job with this text and as many steps."""
    job = read_job_file(ROOT / f"vgame/tasks/{name}.toml")
    args = job.args | ({"text": str(text)} if "text" in job.args else {})
    args |= {"autocast": True} if autocast else {}
    return job.model_copy(update={"args": args, "steps": steps})


def by_torch(job: JobFile) -> list[float]:
    """Losses of an ordinary loop on the same batches."""
    task, losses = make_task(job), []
    groups = task.optimizer.param_groups
    ratios = [g["lr"] / groups[0]["lr"] for g in groups]
    for step in range(1, job.steps + 1):
        for group, ratio in zip(groups, ratios, strict=True):
            group["lr"] = float(job.schedule.rate(step, job.steps)) * ratio
        chosen = [shuffle_index(job.seed, step, e, task.batch, task.population) for e in range(task.batch)]
        task.optimizer.zero_grad()
        loss = task.loss(task.model.train(), task.samples(torch.tensor(chosen)))
        loss.backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), task.clip)
        task.optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def by_vgame(job: JobFile, folder: Path) -> tuple[np.ndarray, str, bool, float]:
    """(losses, run root, does the other device agree?, seconds of the training) through the command line."""
    save_bundle(prepare(job), folder / "bundle")
    started = time.perf_counter()
    subprocess.run(
        [VGAME, "train", folder / "bundle", "--out", folder / "run", "--json"], check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - started
    audit = subprocess.run(
        [VGAME, "audit", folder / "run", "--device", "compatible", "--json"], stdout=subprocess.PIPE, text=True
    )
    match = json.loads(audit.stdout.splitlines()[-1])["match"] and audit.returncode == 0
    store = Store(folder / "run", load_bundle(folder / "run/job"))
    return store.losses(), run_tree(store.roots, len(store.roots)).root.hex(), match, seconds


def picture(curves: dict[str, tuple[np.ndarray, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "vgame"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), squeeze=False, figsize=(4 * len(curves), 3), constrained_layout=True)
    for axis, (name, (mine, plain)) in zip(axes[0], curves.items(), strict=True):
        axis.plot(plain, color="tab:orange", linewidth=2.5, alpha=0.5, label="PyTorch")
        axis.plot(mine, color="tab:blue", linewidth=0.8, label="vgame")
        axis.set(title=name, xlabel="step", ylabel="loss")
        axis.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="+", default=JOBS, choices=JOBS)
    parser.add_argument("--autocast", action="store_true", help="to bfloat16")
    options = parser.parse_args()
    page = ROOT / "docs" / ("curves-bf16" if options.autocast else "curves")
    curves, rows = {}, []
    for name in options.only:
        job = job_of(name, options.text, options.steps, options.autocast)
        with tempfile.TemporaryDirectory(prefix="vgame-curves-") as folder:
            mine, root, match, seconds = by_vgame(job, Path(folder))
        plain = by_torch(job)
        curves[name] = (mine, plain)
        ends = [f"{np.mean(losses[:20]):.3f} to {np.mean(losses[-20:]):.3f}" for losses in (mine, plain)]
        apart = next((i for i, (a, b) in enumerate(zip(mine, plain, strict=True), 1) if abs(a - b) > 0.01), None)
        cells = [
            name,
            f"`{root[:16]}`",
            "identical" if match else "DIFFERENT",
            *ends,
            str(apart or "never"),
            f"{seconds:.0f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    picture(curves, page.with_suffix(".svg"))
    head = f"""# Small models{" in bfloat16" * options.autocast}: two devices, and plain PyTorch

Written by `python scripts/curves.py{" --autocast" * options.autocast}` ({options.steps} steps, text: {options.text.name}).
Loss: mean of the first 20 and of the last 20 steps. Parted: first step whose losses differ by more
than 0.01; PyTorch draws other dropout masks (small_gpt) and rounds otherwise.

| job | run root | on two devices | loss, vgame | loss, PyTorch | parted at step | seconds of training |
|---|---|---|---|---|---|---|
"""
    page.with_suffix(".md").write_text(head + "\n".join(rows) + f"\n\n![both curves]({page.name}.svg)\n")


if __name__ == "__main__":
    main()
