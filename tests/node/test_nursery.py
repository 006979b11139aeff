"""A role that is forked is the device that it would be in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from vgame.job.bundle import save_bundle
from vgame.job.file import JobFile
from vgame.runs.prepare import prepare

ROLES = """
import json, sys
from pathlib import Path
from vgame.demo.nursery import Nursery
from vgame.demo.processes import Role, spawn
sys.stdout = open(1, "w")  # as who runs this in another program may have it; it closes its file when it is replaced
nursery, folder, found = Nursery(), Path(sys.argv[1]), []
for start in (nursery.start, spawn):
    for device in ("default", "compatible"):
        words = ["roots", str(folder / "bundle"), "--mode", "fp32", "--device", device]
        role = Role("roots", words, folder / "log", None, lambda event: None, start)
        found.append(role.wait("roots")["roots"])
        role.stop()
words = ["roots", str(folder / "bundle"), "--mode", "fp32", "--device", "default"]
start = lambda words, environment, files: nursery.start(words, environment | {"LONG": "x" * 200_000}, files)
role = Role("roots", words, folder / "log", None, lambda event: None, start)
assert role.wait("roots")["roots"] == found[0]
role.stop()
nursery.stop()
print(json.dumps(found))
"""


def test_a_forked_role_is_its_device(tmp_path: Path) -> None:
    job = JobFile(model="vgame.tasks.digits:task", seed=3, steps=2, interval=1, schedule={"lr": "0.05"})
    save_bundle(prepare(job), tmp_path / "bundle")
    command = [sys.executable, "-c", ROLES, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    forked, spawned = json.loads(run.stdout)[:2], json.loads(run.stdout)[2:]
    assert forked == spawned and forked[0] != forked[1]
