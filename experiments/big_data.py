"""A data set of 20 GB, prepared, trained and audited: seconds, and bytes that stay resident beyond the model.

    python experiments/big_data.py [--gigabytes 20] [--folder FOLDER]

The files are sparse: holes are read as zeros at the speed of memory, so that hashing is measured and not the disk; some
blocks have random words. The last line hashes the same bytes with `sha256sum`, for comparison. Each part is a process
of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

FILES = 3  # a tensor has at most 2^31 - 1 words
WIDTH = 4_096
STEPS = 20
PARTS = ("small", "prepare", "prepare again", "train", "audit")


def make(folder: Path, gigabytes: float) -> None:
    """Sparse .npy files of float32 rows, a thousand of them random."""
    draw, rows = np.random.default_rng(0), int(gigabytes * 1e9 / 4 / WIDTH / FILES)
    for name in range(FILES):
        with open(folder / f"x{name}.npy", "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            for row in draw.integers(0, rows, 1_000):
                file.seek(start + int(row) * WIDTH * 4)
                file.write(draw.standard_normal(WIDTH, dtype=np.float32).tobytes())
            file.truncate(start + rows * WIDTH * 4)


class Peak:
    """Peak resident memory while it runs (with mapped files), sampled every 20 ms."""

    def __enter__(self) -> Peak:
        self.most, self.over = _resident(), threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, _resident())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def task(paths: list[Path], rows: int | None = None) -> Any:
    """A small network over the rows of all files; with `rows`, of their first ones, in memory."""
    import torch
    from torch import nn

    import vgame

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.cat(list(batch.values()), 1)
        return (model(x) - x.mean(1, keepdim=True)).square().mean()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH * FILES, 8), nn.Tanh(), nn.Linear(8, 1))
    data = {path.stem: vgame.mapped(path) for path in paths}
    if rows:
        data = {name: x[:rows].clone() for name, x in data.items()}
    return vgame.Task(model, loss, torch.optim.SGD(model.parameters(), 1e-4), data, batch=64)


def part(name: str, folder: Path) -> dict[str, Any]:
    """Seconds and peak of one part. `small`: the same over 64 rows in memory, for the memory of everything else."""
    import vgame

    start = time.perf_counter()
    with Peak() as peak:
        if name in ("small", "prepare", "prepare again"):
            made = task(sorted(folder.glob("x*.npy")), 64 if name == "small" else None)
            vgame.prepare(vgame.Job(made, steps=STEPS, interval=STEPS // 2, seed=1)).save(folder / name)
        if name in ("small", "train"):
            vgame.train(vgame.Bundle.load(folder / {"train": "prepare"}.get(name, name)), folder / f"run {name}")
        if name in ("small", "audit"):
            result = vgame.audit(folder / f"run {name.replace('audit', 'train')}", device="compatible")
            assert result.match
    return {"part": name, "seconds": round(time.perf_counter() - start, 1), "peak_megabytes": round(peak.most / 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are made and removed")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        print(json.dumps(part(args.part, args.folder)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        make(folder, args.gigabytes)
        environment = {"XDG_CACHE_HOME": str(folder / "cache")}
        for each in PARTS:
            command = [sys.executable, __file__, "--part", each, "--folder", name]
            subprocess.run(command, check=True, env=os.environ | environment)
        start = time.perf_counter()
        subprocess.run(["sha256sum", *folder.glob("x*.npy")], check=True, stdout=subprocess.DEVNULL)
        print(json.dumps({"part": "sha256sum", "seconds": round(time.perf_counter() - start, 1)}))


if __name__ == "__main__":
    main()
