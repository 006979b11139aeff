"""Plant one fault at a time in the contracts and see whether the tests notice: which faults are caught, by which test.

In: contracts/. Out: docs/mutants.json: per fault the file, what was changed, the first test that failed (null: it
survived), the seconds, and the last commit that changed contracts/. Works in a temporary copy of the tracked files.
`--only N..M` plays a range, `--new` what these contracts have not caught yet: a long run can be cut into pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))
# ruff: noqa: E402
from compile import reachable
from faults import MUTANTS, Mutant

from vgame.system.files import write_atomic

RECORD = ROOT / "docs" / "mutants.json"
DEPLOYED = ("VerificationGame", "Settlement", "Delivery", "Referee", "Logged", "Pointwise", "AccuracyEscrow")


def copy_repository(to: Path) -> None:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (ROOT / "build").mkdir(exist_ok=True)
    for shared in ("node_modules", "build"):  # what is in build/contracts goes by the hash of its sources
        (to / shared).symlink_to(ROOT / shared)


def revision() -> str:
    """The last commit that changed the contracts."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=12", "--", "contracts/*.sol"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def first_failure(place: Path, tests: tuple[str, ...]) -> str | None:
    """The first test of `make test` that fails in the copy; None if all pass."""
    environment = os.environ | {"PYTHONPATH": str(place)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *tests]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"pytest ended with {done.returncode}"


def play(place: Path, mutant: Mutant) -> str | None:
    path = place / "contracts" / mutant.file
    before = path.read_text()
    if mutant.old not in before:
        raise SystemExit(f"{mutant.file} no longer contains {mutant.old!r}; bring experiments/mutants.py up to date")
    artifacts = {p: p.read_bytes() for p in (place / "vgame/chain/artifacts").glob("*.json")}
    path.write_text(before.replace(mutant.old, mutant.new, 1))
    try:
        names = [n for n in DEPLOYED if path in reachable(next((place / "contracts").rglob(f"{n}.sol")))]
        command = [sys.executable, "scripts/compile.py", *names]
        compiled = subprocess.run(command, cwd=place, capture_output=True, text=True)
        if compiled.returncode:
            raise SystemExit(f"a fault in {mutant.file} does not compile: {mutant.new!r}\n{compiled.stderr[-500:]}")
        return first_failure(place, mutant.tests)
    finally:
        path.write_text(before)
        for artifact, data in artifacts.items():
            artifact.write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=f"0..{len(MUTANTS)}", help="a range of faults, N..M (M excluded)")
    parser.add_argument("--new", action="store_true", help="only faults that were not caught yet")
    wishes = parser.parse_args()
    first, last = map(int, wishes.only.split(".."))
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"faults": []}
    known = {(f["file"], f["old"], f["new"]): f for f in record["faults"]}
    commit = revision()
    with tempfile.TemporaryDirectory(prefix="vgame-mutants-") as folder:
        place = Path(folder).resolve()
        copy_repository(place)
        for number, mutant in list(enumerate(MUTANTS))[first:last]:
            key = mutant.file, mutant.old, mutant.new
            old = known.get(key, {})
            if not (wishes.new and old.get("caught_by") and old.get("commit") == commit):
                start = time.monotonic()
                caught = play(place, mutant)
                result = {"caught_by": caught, "commit": commit, "seconds": round(time.monotonic() - start)}
                known[key] = {k: v for k, v in asdict(mutant).items() if k != "tests"} | result
                print(f"{number}: {mutant.file}: {mutant.old[:60]!r}: {caught or 'SURVIVED'}", flush=True)
            faults = [known[k] for m in MUTANTS if (k := (m.file, m.old, m.new)) in known]
            found = sum(f["caught_by"] is not None for f in faults)
            text = json.dumps({"planted": len(faults), "caught": found, "faults": faults}, indent=1) + "\n"
            write_atomic(RECORD, text.encode())
    if first < last:
        print(f"{found} of {len(faults)} faults caught")
    return 0


if __name__ == "__main__":
    sys.exit(main())
