#!/usr/bin/env python3
"""Play seeds of the simulator (docs/simulation.md): `simulate.py FROM COUNT` plays a range and adds it to
docs/simulation.json; a seed that fails is printed with the shortest tape that fails too. `--tape HEX` plays a tape
again, `--seed N` a seed, and prints the story.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("simulation", "game", "twin", ""))]

from story import Story  # noqa: E402
from tape import Tape, shorten  # noqa: E402

RESULTS = ROOT / "docs" / "simulation.json"


def play(tape: Tape, inside: bool) -> tuple[list[str], Story]:
    """What went wrong in a story."""
    story = Story(tape, inside)
    return story.play(), story


def explain(tape: Tape, inside: bool) -> None:
    found, story = play(tape, inside)
    print("\n".join([*story.world.story, *(found or ["all is well"])]))


def record(first: int, count: int, inside: bool, failed: list[int], seconds: float) -> None:
    """One line a range; the same range on the same commit counts once."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    line = {"from": first, "count": count, "inside": inside, "commit": commit.strip(), "seconds": round(seconds),
            "failed": failed}  # fmt: skip
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    same = ("from", "count", "inside", "commit")
    known = [old for old in known if any(old[key] != line[key] for key in same)]
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in [*known, line]) + "\n]\n")


def run(first: int, count: int, inside: bool) -> int:
    begin, failed = time.monotonic(), []
    for seed in range(first, first + count):
        found, story = play(Tape(seed), inside)
        if found:
            failed.append(seed)
            short = shorten(story.world.tape.used, lambda data: bool(play(Tape(data=data), inside)[0]))
            print(
                f"seed {seed}: {'; '.join(found)}\n  simulate.py {'' if inside else '--outside '}--tape {short.hex()}"
            )
    record(first, count, inside, failed, time.monotonic() - begin)
    print(f"{count} seeds from {first}, {len(failed)} failed, {60 * count / (time.monotonic() - begin):.0f} a minute")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--tape", help="bytes in hex")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--outside", action="store_true", help="more goes wrong than the clocks cover")
    args = parser.parse_args()
    if args.tape is not None or args.seed is not None:
        tape = Tape(args.seed) if args.tape is None else Tape(data=bytes.fromhex(args.tape))
        explain(tape, not args.outside)
        return 0
    return run(args.first, args.count, not args.outside)


if __name__ == "__main__":
    sys.exit(main())
