"""Ranks and Ray's workers on two hosts whose link is slow and loses packets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host, two_hosts
from job_files import write
from rank_processes import ROOT, Ranks
from test_rank_processes import until

import vgame
from vgame.job.file import read_job_file
from vgame.runs.prepare import prepare

pytestmark = pytest.mark.nightly


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as (pair, shape):
        print(f"the link: {shape}")
        yield pair


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    job = write(folder / "job.toml", args="batch = 60\nwidth = 16")
    job.write_text(job.read_text().replace("steps = 6", "steps = 40"))
    prepare(read_job_file(job)).save(folder / "job")
    return folder / "job"


def test_one_root_over_a_slow_link_that_loses_packets(hosts, bundle, tmp_path):
    codes, text = Ranks(3, [bundle], tmp_path / "run", hosts=[hosts[0], hosts[1]]).wait()
    assert codes == [0, 0, 0], text
    assert vgame.Run.open(tmp_path / "run").root == vgame.train(bundle, tmp_path / "alone").root
    assert min(host.sent() for host in hosts) > 10**6, "the gradients went over the link"
    assert sum(host.dropped() for host in hosts) > 0, "packets were lost"


def test_a_host_that_is_gone_is_named(hosts, bundle, tmp_path):
    ranks = Ranks(2, [bundle], tmp_path / "run", "--timeout", "12", hosts=hosts)
    until(tmp_path / "run", 1, ranks)
    hosts[1].run("ip", "link", "set", hosts[1].interface, "down")
    ranks.processes[0].wait(60)
    ranks.processes[1].kill()
    codes, text = ranks.wait()
    assert codes[0] == 1 and "rank 1 (of 2, host " in text, text
    assert "gives no sign of life for 12 s" in text or "died at step" in text, text
    alone = vgame.train(bundle, tmp_path / "alone")
    assert vgame.train(bundle, tmp_path / "run").root == alone.root, "it goes on from what is committed"


def test_ray_on_two_hosts(hosts, bundle, tmp_path):
    """Parts of an audit run on the other host; the run comes to it over HTTP."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    vgame.train(bundle, tmp_path / "run")
    first, second = hosts
    token = ["RAY_AUTH_MODE=token", f"RAY_AUTH_TOKEN={'5a' * 32}"]
    environment = ["env", *token, "RAY_DISABLE_DOCKER_CPU_WARNING=1", f"PYTHONPATH={ROOT}"]
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1", "--disable-usage-stats"]
    address, scratch = f"{first.address}:6399", tempfile.mkdtemp(prefix="r")  # short: sockets' names are
    head = ["--head", "--port=6399", "--include-dashboard=false", f"--temp-dir={scratch}"]
    started = [
        _start(first, [*environment, *start, *head, f"--node-ip-address={first.address}"]),
        _start(first, [sys.executable, "-m", "http.server", "8099", "--bind", first.address, "-d", str(tmp_path)]),
    ]
    try:
        first.run(*environment, sys.executable, "-c", WAIT, address, "1", timeout=120)
        joins = [f"--address={address}", f"--node-ip-address={second.address}"]
        started.append(_start(second, [*environment, *start, *joins]))
        first.run(*environment, sys.executable, "-c", WAIT, address, "2", timeout=120)
        before = second.sent()
        audit = [sys.executable, "-m", "vgame", "audit", f"http://{first.address}:8099/run", "--ray", address, "--json"]
        found = first.run(*environment, *audit, check=False, timeout=300)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout.splitlines()[-1])["match"] is True, found.stdout
        assert second.sent() > before + 10**4, "the second host took part"
    finally:
        for process in started:
            process.kill()
        shutil.rmtree(scratch, ignore_errors=True)


#: A script that waits until a cluster has a number of processors.
WAIT = """
import logging, ray, sys, time
while True:
    try:
        ray.init(sys.argv[1], logging_level=logging.ERROR)
        while ray.cluster_resources().get("CPU", 0) < int(sys.argv[2]):
            time.sleep(0.2)
        break
    except Exception:
        time.sleep(0.5)
"""


def _start(host: Host, command: list[str]) -> subprocess.Popen:
    return subprocess.Popen([*host.prefix, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
