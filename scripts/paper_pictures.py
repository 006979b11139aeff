"""Draw the pictures of docs/paper.md from paper.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paper_tables import title


def draw(results: dict[str, Any], folder: Path) -> None:
    """paper-divergence.svg and paper-storage.svg, if there are data."""
    for name, make in (("divergence", _divergence), ("large", _storage)):
        if name in results:
            _picture(results[name], make, folder / f"paper-{'storage' if name == 'large' else name}.svg")


def _picture(found: dict[str, Any], panel_of, path: Path) -> None:
    """One panel per job."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "vgame"
    columns = min(len(found), 2)
    rows = -(-len(found) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(6 * columns, 4 * rows), squeeze=False)
    for panel in panels.flat[len(found) :]:
        panel.remove()
    for panel, (job, one) in zip(panels.flat, found.items(), strict=False):
        panel_of(panel, one)
        panel.set(title=title(job))
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _divergence(panel, one: dict[str, Any]) -> None:
    """L2 distance of the two devices' states against steps; zeros have no line."""
    for mode, run in one["modes"].items():
        points = [(int(step), distance) for step, distance in run["distance"].items() if distance > 0]
        label = "fp32, another order of the data" if mode == "order" else mode
        if points:
            panel.plot(*zip(*points, strict=True), label=label, marker=".")
        else:
            panel.plot([], [], label=f"{label}: 0 throughout")
    if any(distance > 0 for run in one["modes"].values() for distance in run["distance"].values()):
        panel.set(xscale="log", yscale="log")
    last = max(run["steps"] for run in one["modes"].values())
    panel.set(xlim=(1, last), xlabel="step", ylabel="L2 distance of the state")


def _storage(panel, by_bits: dict[str, Any]) -> None:
    """Bytes per step by bits and encoding, beside checkpoints; nothing is stored in mode `correct`."""
    bits = sorted(int(b) for b in by_bits if b != "memory")
    for kind in ("proven", "adaptive"):
        here = [b for b in bits if kind in by_bits[str(b)]]
        panel.plot(here, [by_bits[str(b)][kind]["file"] for b in here], marker="o", label=f"sparse, {kind}")
    one = next(iter(by_bits[str(bits[0])].values()))
    fixed = {"naive": one["naive"], "packed": one["packed"], "1.6 bits for every output": one["outputs"] / 5}
    fixed |= {f"a checkpoint every {k} steps": one["state"] / k for k in (1, 10, 100, 1000)}
    for n, (label, value) in enumerate(fixed.items()):
        panel.axhline(value, label=label, color=f"C{n + 2}", linestyle="--" if "checkpoint" in label else ":")
    panel.plot([], [], " ", label="mode correct: 0")
    panel.set(yscale="log", xlabel="b", ylabel="bytes per step", xticks=bits)
