"""An audit of a run that another host serves, over a link that is slow and loses packets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from audited_runs import bundle
from hosts import two_hosts
from rank_processes import ROOT

import vgame

pytestmark = pytest.mark.nightly


def test_a_run_of_another_host(tmp_path: Path) -> None:
    run = vgame.train(bundle(), tmp_path / "run")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "VGAME_CACHE": str(tmp_path / "cache")}
    with two_hosts() as ((there, here), _):
        serves = [sys.executable, "-u", "-m", "http.server", "8000", "--bind", there.address, "--directory", run.folder]
        server = subprocess.Popen([*there.prefix, *serves], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert b"Serving HTTP" in server.stdout.readline()
            audits = [sys.executable, "-m", "vgame.cli", "audit", f"http://{there.address}:8000", "--workers", "2"]
            done = subprocess.run(
                [*here.prefix, *audits, "--json"], capture_output=True, text=True, env=environment, timeout=300
            )
        finally:
            server.kill()
            server.wait()
        assert there.sent() > sum(path.stat().st_size for path in run.folder.rglob("states/*")), "over the link"
    reply = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    assert done.returncode == 0 and reply["match"] and reply["checked"] == [1, 2, 3, 4, 5, 6], done.stderr
