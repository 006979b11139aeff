"""The guide typed as it stands, on `vgame chain`: its market, until the reward is paid; its attack, until the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typed import blocks, files, filled, free_port, inline, section, terminal

GUIDE = "docs/guide.md"


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


@pytest.mark.wide
def test_a_dispute_on_a_chain_of_ones_own(tmp_path: Path) -> None:
    for name, content in files(section(GUIDE, "1. A task")):
        (tmp_path / name).write_text(content)
    (market,) = blocks(section(GUIDE, "3. On a chain"))
    with terminal(tmp_path) as shell:
        shell.run(filled(market.partition("CLIENT=")[0], {"8545": free_port()}))
        output = shell.run(inline(section(GUIDE, "4. Play an attack"), "vgame demo --rpc"), 600)
        assert re.search(r"^ +convicted by element at step \d+, .* optimizer ", output, re.MULTILINE), output
        (game,) = re.findall(r"game at (0x\w{40})", output)
        status = " ".join(shell.run(f"vgame status --rpc $RPC --game {game}").split())
        assert "convicted" in status and "the auditor was right" in status
        shell.run("kill %1; wait")
