"""Plant one fault at a time in the contracts and see whether the tests notice: which faults are caught, by which test.

In: contracts/. Out: docs/mutants.json: per fault the file, the change, the first test that failed (null: the fault
survived), the seconds of processor time, and the last commit that changed contracts/. Works in a temporary copy of the
tracked files. `--only N..M` plays a range (or several, with commas), `--new` the faults that no test has caught in
these contracts: so a long run can be divided, and two runs may work at the same time.

A contract is compiled again if the fault changes its intermediate code, with the settings of scripts/compile.py, by a
compiler process that is kept. Tests are forks of a process that has loaded their imports. The test that caught a fault
last time runs first; and each test that catches one has to pass without it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "scripts")]
# ruff: noqa: E402
import forked
from faults import MUTANTS, Mutant

from vgame.system.files import write_atomic

RECORD = ROOT / "docs" / "mutants.json"


def copy_repository(to: Path) -> None:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (ROOT / "build").mkdir(exist_ok=True)
    for shared in ("node_modules", "build"):  # files in build/contracts are found by the hash of their sources
        (to / shared).symlink_to(ROOT / shared)


def revision() -> str:
    """The last commit that changed the contracts."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=12", "--", "contracts/*.sol"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


#: Exit codes of pytest.
PASSED, NOT_FOUND, NOTHING_RUN = 0, 4, 5


class Unchanged(Exception):
    """The contract's intermediate code is the same as without a fault."""


class Compiler:
    """A compiler process that is kept, for scripts/compile.py of a copy, which would start one for each contract."""

    def __init__(self, place: Path) -> None:
        sys.path.insert(0, str(place / "scripts"))
        import compile

        self.script, compile.solcx = compile, self
        command = ["node", str(place / "scripts/solc.mjs"), "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.sources = {name: next((place / "contracts").rglob(f"{name}.sol")) for name in compile.DEPLOYED}
        self.reached = {name: compile.reachable(path) for name, path in self.sources.items()}
        self.intact: dict[str, str | None] = {}

    def learn(self, name: str) -> None:
        """Take the contract's current intermediate code as the intact one."""
        if name not in self.intact:
            self.intact[name] = None
            assert self.artifact(name) is None

    def artifact(self, name: str) -> bytes | None:
        """The contract's file for vgame/chain/artifacts; None if its intermediate code is the intact one."""
        try:
            contract = self.script.compile_sources([self.sources[name]])[name]
        except Unchanged:
            return None
        if (size := len(contract["runtime"]) // 2) > self.script.CODE_SIZE_LIMIT:
            raise SystemExit(f"a fault makes {name} too large to deploy: {size:,} bytes; plant it in fewer words")
        del contract["storage"]
        return (json.dumps(contract, indent=1, sort_keys=True) + "\n").encode()

    def compile_standard(self, given: dict, **_: object) -> dict:
        """Twin: solcx.compile_standard, only of the contract with the name of the source."""
        (source,) = given["sources"]
        if (name := Path(source).stem) in self.intact:
            code = renumbered(self._ask(given, ["ir"])[source])
            if self.intact[name] in (None, code):
                self.intact[name] = code
                raise Unchanged
        return {"contracts": self._ask(given, given["settings"]["outputSelection"]["*"]["*"])}

    def seconds(self) -> float:
        """Processor time of the compiler so far."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _ask(self, given: dict, outputs: list[str]) -> dict:
        (source,) = given["sources"]
        selection = {source: {Path(source).stem: outputs}}
        settings = given["settings"] | {"outputSelection": selection, "debug": {"debugInfo": []}}
        self.process.stdin.write(json.dumps(given | {"settings": settings}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if wrong := [e["formattedMessage"] for e in answer.get("errors", ()) if e["severity"] == "error"]:
            raise SystemExit(f"a fault does not compile:\n{wrong[0]}")
        return answer["contracts"]


def renumbered(contracts: dict) -> str:
    """The contract's intermediate code. Numbers in names depend on positions in the sources; here they follow the order
    of first use."""
    (contract,) = contracts.values()
    numbers: dict[str, str] = {}
    return re.sub(r"_\d+", lambda found: numbers.setdefault(found[0], f"_{len(numbers)}"), contract["ir"])


class Tests:
    """The tests of a copy, run as by `make test`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sound: set[str] = set()
        os.environ |= {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}

    def first_failure(self, tests: tuple[str, ...], fine: tuple[int, ...] = (PASSED,)) -> str | None:
        """The first failing test; None if pytest ends with an exit code in `fine`."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not nightly", *tests]
        pipes = {"stdout": forked.PIPE, "stderr": forked.PIPE, "text": True}
        with forked.Popen(command, cwd=self.place, **pipes) as process:
            out, err = process.communicate()
        if process.returncode in fine:
            return None
        if found := failure(out):
            return found
        raise SystemExit(f"pytest ended with {process.returncode}:\n{out[-2000:]}\n{err[-2000:]}")

    def require_sound(self, test: str) -> None:
        if test not in self.sound and self.first_failure((test,)):
            raise SystemExit(f"{test} fails without a fault too")
        self.sound.add(test)


def failure(printed: str) -> str | None:
    """The first test that pytest's summary names; a case may have a name of several words."""
    found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+(?:\[.*?\])?)(?: - .*)?$", printed, re.MULTILINE)
    return found[1] if found else None


def play(compiler: Compiler, tests: Tests, mutant: Mutant, before: str | None) -> str | None:
    """The test that catches the fault, or None. `before` runs first, then all tests that should notice the fault."""
    path = tests.place / "contracts" / mutant.file
    intact = path.read_text()
    if mutant.old not in intact:
        raise SystemExit(f"{mutant.file} no longer contains {mutant.old!r}; bring experiments/faults.py up to date")
    artifacts = tests.place / "vgame/chain/artifacts"
    reached = [name for name, sources in compiler.reached.items() if path in sources]
    for name in reached if len(reached) > 1 else ():  # to compile a single contract is as fast as to compare it
        compiler.learn(name)
    path.write_text(intact.replace(mutant.old, mutant.new, 1))
    made = {artifacts / f"{n}.json": data for n in reached if (data := compiler.artifact(n))}
    kept = {artifact: artifact.read_bytes() for artifact in made}
    if made == kept:
        raise SystemExit(f"a fault in {mutant.file} changes no contract: {mutant.new!r}")
    try:
        for artifact, data in made.items():
            artifact.write_bytes(data)
        again = before and tests.first_failure((before,), (PASSED, NOT_FOUND, NOTHING_RUN))
        caught = again or tests.first_failure(mutant.tests)
    finally:
        path.write_text(intact)
        for artifact, data in kept.items():
            artifact.write_bytes(data)
    if caught:
        tests.require_sound(caught)
    return caught


def seconds(compiler: Compiler) -> float:
    """Processor time so far of this process, the compiler and the tests that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return compiler.seconds() + sum(u.ru_utime + u.ru_stime for u in used)


def key(fault: Mutant | dict) -> tuple[str, str, str]:
    return tuple((fault if isinstance(fault, dict) else asdict(fault))[name] for name in ("file", "old", "new"))


def recorded() -> dict[tuple[str, str, str], dict]:
    return {key(fault): fault for fault in json.loads(RECORD.read_text())["faults"]} if RECORD.exists() else {}


def write(result: dict) -> None:
    """Add to the record, which another process may change too. An entry of older contracts stays until its fault is
    played again, but is not counted."""
    with open(ROOT / "build" / "mutants.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = recorded() | {key(result): result}
        faults = [known[key(m)] for m in MUTANTS if key(m) in known]
        played = [f["caught_by"] for f in faults if f["commit"] == result["commit"]]
        counts = {"planted": len(MUTANTS), "played": len(played), "caught": len(played) - played.count(None)}
        text = json.dumps({"commit": result["commit"], **counts, "faults": faults}, indent=1) + "\n"
        write_atomic(RECORD, text.encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=f"0..{len(MUTANTS)}", help="ranges of faults, N..M,N..M (M excluded)")
    parser.add_argument("--new", action="store_true", help="only faults that were not caught yet")
    options = parser.parse_args()
    numbers = [n for part in options.only.split(",") for n in range(*map(int, part.split("..")))]
    commit, known = revision(), recorded()
    with tempfile.TemporaryDirectory(prefix="vgame-mutants-") as folder:
        place = Path(folder).resolve()
        copy_repository(place)
        tests, compiler = Tests(place), Compiler(place)
        for number, mutant in ((n, MUTANTS[n]) for n in numbers):
            old = known.get(key(mutant), {})
            if options.new and old.get("caught_by") and old["commit"] == commit:
                continue
            start = seconds(compiler)
            caught = play(compiler, tests, mutant, old.get("caught_by"))
            took = round(seconds(compiler) - start)
            fault = {k: v for k, v in asdict(mutant).items() if k != "tests"}
            write(fault | {"caught_by": caught, "commit": commit, "seconds": took})
            print(f"{number}: {mutant.file}: {mutant.old[:60]!r}: {caught or 'SURVIVED'} ({took} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
