"""Compare the findings of `forge lint` and Slither about contracts/ with contracts/findings.toml, which has a reason
for each.

Out: findings without a reason, and reasons whose finding is gone; exit code 1 if there are any. A finding is identified
by its tool, kind, file and place (function and expression), independent of line numbers. An entry without `places`
covers all findings of its kind in the file, one without `file` its kind everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REVIEWED = ROOT / "contracts" / "findings.toml"
FORGE = ROOT / "node_modules" / "@foundry-rs" / "forge-linux-amd64" / "bin" / "forge"
OUT, CACHE = "build/slither/out", "build/slither/cache"


@dataclass(frozen=True, order=True)
class Finding:
    """`place`: function and expression."""

    tool: str
    kind: str
    file: str
    place: str


@dataclass(frozen=True)
class Reason:
    """An entry of contracts/findings.toml."""

    tool: str
    kind: str
    reason: str
    file: str | None = None
    places: tuple[str, ...] | None = None

    def covers(self, finding: Finding) -> bool:
        if (self.tool, self.kind) != (finding.tool, finding.kind):
            return False
        return self.file in (None, finding.file) and (self.places is None or finding.place in self.places)


# ---- forge lint ----


def linted(forge: str) -> set[Finding]:
    """The findings of `forge lint`: JSON lines on stderr."""
    done = subprocess.run([forge, "lint", "contracts", "--json"], cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("{")]
    if done.returncode or (done.stderr.strip() and not lines):
        raise SystemExit(f"forge lint failed with code {done.returncode}: {done.stderr[-1000:]}")
    return {lint_finding(found) for found in map(json.loads, lines) if found.get("code")}


def lint_finding(found: dict) -> Finding:
    span = next(span for span in found["spans"] if span["is_primary"])
    content = (ROOT / span["file_name"]).read_bytes()
    text = content[span["byte_start"] : span["byte_end"]].decode()
    function = enclosing(content[: span["byte_start"]].decode())
    return Finding("forge lint", found["code"]["code"], span["file_name"], f"{function}: {' '.join(text.split())}")


def enclosing(before: str) -> str:
    """The last function that begins in `before`; `constructor` and the top of the file have these names."""
    names = re.findall(r"^ *(?:function (\w+)|(constructor|fallback|receive))\b", before, re.MULTILINE)
    return "".join(names[-1]) if names else "top"


# ---- Slither ----


def slithered(slither: str, forge: str) -> set[Finding]:
    """The findings of Slither about contracts/, compiled by forge."""
    # Slither makes forge clean up and build: in a separate folder, so that `make foundry` keeps its cache
    paths = {"FOUNDRY_OUT": OUT, "FOUNDRY_CACHE_PATH": CACHE, "PATH": f"{Path(forge).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="vgame-slither-") as folder:
        result = Path(folder) / "found.json"
        command = [slither, ".", "--foundry-out-directory", OUT, "--json", str(result)]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | paths, capture_output=True, text=True)
        if not result.exists():
            raise SystemExit(f"Slither failed with code {done.returncode}: {done.stderr[-1000:]}")
        report = json.loads(result.read_text())
    if not report["success"]:
        raise SystemExit(f"Slither failed: {report['error']}")
    found = {slither_finding(each) for each in report["results"].get("detectors", [])}
    return {finding for finding in found if finding.file.startswith("contracts/")}


def slither_finding(found: dict) -> Finding:
    elements = found["elements"]
    first = elements[0]
    node = next((e["name"] for e in elements[1:] if e["type"] == "node"), "")
    above = first["type_specific_fields"].get("parent") if first["type"] in ("node", "variable") else None
    name = f"{above['name']}.{first['name']}" if above else first["name"]
    place = f"{name}: {node}" if node else name
    return Finding("slither", found["check"], first["source_mapping"]["filename_relative"], " ".join(place.split()))


# ---- comparison ----


def reviewed() -> list[Reason]:
    entries = tomllib.loads(REVIEWED.read_text())["finding"]
    return [Reason(**{key: tuple(v) if key == "places" else v for key, v in entry.items()}) for entry in entries]


def compare(found: set[Finding], reasons: list[Reason]) -> list[str]:
    """One line for each finding without a reason, and for each place whose finding is gone."""
    new = [f for f in sorted(found) if not any(reason.covers(f) for reason in reasons)]
    lines = [f"no reason: {f.tool}, {f.kind}, {f.file}, {f.place!r}" for f in new]
    for reason in reasons:
        where = f"{reason.tool}, {reason.kind}, {reason.file or 'every file'}"
        if not any(reason.covers(f) for f in found):
            lines.append(f"stale: {where}")
        for place in reason.places or ():
            if not any(reason.covers(f) and f.place == place for f in found):
                lines.append(f"stale: {where}, {place!r}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forge", default=str(FORGE), help="the program forge; default: the one of node_modules")
    parser.add_argument("--slither", help="the program slither; without it only forge lint runs")
    options = parser.parse_args()
    if not Path(options.forge).exists():
        print("forge is not installed (npm ci): the contracts are not analysed")
        return 0
    reasons, found = reviewed(), linted(options.forge)
    if options.slither:
        found |= slithered(options.slither, options.forge)
    else:
        print("no Slither: only forge lint runs")
        reasons = [reason for reason in reasons if reason.tool == "forge lint"]
    lines = compare(found, reasons)
    print("\n".join(lines) or f"{len(found)} findings, each with its reason in contracts/findings.toml")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
