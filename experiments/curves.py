"""The small models trained by vgame and by plain PyTorch on the same batches: docs/curves.svg and docs/curves.md.

    python experiments/curves.py --text shakespeare.txt [--steps 300] [--autocast]

vgame's training is killed in the middle and resumed; audits on all CPU devices must find the same roots. The curves of
vgame and of PyTorch (binary32, its own dropout masks) coincide until rounding and dropout separate them; the difference
must be within that of other seeds. With --autocast both train in bfloat16: docs/curves-bf16.svg and
docs/curves-bf16.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from vgame.arithmetic.reference.philox import shuffle_index
from vgame.commit.trees import run_tree
from vgame.job.bundle import load_bundle, save_bundle
from vgame.job.factory import make_task
from vgame.job.file import JobFile, read_job_file
from vgame.program.schedule import to_binary32
from vgame.runs.prepare import prepare
from vgame.runs.store import Store

ROOT = Path(__file__).resolve().parents[1]
JOBS = ("small_resnet", "small_gpt", "small_llama", "small_lstm")
VGAME = Path(sys.executable).with_name("vgame")
DEVICES = ("default", "compatible", "reversed")
OTHER_SEEDS = 3


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
            group["lr"] = float(to_binary32(job.schedule.rate(step, job.steps))) * ratio
        chosen = [shuffle_index(job.seed, step, e, task.batch, task.population) for e in range(task.batch)]
        task.optimizer.zero_grad()
        loss = task.loss(task.model.train(), task.samples(torch.tensor(chosen)))
        loss.backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), task.clip)
        task.optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def by_vgame(job: JobFile, folder: Path) -> tuple[np.ndarray, str, list[str]]:
    """(losses, run root, devices whose audit finds other roots), by the command line."""
    save_bundle(prepare(job), folder / "bundle")
    train = [VGAME, "train", folder / "bundle", "--out", folder / "run", "--json"]
    kill_after(train, folder / "run/roots.bin", job.steps // job.interval // 2)
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    audits = {d: [VGAME, "audit", folder / "run", "--device", d, "--json"] for d in DEVICES}
    different = [d for d, audit in audits.items() if subprocess.run(audit, stdout=subprocess.DEVNULL).returncode]
    store = Store(folder / "run", load_bundle(folder / "run/job"))
    return store.losses(), run_tree(store.roots, len(store.roots)).root.hex(), different


def kill_after(command: list, roots: Path, checkpoints: int) -> None:
    """Run a training, and kill it once it has this number of checkpoints."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (roots.exists() and roots.stat().st_size >= 32 * checkpoints):
        time.sleep(0.1)
    process.kill()
    process.wait()


def last(losses: Sequence[float]) -> float:
    return float(np.mean(losses[-20:]))


def by_other_seeds(job: JobFile) -> str:
    """The least and the largest final loss of PyTorch with other initial weights and batches."""
    changed = ({"seed": job.seed + i, "args": job.args | {"seed": i}} for i in range(1, OTHER_SEEDS + 1))
    finals = [last(by_torch(job.model_copy(update=change))) for change in changed]
    return f"{min(finals):.3f} to {max(finals):.3f}"


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
            mine, root, different = by_vgame(job, Path(folder))
        plain = by_torch(job)
        curves[name] = (mine, plain)
        ends = [f"{np.mean(losses[:20]):.3f} to {last(losses):.3f}" for losses in (mine, plain)]
        apart = next((i for i, (a, b) in enumerate(zip(mine, plain, strict=True), 1) if abs(a - b) > 0.01), None)
        devices = f"different on {', '.join(different)}" if different else "identical"
        cells = [name, f"`{root[:16]}`", devices, *ends, by_other_seeds(job), str(apart or "never")]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], flush=True)
    picture(curves, page.with_suffix(".svg"))
    head = f"""# Small models{" in bfloat16" * options.autocast}: all CPU devices, and plain PyTorch

Written by `python experiments/curves.py{" --autocast" * options.autocast}` ({options.steps} steps,
text: {options.text.name}).
Roots: the training is killed in the middle and resumed, then audited on {", ".join(DEVICES)}.
Loss: mean of the first 20 and of the last 20 steps. Other seeds: the last 20 steps of PyTorch with {OTHER_SEEDS} other
initial weights and orders of batches, least to most. Differs at: first step whose losses differ by more than 0.01;
PyTorch draws other dropout masks (small_gpt) and rounds differently.

| job | run root | roots | loss, vgame | loss, PyTorch | other seeds | differs at step |
|---|---|---|---|---|---|---|
"""
    page.with_suffix(".md").write_text(head + "\n".join(rows) + f"\n\n![both curves]({page.name}.svg)\n")


if __name__ == "__main__":
    main()
