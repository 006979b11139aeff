"""The processes of a demonstration end with it, also after a kill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked
from chains import wait_until

from vgame.chain.connection import Chain
from vgame.errors import ChainError

DEMO = """
import sys, time
from pathlib import Path
from vgame.demo.processes import EmbeddedChain
print(EmbeddedChain(Path(sys.argv[1])).url(), flush=True)
time.sleep(600)
"""


def test_the_processes_of_a_killed_demonstration_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEMO, str(tmp_path / "log")]
    demo = forked.Popen(command, stdout=subprocess.PIPE, text=True)
    chain = Chain(demo.stdout.readline().strip())

    def gone() -> bool:
        try:
            return chain.now() < 0
        except ChainError:
            return True

    try:
        assert not wait_until(gone, 3)
    finally:
        demo.kill()
        demo.communicate()
    assert wait_until(gone, 30)
