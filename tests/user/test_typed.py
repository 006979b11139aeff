"""The guide's market, typed as it stands: `vgame chain`, a client, a trainer, an auditor, until the reward is paid."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typed import blocks, files, filled, inline, section, terminal

GUIDE = "docs/guide.md"


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@pytest.mark.wide
def test_the_market_of_the_guide_ends_with_a_reward(tmp_path: Path) -> None:
    for name, content in files(section(GUIDE, "1. A task")):
        (tmp_path / name).write_text(content)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py", "mine.toml"}
    text = section(GUIDE, "3. On a chain")
    with terminal(tmp_path) as shell:
        shell.run(blocks(section(GUIDE, "2. Without a chain"))[0].splitlines()[0])
        (market,) = blocks(text)
        shell.type(filled(market, {"8545": free_port()}))
        shell.wait(r"job \w+: MATCH", 300)
        shell.wait(r"the job ended: final, 3\.000000 ether withdrawn", 300)  # after a window of 120 seconds
        shell.wait(r"│ final ", 60)
        shell.interrupt()
        (run,) = (tmp_path / "trainer").iterdir()
        file = {"FILE": "weights.safetensors"}
        export = filled(inline(text, "vgame export trainer"), file | {"IDENTITY": run.name})
        assert "the weights after step 60 of 60" in shell.run(export)
        assert "is what the final claim of job" in shell.run(filled(inline(text, "vgame check FILE"), file))
        shell.run(f"{inline(text, 'kill')}; wait")  # until the chain has ended
