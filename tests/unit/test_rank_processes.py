"""Ranks as processes, over gloo: the same run root, for changing numbers of ranks; a dead or hanging rank is named."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from job_files import write
from rank_processes import ROOT, Ranks, free_port
from test_rank_runs import wide
from wide import of_many

import vgame
from vgame.job.file import read_job_file
from vgame.runs.prepare import prepare


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[str, Path]:
    """A short job, and one with enough steps to be killed."""
    folder = tmp_path_factory.mktemp("bundles")
    for name, steps in (("short", 6), ("long", 60)):
        job = write(folder / f"{name}.toml", args="batch = 6\nwidth = 4")
        job.write_text(job.read_text().replace("steps = 6", f"steps = {steps}"))
        prepare(read_job_file(job)).save(folder / name)
    return {"short": folder / "short", "long": folder / "long"}


def committed(run: Path) -> int:
    return len((run / "roots.bin").read_bytes()) // 32 if (run / "roots.bin").exists() else 0


def until(run: Path, checkpoints: int, ranks: Ranks) -> None:
    while committed(run) < checkpoints:
        assert all(p.poll() is None for p in ranks.processes), ranks.wait()
        time.sleep(0.01)


def kill_through(bundle: Path, run: Path, worlds: tuple[int, ...], seed: int) -> None:
    """Start with the first number of ranks, kill one of them somewhere; continue with the next number; end with one."""
    rng = random.Random(seed)
    for world in worlds:
        ranks, victim = Ranks(world, [bundle], run), rng.randrange(world)
        until(run, committed(run) + rng.randint(1, 3), ranks)
        ranks.processes[victim].kill()
        codes, stderr = ranks.wait()
        assert codes == [-signal.SIGKILL if r == victim else 1 for r in range(world)], stderr
        if victim:  # rank 0 hosts the store, unless torchrun does
            assert f"rank {victim} (of {world}, host " in stderr and "died at step" in stderr, stderr
        assert stderr.count("vgame: ") == (1 if victim else world - 1), stderr
    vgame.train(bundle, run)


def test_a_run_is_killed_and_resumed_by_fewer_ranks(bundles, tmp_path):
    alone = vgame.train(bundles["long"], tmp_path / "alone")
    kill_through(bundles["long"], tmp_path / "run", (4, 2), seed=5)
    again = vgame.Run.open(tmp_path / "run")
    assert again.done and again.root == alone.root
    assert again.losses.tobytes() == alone.losses.tobytes()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_kills(bundles, tmp_path, seed):
    alone = vgame.train(bundles["long"], tmp_path / "alone")
    kill_through(bundles["long"], tmp_path / "run", (4, 2, 3, 4, 2), seed=seed)
    assert vgame.Run.open(tmp_path / "run").root == alone.root


def test_a_rank_that_hangs_is_named(bundles, tmp_path):
    ranks = Ranks(2, [bundles["long"]], tmp_path / "run", "--timeout", "4")
    until(tmp_path / "run", 1, ranks)
    hangs = ranks.processes[1]
    hangs.send_signal(signal.SIGSTOP)
    ranks.processes[0].wait(60)
    hangs.kill()
    codes, stderr = ranks.wait()
    assert codes == [1, -signal.SIGKILL]
    assert "rank 1 (of 2, host " in stderr and "gives no sign of life for 4 s" in stderr, stderr


def test_ranks_with_other_bundles_start_nothing(bundles, tmp_path):
    codes, stderr = Ranks(2, [bundles["short"], bundles["long"]], tmp_path / "run").wait()
    assert codes == [1, 1] and not (tmp_path / "run").exists()
    assert stderr.count("vgame: ") == 1 and "rank 1 has another bundle" in stderr, stderr


STOPS = """
import os, signal, sys
import vgame.ranks.lead as lead
from vgame.cli import main
given, how = lead.given, sys.argv.pop()
def stopped(group, executor):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), getattr(signal, how))
    return given(group, executor)
lead.given = stopped
main()
"""


STOPPED = (("SIGSTOP", "gives no sign of life for 5 s"), ("SIGKILL", "died at step 0"))


@pytest.mark.parametrize(("how", "expected"), of_many(STOPPED, STOPPED[1]))
def test_a_rank_that_stops_before_it_reads_the_first_state_is_named(tmp_path, how, expected):
    """There are more tensors than letters between two ranks."""
    wide().save(tmp_path / "job")
    (tmp_path / "script.py").write_text(STOPS)
    words = ["train", str(tmp_path / "job"), "--out", str(tmp_path / "run"), "--timeout", "5", how]
    ranks = Ranks(2, [tmp_path], tmp_path, line=[str(tmp_path / "script.py"), *words])
    assert ranks.processes[0].wait(60) == 1
    ranks.processes[1].kill()
    _, complaint = ranks.wait()
    assert "rank 1 (of 2, host " in complaint and expected in complaint and "Traceback" not in complaint, complaint


OTHER_TORCH = """
import os, sys
import torch, vgame
if os.environ["RANK"] == "1":
    torch.__version__ = "1.0.0"
try:
    vgame.train(sys.argv[1], sys.argv[2])
except vgame.VgameError as error:
    sys.exit(f"vgame: {error}")
"""


def test_ranks_with_other_libraries_start_nothing(bundles, tmp_path):
    (tmp_path / "script.py").write_text(OTHER_TORCH)
    line = [str(tmp_path / "script.py"), str(bundles["short"]), str(tmp_path / "run")]
    codes, stderr = Ranks(2, [tmp_path], tmp_path / "run", line=line).wait()
    assert codes == [1, 1] and not (tmp_path / "run").exists()
    assert (
        "rank 1 has another torch (1.0.0) than rank 0" in stderr
        and "nothing is started, give all ranks the same" in stderr
    )


def test_a_run_of_another_job_is_not_changed(bundles, tmp_path):
    vgame.train(bundles["short"], tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    codes, stderr = Ranks(2, [bundles["long"]], tmp_path / "run").wait()
    assert codes == [1, 1] and stderr.count("vgame: ") == 1 and "holds another job" in stderr, stderr
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


IN_A_GROUP = """
import gc, os, sys, time
import torch, torch.distributed as dist, vgame
from vgame.ranks import near
if sys.argv[2] == "network":
    near._host = lambda: 0
give, given = near.Near.give, []
near.Near.give = lambda self, pieces: given.append(len(pieces)) or give(self, pieces)
dist.init_process_group("gloo")
seen = []
tell = [lambda step, model, losses: seen.append((step, len(losses), sorted(model.state_dict())[0]))]
torch.manual_seed(1)
model = torch.nn.Linear(4, 3)
data = {"x": torch.randn(90, 4), "y": torch.arange(90) % 3}
loss = lambda model, batch: torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
task = vgame.Task(model, loss, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=9)
bundle = vgame.prepare(vgame.Job(task, steps=4, interval=2, seed=7))
run = vgame.train(bundle, sys.argv[1], callbacks=tell, model=model)
again = vgame.train(bundle, sys.argv[1])  # a run that has ended
files = len(os.listdir("/proc/self/fd"))
for _ in range(2):
    again = vgame.train(bundle, sys.argv[1])
end = time.monotonic() + 10
gc.collect()
while len(os.listdir("/proc/self/fd")) > files:  # the library closes its own later
    assert time.monotonic() < end, "files are kept"
    time.sleep(0.1)
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)  # the user's group is as it was
assert run.root == again.root and total == 3
assert seen == ([(2, 2, "bias"), (4, 2, "bias")] if dist.get_rank() == 0 else []), seen
assert max(given) == (0 if sys.argv[2] == "network" else 1)
print(run.root)
"""


@pytest.mark.parametrize("by", ["memory", "network"])
def test_vgame_train_in_a_process_group(tmp_path, by):
    (tmp_path / "script.py").write_text(IN_A_GROUP)
    ranks = Ranks(2, [tmp_path], tmp_path, line=[str(tmp_path / "script.py"), str(tmp_path / "run"), by])
    roots = [p.communicate(timeout=120) for p in ranks.processes]
    assert [p.returncode for p in ranks.processes] == [0, 0], roots
    assert {out.strip() for out, _ in roots} == {vgame.Run.open(tmp_path / "run").root}
    assert vgame.audit(tmp_path / "run").match


ENDED_EARLY = """
import gc, os, sys, time
import torch, torch.distributed as dist, vgame
dist.init_process_group("gloo")
def ended(step, fields):
    raise vgame.Cancelled("early")
def kept():
    gc.collect()
    files = [f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd")]
    shared = sum("memfd:vgame" in os.readlink(file) for file in files if os.path.lexists(file))
    return shared, len(files), len(os.listdir("/proc/self/task"))
for n in range(4):
    try:
        vgame.train(sys.argv[1], f"{sys.argv[2]}/{n}", metrics=ended)
    except vgame.VgameError as error:
        said = f"{type(error).__name__}: {error}"
    if n == 0:
        before = kept()
end = time.monotonic() + 5  # the library closes its own later
while (after := kept())[0] or any(b < a for b, a in zip(before, after)):
    assert time.monotonic() < end, (before, after)
    time.sleep(0.1)
print(said)
"""


def test_runs_that_end_early_leave_no_open_files_or_threads(bundles, tmp_path):
    (tmp_path / "script.py").write_text(ENDED_EARLY)
    line = [str(tmp_path / "script.py"), str(bundles["short"]), str(tmp_path)]
    ranks = Ranks(2, [tmp_path], tmp_path, line=line)
    output = [p.communicate(timeout=120) for p in ranks.processes]
    outputs = [out for out, _ in output]
    assert outputs == ["Cancelled: early\n", "RankError: rank 0 has failed; it reports the error\n"], output


def test_an_address_without_a_server(bundles, tmp_path):
    line = ["-m", "vgame", "train", str(bundles["short"]), "--out", str(tmp_path / "run"), "--timeout", "1"]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "RANK": "1"}
    done = forked.run([sys.executable, *line], env=os.environ | environment | {"PYTHONPATH": str(ROOT)})
    output = [line for line in done.stderr.splitlines() if line.startswith("vgame: ")]
    assert done.returncode == 1 and len(output) == 1 and not (tmp_path / "run").exists()
    assert "no group of 2 ranks came together at 127.0.0.1:" in output[0] and "within 1 s" in output[0]


@pytest.mark.nightly
def test_torchrun_ends_all_and_the_dead_rank_is_named(bundles, tmp_path):
    line = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
        "-m",
        "vgame",
        "train",
    ]
    with open(tmp_path / "said", "w") as stderr:
        process = subprocess.Popen(
            [*line, str(bundles["long"]), "--out", str(tmp_path / "run")],
            stderr=stderr,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        while not committed(tmp_path / "run"):
            assert process.poll() is None
            time.sleep(0.05)
        workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(workers[-1]), signal.SIGKILL)
        assert process.wait(120) == 1
    output = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("vgame: ")]
    assert len(output) == 1 and f"process {workers[-1]}) died at step" in output[0], output
