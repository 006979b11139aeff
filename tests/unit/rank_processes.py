"""Ranks as processes of the command line, as torchrun starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import forked
from hosts import LOCAL, Host

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks:
    """`vgame train` in `world` processes; `sources`: the argument of each, the last one for all others. `line`: another
    command. `hosts`: hosts.Host of each rank, the last one for all others."""

    def __init__(
        self,
        world: int,
        sources: Sequence[Path],
        out: Path,
        *options: str,
        line: Sequence[str] = (),
        hosts: Sequence[Host] = (LOCAL,),
    ) -> None:
        shared = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
        shared |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.processes = []
        for rank in range(world):
            source = sources[min(rank, len(sources) - 1)]
            train = ["-m", "vgame", "train", str(source), "--out", str(out), "--json", *options]
            host = hosts[min(rank, len(hosts) - 1)]
            command = [*host.prefix, sys.executable, *(line or train)]
            start = subprocess.Popen if host.prefix else forked.Popen
            self.processes.append(
                start(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=os.environ | shared | host.environment | {"RANK": str(rank)},
                )
            )

    def wait(self, timeout: float = 120) -> tuple[list[int], str]:
        """Exit codes and the text on stderr."""
        try:
            output = [p.communicate(timeout=timeout)[1] for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return [p.returncode for p in self.processes], "".join(output)
