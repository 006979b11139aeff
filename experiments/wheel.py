"""Test the installed package: a wheel in an empty environment, outside this folder.

In: versions of torch (`--torch`, default: the version installed here). For each version: an environment of its own with
the wheel; the first version also runs tutorial, `vgame doctor` and `vgame demo --quick`. Every version prepares and
trains the five shipped jobs for three steps. Out: the roots of programs and runs, one line for each version. Exit code
1 if a command fails or roots differ. Needs the network, and some gigabytes for each version of torch with its own CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JOBS = ("digits", "small_resnet", "small_gpt", "small_llama", "small_lstm")
TRAIN = """
import json, sys
import vgame
found = {}
for name in sys.argv[1:]:
    bundle = vgame.prepare(vgame.Job.from_toml(name + ".toml"))
    found[name] = [bundle.program.root.hex(), vgame.train(bundle, name).root]
print(json.dumps(found))
"""


def run(command: list[str | Path], folder: Path) -> str:
    """Run a command in a folder without this folder's code; prints its time and returns its output."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    shown = " ".join(str(word) if len(str(word)) < 40 else "..." for word in command[1:])
    print(
        f"  {Path(command[0]).name} {shown}: exit code {done.returncode}, {time.monotonic() - began:.0f} s", flush=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def write_jobs(folder: Path) -> None:
    """Write the shipped job files with three steps, on a local text."""
    (folder / "text.txt").write_bytes((ROOT / "LICENSE").read_bytes())
    for name in JOBS:
        text = (ROOT / f"vgame/tasks/{name}.toml").read_text()
        text = re.sub(r"^steps = \d+", "steps = 3", text, flags=re.MULTILINE)
        text = re.sub(r"^interval = \d+", "interval = 1", text, flags=re.MULTILINE)
        text = re.sub(r"^warmup = \d+", "warmup = 1", text, flags=re.MULTILINE)
        (folder / f"{name}.toml").write_text(re.sub(r'^text = "[^"]*"', 'text = "text.txt"', text, flags=re.MULTILINE))


def tried(wheel: Path, torch: str, whole: bool, work: Path) -> dict[str, list[str]]:
    """Roots of the jobs with one version of torch; `whole`: tutorial, doctor and demo too."""
    folder = work / torch
    (folder / "here").mkdir(parents=True)
    python = folder / "venv/bin/python"
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    run([python, "-m", "pip", "install", "-q", f"torch=={torch}"], folder)
    run([python, "-m", "pip", "install", "-q", f"{wheel}[demo]"], folder)
    here = folder / "here"
    write_jobs(here)
    found = json.loads(run([python, "-c", TRAIN, *JOBS], here).splitlines()[-1])
    if whole:
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
        (here / "tutorial.py").write_text("\n".join(blocks))
        run([python, "tutorial.py"], here)
        run([folder / "venv/bin/vgame", "doctor"], here)
        run([folder / "venv/bin/vgame", "demo", "--quick", "--report", "report.html"], here)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", nargs="+", default=[version("torch").split("+")[0]], metavar="VERSION")
    parser.add_argument("--work", type=Path, help="a folder for the environments (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        work = Path(name)
        run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", work, ROOT], work)
        (wheel,) = work.glob("verified_training-*.whl")
        found = {}
        for i, torch in enumerate(options.torch):
            print(f"torch {torch}", flush=True)
            found[torch] = tried(wheel, torch, i == 0, work)
    for torch, roots in found.items():
        print(torch, json.dumps(roots))
    return len({json.dumps(roots) for roots in found.values()}) - 1 and 1


if __name__ == "__main__":
    sys.exit(main())
