"""Audits by several ranks: the verdict of one, on each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from job_files import write
from rank_processes import Ranks

import vgame
from vgame.job.file import read_job_file
from vgame.runs.prepare import prepare


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    vgame.train(prepare(read_job_file(write(folder / "job.toml", args="batch = 6\nwidth = 4"))), folder / "run")
    return folder / "run"


def audited(run: Path, *options: str, world: int = 2) -> tuple[list[int], list[dict], str]:
    """Exit codes, JSON output, and errors."""
    ranks = Ranks(world, [run], run, line=["-m", "vgame", "audit", str(run), "--json", *options])
    text = [p.communicate(timeout=120) for p in ranks.processes]
    lines = [json.loads(line) for out, _ in text for line in out.splitlines()]
    return [p.returncode for p in ranks.processes], lines, "".join(err for _, err in text)


@pytest.mark.parametrize("options", [[], ["--segment", "2..3"]])
def test_ranks_find_the_same_as_one_rank(run, options):
    codes, lines, complaints = audited(run, *options)
    verdicts = [line for line in lines if line["event"] == "audited"]
    assert codes == [0, 0] and len(verdicts) == 1, complaints
    alone = vgame.audit(run, segments=(2, 3) if options else None)
    assert verdicts[0]["match"] and verdicts[0]["mine"] == alone.mine and verdicts[0]["checked"] == [*alone.checked]


def test_a_wrong_loss_is_found_by_every_rank(run, tmp_path):
    losses = bytearray((run / "losses.bin").read_bytes())
    try:
        (run / "losses.bin").write_bytes(losses[:8] + bytes([losses[8] ^ 1]) + losses[9:])
        codes, lines, complaints = audited(run)
    finally:
        (run / "losses.bin").write_bytes(losses)
    verdicts = [line for line in lines if line["event"] == "audited"]
    assert codes == [2, 2] and [v["step"] for v in verdicts] == [3], complaints


def test_workers_besides_ranks_are_refused(run):
    codes, lines, complaints = audited(run, "--workers", "2")
    assert codes == [1, 1] and not lines and "leave --workers, --ray, --record out" in complaints


IN_A_GROUP = """
import sys
import torch.distributed as dist, vgame
dist.init_process_group("gloo")
found = vgame.audit(sys.argv[1], segments=(2, 2)), vgame.audit(sys.argv[1])
assert all(f.match for f in found) and found[0].checked == (2,), found
print(found[1].mine)
"""


def test_vgame_audit_in_a_process_group(run, tmp_path):
    (tmp_path / "script.py").write_text(IN_A_GROUP)
    ranks = Ranks(3, [run], run, line=[str(tmp_path / "script.py"), str(run)])
    text = [p.communicate(timeout=120) for p in ranks.processes]
    assert [p.returncode for p in ranks.processes] == [0, 0, 0], text
    assert {out.strip() for out, _ in text} == {vgame.Run.open(run).root}
