#!/usr/bin/env python3
"""Measure how many seeds the simulator needs to find players with one rule broken (docs/simulation.md), from the first
seed of five disjoint ranges: `broken_players.py LIMIT` continues the play of each range up to LIMIT seeds, with the
results in docs/broken_players.json. It can be stopped at any time and continued later. `--tests` writes the seeds that
tests play first (tests/simulation/broken_seeds.json).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from multiprocessing import get_context
from statistics import median
from typing import Any

from simulate import ROOT, commit, quieten

import broken_seeds  # isort: skip
from broken import CASTS  # isort: skip
from broken_sales import BROKEN  # isort: skip
from sale import Sale  # isort: skip
from story import Cast, Story  # isort: skip
from tape import Tape  # isort: skip

RESULTS = ROOT / "docs" / "broken_players.json"
PLAYERS: dict[str, Any] = {**CASTS, **BROKEN}
RANGES = tuple(range(0, 500_000, 100_000))  # their first seeds
TURN = 5  # seeds of one player and range, before those of the next


def play(entry: dict[str, Any]) -> dict[str, Any]:
    """The same entry after TURN more seeds, or after the first seed that finds the player."""
    begin, broken = time.monotonic(), PLAYERS[entry["player"]]
    for _ in range(TURN):
        tape = Tape(entry["from"] + entry["played"])
        story = Story(tape, cast=broken) if isinstance(broken, Cast) else Sale(tape, patches=broken)
        found = story.play()
        entry["played"] += 1
        if found:
            entry["found"] = found[0]
            break
    return entry | {"seconds": round(entry["seconds"] + time.monotonic() - begin, 1)}


def kind(player: str) -> str:
    return "dispute" if player in CASTS else "sale"


def load() -> list[dict[str, Any]]:
    """One entry for each player and range: the recorded one if it is of the current commit, else an empty one."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    now = {name: commit(kind(name)) for name in PLAYERS}
    kept = {(e["player"], e["from"]): e for e in known if e["commit"] == now.get(e["player"])}
    new = {"played": 0, "found": "", "seconds": 0}
    return [
        kept.get((name, first), {"player": name, "from": first, "commit": now[name]} | new)
        for name in PLAYERS
        for first in RANGES
    ]


def save(entries: list[dict[str, Any]]) -> None:
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries if entry["played"]) + "\n]\n")


def measure(limit: int, workers: int) -> list[dict[str, Any]]:
    entries = load()
    places = {(entry["player"], entry["from"]): n for n, entry in enumerate(entries)}
    with get_context("fork").Pool(workers, quieten) as pool:
        while due := [entry for entry in entries if not entry["found"] and entry["played"] < limit]:
            due.sort(key=lambda entry: (entry["played"], entry["from"]))
            least = [entry for entry in due if entry["played"] < due[0]["played"] + TURN]
            for entry in pool.imap_unordered(play, least):
                entries[places[entry["player"], entry["from"]]] = entry
                save(entries)
    return entries


def seeds_of_tests(limit: int, workers: int) -> None:
    """Write a seed that finds each player. The written seed is played first, and kept if no seed finds the player."""
    found = {kind: {**broken_seeds.known()[kind]} for kind in broken_seeds.PLAYERS}
    players = [(kind, name, limit) for kind, names in broken_seeds.PLAYERS.items() for name in names]
    with get_context("fork").Pool(workers, quieten) as pool:
        for kind, name, seed in pool.imap_unordered(_seed, sorted(players, key=lambda p: p[1] not in found[p[0]])):
            print(f"{kind:8} {name:45} {seed}", flush=True)
            if seed is not None and found[kind].get(name) != seed:
                found[kind][name] = seed
                text = json.dumps(found, indent=1, sort_keys=True) + "\n"
                broken_seeds.KNOWN.with_suffix(".new").write_text(text)
                broken_seeds.KNOWN.with_suffix(".new").replace(broken_seeds.KNOWN)


def _seed(player: tuple[str, str, int]) -> tuple[str, str, int | None]:
    kind, name, limit = player
    return kind, name, broken_seeds.found_by(kind, name, range(limit))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("limit", type=int, nargs="?", default=2_000, help="seeds of a range, at most")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    parser.add_argument("--tests", action="store_true", help="one seed for each player, that tests play first")
    args = parser.parse_args()
    if args.tests:
        seeds_of_tests(args.limit, args.workers)
        return 0
    entries = measure(args.limit, args.workers)
    for name in PLAYERS:
        mine = [entry for entry in entries if entry["player"] == name]
        seeds = [entry["played"] if entry["found"] else float("inf") for entry in mine]
        print(f"{name:28} median {median(seeds):6} of {seeds}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
