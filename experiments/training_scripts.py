"""Write the table of training scripts: each is captured, trained and audited by other kernels, or refused by one
sentence.

    python experiments/training_scripts.py            writes docs/scripts.md

The scripts are in tests/user/scripts; those of missing libraries are listed and omitted. The table has no times, so it
is the same on every machine.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/user/scripts"), str(ROOT / "scripts")]

from reflow import reflow  # noqa: E402
from training_scripts import Auditor, Outcome, Script, load, outcome  # noqa: E402

PACKAGES = ("torch", "transformers", "timm", "lightning", "peft", "torchrl")
HEAD = """# Training scripts of the documentation

{count} short scripts, rewritten from the tutorials of torch, transformers, timm, Lightning, peft and
torchrl: {trained} are captured unchanged, trained for 2 steps and audited by other kernels with an
equal root; {refused} are refused with one error.

Written by `python experiments/training_scripts.py` with {versions}. The scripts
are in `tests/user/scripts`, one function each; models are small, data is generated. Scripts that play in an
environment train on recorded episodes.{missing}

| library | script | lines | operators | result |
|---|---|---|---|---|
"""


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder, Auditor() as auditor:
        for number, script in enumerate(load().values()):
            found[script.name] = outcome(script, Path(folder) / str(number), auditor)
            print(f"{number + 1} of {len(load())}: {script.library}, {script.name}", file=sys.stderr, flush=True)
    (ROOT / "docs/scripts.md").write_text(reflow(page(load(), found)))


def page(scripts: Mapping[str, Script], found: Mapping[str, Outcome]) -> str:
    installed = {name: _version(name) for name in PACKAGES}
    missing = [name for name, number in installed.items() if not number]
    trained = sum(o.audited for o in found.values())
    head = HEAD.format(
        count=len(found), trained=trained, refused=sum(bool(o.sentence) for o in found.values()),
        versions=", ".join(f"{name} {number}" for name, number in installed.items() if number),
        missing=f" Not installed, so left out: {', '.join(missing)}." if missing else "",
    )  # fmt: skip
    return head + "".join(_row(script, found[name]) for name, script in scripts.items())


def _row(script: Script, found: Outcome) -> str:
    result = f"refused: {found.sentence}" if found.sentence else "audit equal" if found.audited else "NOT EQUAL"
    operators = f"{found.operators:,}" if found.operators else ""
    return f"| {script.library} | {script.name} | {script.lines} | {operators} | {result.replace('|', ' ')} |\n"


def _version(package: str) -> str:
    try:
        return version(package).split("+")[0]
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    main()
