"""A forked role is the same device as in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forked
import pytest

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nursery")
    job = JobFile(model="vgame.tasks.digits:task", seed=3, steps=2, interval=1, schedule={"lr": "0.05"})
    save_bundle(prepare(job), folder / "bundle")
    return folder


def test_a_forked_role_is_the_same_device(folder: Path) -> None:
    command = [sys.executable, "-c", ROLES, str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    forked, spawned = json.loads(run.stdout)[:2], json.loads(run.stdout)[2:]
    assert forked == spawned and forked[0] != forked[1]


STRANGE = """
import os, resource, sys
from pathlib import Path
from vgame.demo.nursery import Nursery
from vgame.demo.processes import Role
folder, how = Path(sys.argv[1]), sys.argv[2]
if how == "closed":
    sys.stdin = sys.stdout = sys.stderr = None
    for file in range(3):
        os.close(file)
nursery = Nursery()
if how == "many":
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
words = ["roots", str(folder / "bundle"), "--mode", "fp32", "--device", "default"]
role = Role("roots", words, folder / "log", None, lambda event: None, nursery.start)
assert role.wait("roots", 60)["roots"]
role.stop()
nursery.stop()
os._exit(0)
"""


@pytest.mark.parametrize("how", ["closed", "many"])
def test_a_program_without_stdin_or_with_more_files_than_select_supports(folder: Path, how: str) -> None:
    assert forked.run([sys.executable, "-c", STRANGE, str(folder), how]).returncode == 0


REFUSED = """
import ctypes, struct
from vgame.demo.processes import spawn
from vgame.demo.stage import Stage
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, 434), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]  # pidfd_open: EPERM
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
prctl = ctypes.CDLL(None).prctl
assert not prctl(38, 1, 0, 0, 0) and not prctl(22, 2, struct.pack("HP", len(lines), ctypes.addressof(code)), 0, 0)
assert Stage._nursery(None) is spawn
"""


def test_roles_are_started_anew_if_a_system_call_filter_refuses_pidfds() -> None:
    """As in a container of an old engine."""
    done = forked.run([sys.executable, "-c", REFUSED])
    assert done.returncode == 0, done.stderr
