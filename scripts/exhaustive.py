"""Prove, by running all 2^32 inputs, that the elementary functions are correctly rounded; record it in
docs/exhaustive.json.

    python scripts/exhaustive.py [--function NAME] [--threads N] every word: check, settle, checksum, record
    python scripts/exhaustive.py --sample 1/4096                 some panels of 4,096 words; records nothing
    python scripts/exhaustive.py --torch                         every word through the torch twin: the same checksums?
    python scripts/exhaustive.py --bfloat16                      every word, rounded to 8 bits from the results before

Compares vgame/arithmetic/numba/elementary.py with exhaustive_panels.py, and unconfirmed words with
exhaustive_reference.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhaustive_panels import PANEL, unconfirmed
from exhaustive_reference import NAN, from_word, settle, settle_by_intervals

from vgame.arithmetic.functions import ELEMENTARY, Function
from vgame.arithmetic.numba.elementary import fill

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "exhaustive.json"
CLOSEST = ROOT / "tests" / "vectors" / "elementary_closest.json"
BLOCK = 1 << 24  # words per block checksum
BLOCKS = 256
CLOSE = 2.0**-24  # inputs closer to a midpoint than this many ulp are kept as test vectors
FLAG_LIMIT = 1 << 20  # more words than this to settle in one block: something is broken


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of checking some words. mismatches: (word, right result); closest: (word, right result, distance in
    ulp)."""

    digest: str
    mismatches: list[tuple[int, int]]
    settled: int
    closest: list[tuple[int, int, float]]


def kernel(function: Function, words: np.ndarray) -> np.ndarray:
    """The result words of the numba kernel, NaN canonical."""
    out = np.empty(words.size, dtype=np.float32)
    fill(function, words.ravel().view(np.float32), out)
    result = out.view(np.uint32)
    result[out != out] = NAN
    return result.reshape(words.shape)


def torch_twin(function: Function, words: np.ndarray) -> np.ndarray:
    """The result words of the torch twin, NaN canonical."""
    import torch

    from vgame.arithmetic.torch.elementary import evaluate_torch

    result = evaluate_torch(function, torch.from_numpy(words.view(np.float32))).numpy().view(np.uint32)
    result[result & 0x7FFFFFFF > 0x7F800000] = NAN
    return result


def block_words(block: int) -> np.ndarray:
    """The words block * 2^24 ... (block + 1) * 2^24 - 1."""
    return np.arange(block * BLOCK, (block + 1) * BLOCK, dtype=np.uint32)


def check(function: Function, words: np.ndarray) -> Outcome:
    """Check the kernel's results for some panels; words: uint32[panels, PANEL]."""
    claimed = kernel(function, words)
    flagged = unconfirmed(function, words[:, 0].copy(), claimed)
    if flagged.size > FLAG_LIMIT:
        raise ArithmeticError(f"{function.name}: {flagged.size} words unconfirmed")
    exact = [(word, *settle(function, word)) for word in flagged.tolist()]
    results = kernel(function, flagged)
    mismatches = [(word, right) for (word, right, _), got in zip(exact, results.tolist(), strict=True) if got != right]
    closest = [row for row in exact if row[2] < CLOSE]
    settled = sum(row[2] < 0.5 for row in exact)
    return Outcome(hashlib.sha256(claimed).hexdigest(), mismatches, settled, closest)


def check_block(task: tuple[Function, int]) -> Outcome:
    """Check one block."""
    function, block = task
    return check(function, block_words(block).reshape(-1, PANEL))


def check_sample(function: Function, share: Fraction) -> Outcome:
    """Check that share of all panels: one panel in every run of 1 / share, at a varying place."""
    run = math.ceil(1 / share)
    starts = np.arange(0, 2**32 // PANEL, run, dtype=np.uint64)
    panels = np.minimum(starts + starts * np.uint64(2654435761) // np.uint64(4096) % np.uint64(run), 2**32 // PANEL - 1)
    return check(function, (panels[:, None] * PANEL + np.arange(PANEL, dtype=np.uint64)).astype(np.uint32))


def run(function: Function, threads: int) -> dict:
    """Check every block and hash the whole stream of results in order. Returns the record."""
    start = time.monotonic()
    stream, outcomes = hashlib.sha256(), []
    with get_context("spawn").Pool(threads) as pool:
        for block, outcome in enumerate(pool.imap(check_block, [(function, b) for b in range(BLOCKS)])):
            results = kernel(function, block_words(block))
            if hashlib.sha256(results).hexdigest() != outcome.digest:
                raise ArithmeticError(f"{function.name}: block {block} differs between two processes")
            stream.update(results)
            outcomes.append(outcome)
    closest = sorted((row for o in outcomes for row in o.closest), key=lambda row: row[2])
    save_closest(function, closest)
    mismatches = [row for o in outcomes for row in o.mismatches]
    print("".join(f"wrong: {word:#010x}, right: {right:#010x}\n" for word, right in mismatches), end="")
    return {
        "inputs": BLOCKS * BLOCK,
        "mismatches": len(mismatches),
        "settled_by_intervals": sum(o.settled for o in outcomes),
        "closest_word": f"{closest[0][0]:#010x}",
        "closest_log2_ulp": round(math.log2(closest[0][2]), 2),
        "seconds": round(time.monotonic() - start),
        "sha256": stream.hexdigest(),
        "blocks": [o.digest for o in outcomes],
    }


def save_closest(function: Function, closest: list[tuple[int, int, float]]) -> None:
    """Keep the inputs closest to a midpoint, with their results, as test vectors."""
    stored = json.loads(CLOSEST.read_text()) if CLOSEST.exists() else {}
    stored[function.name] = [f"{word:08x}{result:08x}" for word, result, _ in closest]
    CLOSEST.parent.mkdir(parents=True, exist_ok=True)
    CLOSEST.write_text(json.dumps(stored, indent=0) + "\n")


def compare_torch(function: Function, expected: list[str]) -> Iterator[int]:
    """The blocks with different bits of the torch twin."""
    for block in range(BLOCKS):
        if hashlib.sha256(torch_twin(function, block_words(block))).hexdigest() != expected[block]:
            yield block


# ---- bfloat16 ----


def check_narrow(function: Function, words: np.ndarray, claimed: np.ndarray) -> tuple[str, list[tuple[int, int]], int]:
    """(checksum, [(word, right result)] of wrong ones, midpoints) of results rounded to 8 bits; claimed: right binary32
    results.

    These decide unless they are midpoints of 8 bits (docs/numerics-bf16.md, section 1); midpoints are decided by
    intervals.
    """
    import torch

    from vgame.arithmetic.torch.narrow import pointwise

    argument, value = (torch.from_numpy(x.view(np.float32)) for x in (words, claimed))
    got = pointwise(function, value, (argument,)).numpy().view(np.uint32)
    right = (claimed + (0x7FFF + (claimed >> 16 & 1))) & np.uint32(0xFFFF0000)
    right[claimed & 0x7FFFFFFF > 0x7F800000] = NAN
    places = np.flatnonzero(claimed & 0xFFFF == 0x8000)
    for place in places.tolist():
        right[place], _ = settle_by_intervals(function, from_word(int(words[place])), 8)
    wrong = np.flatnonzero(got != right)
    return hashlib.sha256(got).hexdigest(), [(int(words[i]), int(right[i])) for i in wrong], places.size


def check_narrow_block(task: tuple[Function, int, str]) -> tuple[str, list[tuple[int, int]], int]:
    """Check one block; its binary32 results must have the recorded checksum."""
    function, block, digest = task
    words = block_words(block)
    claimed = kernel(function, words)
    if hashlib.sha256(claimed).hexdigest() != digest:
        raise ArithmeticError(f"{function.name}: block {block} is not the recorded one; run without --bfloat16 first")
    return check_narrow(function, words, claimed)


def run_narrow(function: Function, threads: int, digests: list[str]) -> dict:
    """Check every block. Returns the record."""
    start = time.monotonic()
    with get_context("spawn").Pool(threads) as pool:
        found = pool.map(check_narrow_block, [(function, b, digest) for b, digest in enumerate(digests)], 1)
    wrong = [row for _, rows, _ in found for row in rows]
    print("".join(f"wrong: {word:#010x}, right: {right:#010x}\n" for word, right in wrong[:20]), end="")
    return {
        "inputs": BLOCKS * BLOCK,
        "mismatches": len(wrong),
        "midpoints": sum(midpoints for _, _, midpoints in found),
        "seconds": round(time.monotonic() - start),
        "sha256": hashlib.sha256("".join(digest for digest, _, _ in found).encode()).hexdigest(),
    }


def main() -> int:
    """Exit status 0 if nothing differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--function", choices=[f.name for f in ELEMENTARY], action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sample", type=Fraction)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    arguments = parser.parse_args()
    bad = 0
    for function in [Function[name] for name in arguments.function or [f.name for f in ELEMENTARY]]:
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        if arguments.torch:
            different = list(compare_torch(function, record[function.name]["blocks"]))
            record[function.name]["torch_equal"] = not different
            bad += len(different)
            print(f"{function.name}: torch differs in {len(different)} blocks", flush=True)
        elif arguments.bfloat16:
            narrow = run_narrow(function, arguments.threads, record[function.name]["blocks"])
            record[function.name]["bfloat16"] = narrow
            bad += narrow["mismatches"]
            print(f"{function.name} to 8 bits: {narrow}", flush=True)
        elif arguments.sample:
            outcome = check_sample(function, arguments.sample)
            bad += len(outcome.mismatches)
            print(f"{function.name}: {len(outcome.mismatches)} mismatches, {outcome.settled} settled", flush=True)
            continue
        else:
            before, record[function.name] = record.get(function.name, {}), run(function, arguments.threads)
            if before.get("sha256") == record[function.name]["sha256"] and "bfloat16" in before:
                record[function.name]["bfloat16"] = before["bfloat16"]
            if before.get("sha256") == record[function.name]["sha256"] and "torch_equal" in before:
                record[function.name]["torch_equal"] = before["torch_equal"]  # compared with the same results
            bad += record[function.name]["mismatches"]
            print(function.name, {k: v for k, v in record[function.name].items() if k != "blocks"}, flush=True)
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
