#!/usr/bin/env python3
"""Play seeds of the simulator (docs/simulation.md): `simulate.py FROM COUNT` plays the seeds of a range that were not
yet played on this commit, and adds them to docs/simulation.json; a failing seed is printed with the shortest tape that
fails too. `--tape HEX` plays a tape again, `--seed N` a seed, and prints the story. `--sales`: stories of deliveries;
`--several`: each role is played twice, once with a hostile node; `--endpoints`: each role queries three nodes, one of
which is hostile; `--logged`: disputes in mode `logged`; `--bonuses`: stories of bonuses.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / "tests" / name) for name in ("simulation", "game", "twin", ""))]

from bazaar import Bazaar  # noqa: E402
from bonuses import Bonuses  # noqa: E402
from chorus import Chorus  # noqa: E402
from code_only import last_change  # noqa: E402
from logged import Logged  # noqa: E402
from sale import Sale  # noqa: E402
from several import Several  # noqa: E402
from story import Story  # noqa: E402
from tape import Tape, shorten  # noqa: E402

RESULTS = ROOT / "docs" / "simulation.json"
ROOMS = ("agents", "attacks", "chain", "commit", "dispute", "errors.py", "job", "system")
GAME = ("frauds", "ghost", "places", "revm_calls", "revm_chain", "revm_node", "scene", "toy")
#: Only stories of bonuses run these (tests/simulation/test_simulation.py).
IDLE = (
    "agents/bonus", "agents/bonus_conditions", "agents/certified", "agents/client", "agents/followed_run",
    "agents/local_run", "agents/notify", "agents/status", "agents/telemetry", "attacks/cheat", "attacks/computation",
    "attacks/exchange", "attacks/tampered_log", "chain/agreed", "chain/connect", "chain/deployment", "chain/embedded",
    "chain/escrow", "chain/registry", "chain/sending", "chain/tester_json", "commit/gpu_sha", "commit/mapped",
    "commit/sha_kernel", "commit/tensor", "job/bundle", "job/cautions", "job/data", "job/differences", "job/factory",
    "job/file", "job/forecast", "job/modules", "job/shown", "job/start", "job/state_keys", "job/terms", "job/weights",
    "system/fields", "system/installed", "system/jit", "system/memory", "system/threads", "system/version",
    "system/warned",
)  # fmt: skip
UNPLAYED = (
    *(f"vgame/{name}.py" for name in IDLE),
    *(f"tests/simulation/{name}.py" for name in ("accuracy", "award", "bonuses", "claimants", "evaluations", "users")),
)
OF_DELIVERIES = ("sale", "bazaar")  # kinds
OF_SALES = ("disk", "market", "provider", "sale", "shelf", "shown_fee", "verdict")
SALES = ("vgame/agents/delivery.py", *(f"tests/simulation/{name}.py" for name in OF_SALES))
UNSOLD = tuple(f"tests/simulation/{name}.py" for name in OF_SALES if name != "market")
HTTP = ("vgame/chain/http.py",)  # not run by a role with one endpoint in a story of disputes
LOOKS = ("vgame/chain/look.py", "vgame/chain/turns.py")  # of turns.py a role with one endpoint runs only the last lines
SEVERAL = tuple(f"tests/simulation/{name}.py" for name in ("hostile", "several"))
LOGGED = ("tests/simulation/logged.py",)
TURNS = tuple(f"tests/simulation/{name}.py" for name in ("bazaar", "chorus"))  # a role has several endpoints
UNUSED = {
    "dispute": (*UNPLAYED, *SALES, *HTTP, *SEVERAL, *TURNS, *LOOKS, *LOGGED),
    "logged": (*UNPLAYED, *SALES, *HTTP, *SEVERAL, *TURNS, *LOOKS),
    "sale": (*UNPLAYED, *SEVERAL, *TURNS, *LOOKS, *LOGGED),
    "several": (*UNPLAYED, *SALES, *HTTP, *TURNS, *LOOKS, *LOGGED), "chorus": (*UNPLAYED, *SALES, *LOGGED),
    "bazaar": (*UNPLAYED, *LOGGED), "bonus": (*SEVERAL, *TURNS, *UNSOLD, *LOOKS, *LOGGED),
}  # fmt: skip
TESTS = (*(f"tests/game/{name}.py" for name in GAME), "tests/twin/deployed.py", "tests/simulation")
PLAYED = (*(f"vgame/{room}" for room in ROOMS), "contracts", *TESTS)
BESIDE = (":(exclude)*/test_*.py", ":(exclude)*/broken*", ":(exclude)contracts/findings.toml")
#: A story of a bonus also needs a bundle, a run and the escrow.
WHOLE = tuple(f"vgame/{name}" for name in ("api_bonus.py", "api_evaluation.py", "execute", "runs", "tasks", "program"))
STORIES: dict[str, type[Story]] = {
    "dispute": Story, "sale": Sale, "several": Several, "chorus": Chorus, "bazaar": Bazaar, "bonus": Bonuses,
    "logged": Logged,
}  # fmt: skip
FLAGS = {
    "dispute": "", "sale": "--sales ", "several": "--several ", "chorus": "--endpoints ", "bazaar": "--market ",
    "bonus": "--bonuses ", "logged": "--logged ",
}  # fmt: skip
SAME = ("inside", "commit", "story")
PART = 500  # seeds between two records


def play(tape: Tape, inside: bool, kind: str) -> tuple[list[str], Story]:
    """Play a story: its failures, and the story."""
    story = STORIES[kind](tape, inside)
    return story.play(), story


def explain(tape: Tape, inside: bool, kind: str) -> None:
    found, story = play(tape, inside, kind)
    print("\n".join([*story.world.story, *(found or ["all is well"])]))


def commit(kind: str) -> str:
    """The last commit that changed code of these stories; with a + if the checkout differs from it."""
    own = (
        *(("vgame/delivery",) if kind in OF_DELIVERIES else ()),
        *((*WHOLE, "tests/game/bonus_stage.py") if kind == "bonus" else ()),
        *(f":(exclude){path}" for path in UNUSED[kind]),
    )
    return last_change(ROOT, (*PLAYED, *own, *BESIDE))


def record(line: dict[str, Any]) -> None:
    """Add a range to the record: to the entry of the same commit that ends where the range begins, or as a new
    entry."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for old in known:
        if all(old[key] == line[key] for key in SAME) and old["from"] + old["count"] == line["from"]:
            old |= {key: old[key] + line[key] for key in ("count", "seconds", "failed")}
            break
    else:
        known.append(line)
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in known) + "\n]\n")


def is_known(seed: int, same: dict[str, Any]) -> bool:
    """Whether the seed was played on this commit."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    ranges = [range(old["from"], old["from"] + old["count"]) for old in known if same.items() <= old.items()]
    return any(seed in played for played in ranges)


def judge(inside: bool, kind: str, seed: int) -> str:
    """The failures of a seed, and the shortest tape that fails too; empty without a failure."""
    found, story = play(Tape(seed), inside, kind)
    if not found:
        return ""
    short = shorten(story.world.tape.used, lambda data: bool(play(Tape(data=data), inside, kind)[0]))
    flags = ("" if inside else "--outside ") + FLAGS[kind]
    return f"seed {seed}: {'; '.join(found)}\n  simulate.py {flags}--tape {short.hex()}"


def quieten() -> None:
    """Set up a worker: no warnings of players, and no garbage collection of objects that live as long as the worker."""
    logging.disable(logging.WARNING)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def run(seeds: range, inside: bool, kind: str, workers: int) -> int:
    """Play part by part, so that the command can be stopped at any time and continued later."""
    begin, failures, played = time.monotonic(), 0, 0
    same = {"inside": inside, "commit": commit(kind), "story": kind}
    with get_context("fork").Pool(workers, quieten) as pool:
        for first in range(seeds.start, seeds.stop, PART):
            part = [seed for seed in range(first, min(first + PART, seeds.stop)) if not is_known(seed, same)]
            if not part:
                continue
            start, failed = time.monotonic(), []
            for seed, problem in zip(part, pool.imap(partial(judge, inside, kind), part, chunksize=4), strict=True):
                if problem:
                    failed.append(seed)
                    print(problem, flush=True)
            seconds = round(time.monotonic() - start)
            record({"from": part[0], "count": len(part), **same, "seconds": seconds, "failed": failed})
            failures, played = failures + len(failed), played + len(part)
    pace = 60 * played / (time.monotonic() - begin)
    print(f"{played} seeds of {seeds.start} to {seeds.stop - 1}, {failures} failed, {pace:.0f} a minute")
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--tape", help="bytes in hex")
    parser.add_argument("--seed", type=int)
    for kind, what in (
        ("sale", "deliveries"),
        ("several", "each role twice"),
        ("chorus", "three nodes a role"),
        ("bazaar", "deliveries, three nodes a role"),
        ("bonus", "bonuses"),
        ("logged", "mode logged"),
    ):
        parser.add_argument(
            FLAGS[kind].strip(), dest="kind", action="store_const", const=kind, default="dispute", help=what
        )
    parser.add_argument("--outside", action="store_true", help="more goes wrong than the clocks cover")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    args = parser.parse_args()
    if args.tape is not None or args.seed is not None:
        tape = Tape(args.seed) if args.tape is None else Tape(data=bytes.fromhex(args.tape))
        explain(tape, not args.outside, args.kind)
        return 0
    return run(range(args.first, args.first + args.count), not args.outside, args.kind, args.workers)


if __name__ == "__main__":
    sys.exit(main())
