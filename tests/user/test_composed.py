"""deploy/market.yaml, each service as a process: the guide's market until the reward is paid."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from typed import ROOT, environment, files, free_port, section


@contextmanager
def composed(services: dict[str, Any], folder: Path, ports: dict[str, str]) -> Iterator[None]:
    """All services, started at once; /data is the folder, SERVICE.log has the output of each."""
    started: list[subprocess.Popen[bytes]] = []
    for name, service in services.items():
        (script,) = service["command"]
        script = script.replace("$$", "$").replace("/data/", f"{folder}/")
        script = re.sub("|".join(ports), lambda found: ports[found[0]], script)
        variables = environment(folder) | dict(line.split("=", 1) for line in service.get("environment", ()))
        with (folder / f"{name}.log").open("w") as log:
            where = {"cwd": folder / "store", "env": variables, "stdout": log, "stderr": log}
            started.append(subprocess.Popen([*service["entrypoint"], script], **where))
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)


@pytest.mark.wide
def test_the_market_of_the_compose_file_ends_with_a_reward(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (tmp_path / "store").mkdir()
    for name, content in files(section("docs/guide.md", "1. A task")):
        (tmp_path / name).write_text(content)
    services = yaml.safe_load((ROOT / "deploy" / "market.yaml").read_text())["services"]
    ports = {port: free_port() for port in ("8545", "8100", "9101", "9102")}
    end = time.monotonic() + 500
    with composed(services, tmp_path, ports):
        while "the job ended: final, 3.000000 ether withdrawn" not in (tmp_path / "trainer.log").read_text():
            assert time.monotonic() < end, [log.read_text() for log in tmp_path.glob("*.log")]
            time.sleep(1)
        assert ": MATCH" in (tmp_path / "auditor.log").read_text()
        with urlopen(f"http://127.0.0.1:{ports['8100']}/") as page:
            assert b"<title>vgame</title>" in page.read()
