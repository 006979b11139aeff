"""An audit of a run that another host serves, over a good link and one with delay and loss: network namespaces, made
and removed here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from audited_runs import bundle

import vgame

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[2]
SERVER, CLIENT = f"vg{os.getpid()}s", f"vg{os.getpid()}c"  # names of interfaces too: 15 characters at most
ADDRESS = "10.77.0.1"
MAKE = f"""
ip netns add {SERVER}
ip netns add {CLIENT}
ip link add {SERVER} netns {SERVER} type veth peer name {CLIENT} netns {CLIENT}
ip -n {SERVER} addr add {ADDRESS}/24 dev {SERVER}
ip -n {CLIENT} addr add 10.77.0.2/24 dev {CLIENT}
ip -n {SERVER} link set {SERVER} up
ip -n {CLIENT} link set {CLIENT} up
"""
BAD = f"""
ip netns exec {SERVER} tc qdisc add dev {SERVER} root netem delay 20ms loss 2%
ip netns exec {CLIENT} tc qdisc add dev {CLIENT} root netem delay 20ms loss 2%
"""


@pytest.fixture(params=["good", "bad"])
def hosts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two hosts; skipped where namespaces, or delay and loss, are not allowed."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need ip and tc (iproute2)")
    try:
        for line in (MAKE + BAD * (request.param == "bad")).split("\n"):
            done = subprocess.run(line.split() or ["true"], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no hosts can be made here: {line}: {done.stderr.strip()}")
        yield
    finally:
        for name in (SERVER, CLIENT):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_a_run_of_another_host(hosts: None, tmp_path: Path) -> None:
    run = vgame.train(bundle(), tmp_path / "run")
    serves = ["ip", "netns", "exec", SERVER, sys.executable, "-m", "http.server", "8000", "--bind", ADDRESS]
    server = subprocess.Popen(
        [*serves, "--directory", run.folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(2)
        audits = ["ip", "netns", "exec", CLIENT, sys.executable, "-m", "vgame.cli", "audit", f"http://{ADDRESS}:8000"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "VGAME_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [*audits, "--workers", "2", "--json"], capture_output=True, text=True, env=environment, check=False
        )
    finally:
        server.kill()
        server.wait()
    told = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    assert done.returncode == 0 and told["match"] and told["checked"] == [1, 2, 3, 4, 5, 6], done.stderr
