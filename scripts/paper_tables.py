"""Tables of docs/paper.md from paper.json. In: an experiment's results by job. Out: Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from paper_devices import JOBS

LARGE = {"resnet50": "ResNet-50, batch 64", "gpt2": "GPT-2, 8 x 64 tokens"}
Row = dict[str, object]


def title(job: str) -> str:
    """Title of a job, with its second device if it is not the usual one."""
    name, _, device = job.partition(" ")
    return (JOBS[name][2] if name in JOBS else LARGE[name]) + (f", device B: {device}" if device else "")


def number(x: float) -> str:
    """A number with two or three digits."""
    if x == 0 or 0.01 <= abs(x) < 10:
        return f"{x:.2f}".rstrip("0").rstrip(".") or "0"
    return f"{x:,.0f}" if abs(x) >= 10 else f"{x:.1e}"


def size(x: float) -> str:
    """Bytes."""
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if x >= scale:
            return f"{x / scale:,.1f} {unit}"
    return f"{x:,.0f} B"


def table(rows: list[Row]) -> str:
    """A table in Markdown; the keys of the first row are its head."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(
        "| " + " | ".join(number(c) if isinstance(c, float) else str(c) for c in row) + " |" for row in lines
    )


def divergence_rows(job: str, one: dict[str, Any]) -> Iterator[Row]:
    """The first difference of two devices, by mode."""
    for mode, run in one["modes"].items():
        last = max(run["distance"], key=int, default=None)
        yield {
            "job": title(job),
            "mode": "fp32, another order of the data" if mode == "order" else mode,
            "states differ": f"at step {run['parted']}" if run["parted"] else f"never in {run['steps']:,} steps",
            "L2 distance at the end": run["distance"][last] if last else 0.0,
            "loss, last 50 steps": " / ".join(f"{x:.4f}" for x in run["loss"]),
            "test accuracy": " / ".join(f"{100 * a:.1f} %" for a in run.get("accuracy", ())),
            "log per step": f"{run['log'] / run['steps']:,.0f} bytes" if "log" in run else "",
            "corrections, forward + backward": f"{run['forward']} + {run['backward']}" if "log" in run else "",
        }


def storage_rows(job: str, by_bits: dict[str, Any]) -> Iterator[Row]:
    """Bytes per step by bits, window and encoding."""
    for bits in sorted(by_bits.keys() - {"memory"}):
        for kind, one in sorted(by_bits[bits].items()):
            yield {
                "step": title(job),
                "b": bits,
                "window": kind,
                "sums": f"{one['sums']:,}",
                "entries": f"{one['entries']:,}",
                "naive": size(one["naive"]),
                "packed": size(one["packed"]),
                "sparse record": size(one["file"]),
                "entropy": size(one["entropy"]),
                "packed / sparse": f"{one['packed'] / one['file']:,.0f}",
                "sums with two admissible words": f"{100 * one['free']:.2g} %",
            }


def beside_rows(job: str, by_bits: dict[str, Any]) -> Iterator[Row]:
    """Alternatives to a step's sparse log at 32 bits."""
    kinds = by_bits["32"]
    one = next(iter(kinds.values()))
    yield {
        "step": title(job),
        "outputs": f"{one['outputs'] / 1e6:,.0f} M",
        "1.6 bits for every output": size(one["outputs"] / 5),
        "a checkpoint every step": size(one["state"]),
        "every 100 steps": size(one["state"] / 100),
        "sparse log, proven": size(kinds["proven"]["file"]),
        "sparse log, adaptive": size(kinds["adaptive"]["file"]),
        "mode correct": "0",
    }


def corrections_rows(job: str, by_bits: dict[str, Any]) -> Iterator[Row]:
    """Corrections by bits: seen; and the number expected from the distances of the devices' sums, per step and as a
    share of its outputs."""
    for bits, one in by_bits.items():
        yield {
            "job": title(job),
            "b": bits,
            "steps": one["steps"],
            "entries per step": one["entries"] / one["steps"],
            "corrections seen, forward + backward": f"{one['forward']:,} + {one['backward']:,}",
            "to be expected per step, forward + backward": " + ".join(map(number, one["expected"])),
            "share of a step's outputs": f"{100 * sum(one['expected']) / one['outputs']:.1e} %",
            "states differ": one["parted"] or "never",
        }


def quality_rows(job: str, one: dict[str, Any]) -> Iterator[Row]:
    """Training results of each mode, on device A, relative to plain binary32; for scale: another device, another order
    of the data."""
    modes = one["modes"]
    if "fp32" not in modes:
        return
    plain = modes["fp32"]["loss"][0]
    for mode, run in modes.items():
        sides = {mode: 0} if mode != "order" else {"fp32, another order of the data": 1}
        for name, side in (sides | ({"fp32, device B": 1} if mode == "fp32" else {})).items():
            apart = run["loss"][side] - plain
            yield quality_row(job, name, run, side) | {"loss less plain binary32's": f"{apart:+.1e}" if apart else "0"}


def quality_row(job: str, mode: str, run: dict[str, Any], side: int) -> Row:
    """One run of one device."""
    loss = run["loss"][side]
    accuracy = f"{100 * run['accuracy'][side]:.1f} %" if "accuracy" in run else ""
    return {
        "job": title(job),
        "mode": mode,
        "steps": f"{run['steps']:,}",
        "loss, last 50 steps": f"{loss:.5f}",
        "perplexity per byte": "" if accuracy else f"{math.exp(loss):.3f}",
        "test accuracy": accuracy,
    }


def thresholds_rows(job: str, groups: dict[str, Any]) -> Iterator[Row]:
    """By kind and layer; groups with equal bits on both devices are only counted."""
    moved = {g: one for g, one in groups.items() if one["window"]}
    shown = [(g, one["window"], f"{one['plain']:.6f}") for g, one in moved.items()]
    shown = sorted(shown, key=lambda row: -row[1])[:12]
    for group, window, plain in [*shown, (f"{len(groups) - len(moved)} of {len(groups)} groups", "0", "0.5")]:
        yield {
            "job": title(job),
            "kind and layer": group,
            "least safe window, in bounds e": window,
            "the paper's threshold that would be safe, in ulp": plain,
        }


def time_rows(job: str, one: dict[str, Any]) -> Iterator[Row]:
    """Ratios of paired steps."""
    for name, (eager, program) in one["ratio"].items():
        yield {
            "job": title(job),
            "variant": name,
            "ms per step": 1e3 * one["median"][name],
            "ratio to the program in binary64": program,
            "ratio to PyTorch in binary64": eager,
        }


#: Mark in the page: (experiment, rows of one job).
TABLES: dict[str, tuple[str, Callable[[str, Any], Iterator[Row]]]] = {
    "divergence": ("divergence", divergence_rows),
    "storage": ("storage", storage_rows),
    "large": ("large", storage_rows),
    "beside": ("large", beside_rows),
    "corrections": ("corrections", corrections_rows),
    "quality": ("divergence", quality_rows),
    "thresholds": ("thresholds", thresholds_rows),
    "time": ("time", time_rows),
}


def tables(results: dict[str, Any]) -> dict[str, str]:
    """The tables with results, by mark."""
    return {
        mark: table([row for job, one in results[name].items() for row in rows(job, one)])
        for mark, (name, rows) in TABLES.items()
        if name in results
    }


def fill(page: str, results: dict[str, Any]) -> str:
    """The page with its tables between their marks."""
    for mark, made in tables(results).items():
        start, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
        if start in page:
            page = page[: page.index(start)] + f"{start}\n\n{made}\n\n" + page[page.index(end) :]
    return page
