"""Invalid orders: job files, factories, tasks, optimizers, options. Each is refused with one sentence, before anything
is written."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from job_files import write

from vgame.cli import commands as cli
from vgame.cli import options
from vgame.errors import ContractError, JobFileError, ProgramError, VgameError
from vgame.job.factory import make_task
from vgame.job.file import JobFile, read_job_file
from vgame.program.lower import lower_task
from vgame.program.optimizer_plan import _ratio
from vgame.program.optimizers import check_groups
from vgame.program.schedule import Schedule
from vgame.tasks.task import Task

# ---- job files ----


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ('lr = "fast"', "`schedule.lr` 'fast' is not a decimal string"),
        ('lr = "inf"', "out of range"),
        ('lr = "nan"', "out of range"),
        ('lr = "-1"', "out of range"),
        ('lr = "1e999999999"', "out of range"),
        ('lr = "0e-999999999"', "out of range"),
        ("lr = 0.01", 'write lr = "0.01"'),
        ("lr = 1", 'write lr = "1"'),
        ("lr = true", "not a decimal string"),
        ('lr = "0.1"\nfinal = "1/0"', "`schedule.final` '1/0' is not a decimal string"),
        ('lr = "0.1"\nfactor = "-0.5"', "`schedule.factor` '-0.5' is out of range"),
        ('lr = "0.1"\nwarmup = 7', "`schedule.warmup` = 7 is more than `steps` = 6"),
        ('lr = "0.1"\nwarmup = true', "`schedule.warmup`"),
        ('lr = "0.1"\n[terms]\nreward = "inf ether"', "`terms.reward` 'inf ether' is out of range"),
        ('lr = "0.1"\n[terms]\nreward = "1e999999999 ether"', "out of range"),
        ('lr = "0.1"\n[terms]\nreward = "nan ether"', "out of range"),
        ('lr = "0.1"\n[terms]\nreward = true', "`terms.reward` True is no amount"),
        ('lr = "0.1"\n[terms]\nslot = true', "`terms.slot`"),
    ],
)
def test_invalid_numbers_are_refused(schedule: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(JobFileError) as caught:
        read_job_file(write(tmp_path / "job.toml", schedule=schedule))
    assert expected in str(caught.value) and "\n" not in str(caught.value) and "Value error" not in str(caught.value)


def test_valid_numbers_are_accepted(tmp_path: Path) -> None:
    job = read_job_file(write(tmp_path / "job.toml", schedule='lr = "1e-3"\nfinal = "0"\nwarmup = 6'))
    assert (job.schedule.lr, job.schedule.warmup, job.seed) == ("1e-3", 6, 1)


def test_a_seed_is_a_number(tmp_path: Path) -> None:
    for seed in ("true", "1.0", '"1"'):
        with pytest.raises(JobFileError, match=r"`seed` = .*; it should be a valid integer"):
            read_job_file(write(tmp_path / "job.toml", seed=seed))


def test_a_module_beside_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    source = "from vgame.tasks.digits import task as digits\ndef task(batch=4):\n    return digits(batch=batch)\n"
    (tmp_path / "module_beside_the_job.py").write_text(source)
    job = read_job_file(write(tmp_path / "job.toml", model="module_beside_the_job:task"))
    assert make_task(job.model_copy(update={"steps": 3})).batch == 4


FAILING = """
import json

def raises(batch=1):
    return {}["no\\nsuch key"]

def type_error(batch=1):
    return len(batch)

def in_a_library(batch=1):
    return json.loads("{")

def one(size):
    return size

number = 3
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raises", r"failing_module:raises fails: KeyError: .*failing_module.py, line 5\)"),
        ("type_error", r"failing_module:type_error fails: TypeError: object of type 'int' has no len\(\) .*line 8\)"),
        ("in_a_library", r"in_a_library fails: JSONDecodeError: .*failing_module.py, line 11\)"),
        ("one", r"failing_module:one does not take args \{'batch': 4\}: missing a required argument: 'size'"),
        ("number", r"'failing_module:number' is of type int; a function is expected"),
        ("nothing", r"cannot be loaded: module 'failing_module' has no attribute 'nothing'"),
    ],
)
def test_a_factory_that_raises_an_error(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    monkeypatch.delitem(__import__("sys").modules, "failing_module", raising=False)
    (tmp_path / "failing_module.py").write_text(FAILING)
    with pytest.raises(JobFileError, match=expected) as caught:
        make_task(read_job_file(write(tmp_path / "job.toml", model=f"failing_module:{name}")))
    assert "\n" not in str(caught.value)


def test_a_module_that_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    for name, source, expected in (
        ("module_one", "x = 1\nx / 0\n", r"ZeroDivisionError: division by zero .*module_one.py, line 2\)"),
        ("module_two", "def task(:\n", r"SyntaxError: .*module_two.py, line 1"),
        ("module_three", "import nowhere_at_all\n", r"No module named 'nowhere_at_all' .*module_three.py, line 1\)"),
    ):
        (tmp_path / f"{name}.py").write_text(source)
        with pytest.raises(JobFileError, match=rf"model = '{name}:task' cannot be loaded: {expected}"):
            make_task(read_job_file(write(tmp_path / "job.toml", model=f"{name}:task")))


def test_a_refusal_of_the_contract_is_readable() -> None:
    assert (
        str(ContractError("NotYourTurn", (bytes([171] * 32), 7)))
        == f"the contract refused: NotYourTurn(0x{'ab' * 32}, 7)"
    )
    assert str(ContractError("Empty", ())) == "the contract refused: Empty"


def test_a_job_file_is_not_needed() -> None:
    """A job made in Python has no folder."""
    job = JobFile(model="vgame.tasks.digits:task", seed=1, steps=2, interval=1, schedule={"lr": "0.1"})
    assert make_task(job).batch == 64


# ---- tasks, optimizers, options ----


def task_of(
    batch: object = 2, names: tuple = ("x",), sparse: bool = False, optimizer: bool = True, groups: tuple = (), **more
):
    """A task of one layer; `groups`: changes of AdamW's only group after its construction."""
    model, x = torch.nn.Linear(2, 1), torch.ones(4, 2)
    rule = torch.optim.AdamW(model.parameters(), lr=1.0)
    rule.param_groups[0].update(groups)
    data = {name: x.to_sparse() if sparse else x for name in names}
    return Task(model, lambda m, b: m(b["x"]).mean(), rule if optimizer else None, data, batch, **more)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"optimizer": False}, "the task's optimizer is None; a torch.optim.Optimizer is expected"),
        ({"batch": 6.5}, "batch = 6.5: a whole number of at least 1 is expected"),
        ({"batch": 0}, "batch = 0: a whole number"),
        ({"window": 0}, "window = 0: a whole number"),
        ({"accumulate": 2.0}, "accumulate = 2.0: a whole number"),
        ({"batch": 2**40}, "batch = 1099511627776: 2,199,023,255,552 words of x; at most 2,147,483,647 are allowed"),
        ({"window": 2, "batch": 2**29}, "words of x"),
        ({"accumulate": 10**9}, "accumulate = 1000000000: at most 1024 batches per step are allowed"),
        ({"sparse": True}, "write x.to_dense()"),
        ({"names": ("x", 3)}, "the data has the name 3; a string of printable characters is expected"),
        ({"names": ("x", "\ud800")}, "the data has the name '\\ud800'"),
        ({"names": ("x", "__metadata__")}, "the data has the name '__metadata__'"),
    ],
)
def test_invalid_tasks_are_refused(wrong: dict, expected: str) -> None:
    assert task_of().batch == 2
    with pytest.raises(ProgramError) as caught:
        task_of(**wrong)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"lr": math.nan}, "AdamW with lr = nan: a number from 0 to 2^127"),
        ({"lr": -1.0}, "AdamW with lr = -1.0"),
        ({"weight_decay": math.nan}, "AdamW with weight_decay = nan"),
        ({"weight_decay": -0.1}, "AdamW with weight_decay = -0.1"),
        ({"eps": math.inf}, "AdamW with eps = inf"),
        ({"betas": (1.0, 1.0)}, "AdamW with betas = (1.0, 1.0): numbers of at least 0 and below 1"),
        ({"betas": (0.9, math.nan)}, "AdamW with betas = (0.9, nan)"),
    ],
)
def test_invalid_numbers_of_an_optimizer_are_refused(group: dict, expected: str) -> None:
    schedule = Schedule(lr="0.1")
    assert lower_task(task_of(), schedule, 2).program.scalars
    with pytest.raises(ProgramError) as caught:
        lower_task(task_of(groups=group), schedule, 2)
    assert expected in str(caught.value)


def test_invalid_numbers_of_a_second_group_are_refused() -> None:
    p = [torch.nn.Parameter(torch.ones(1)) for _ in "ab"]
    sgd = torch.optim.SGD([{"params": p[:1], "lr": 0.0}, {"params": p[1:], "lr": 1.0}])
    check_groups(sgd)
    for first, second in ((0.0, 1.0), (1e-300, 1e30)):
        with pytest.raises(ProgramError, match="the schedule sets the rate of the first group"):
            _ratio("SGD", second, first)
    sgd.param_groups[0]["dampening"] = math.nan
    with pytest.raises(ProgramError, match="SGD with dampening = nan"):
        check_groups(sgd)


@pytest.mark.parametrize("text", ["seed = " + "9" * 5000, "a = " + "[" * 3000 + "]" * 3000, "\x01", "\udcff"])
def test_invalid_toml(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_bytes(text.encode(errors="surrogateescape"))
    either = r"is not TOML that can be read|`a` is not a field of a job"  # the depth limit differs by version
    with pytest.raises(JobFileError, match=either):
        read_job_file(tmp_path / "job.toml")


def test_a_factory_that_calls_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory that calls exit has failed; a SIGTERM is passed on."""
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    (tmp_path / "leaving.py").write_text("import sys\ndef task(code):\n    sys.exit(code)\n")
    (tmp_path / "left.py").write_text("raise SystemExit(5)\n")
    with pytest.raises(JobFileError, match=r"leaving:task fails: SystemExit: 5 .*leaving.py, line 3\)"):
        make_task(read_job_file(write(tmp_path / "job.toml", model="leaving:task", args="code = 5")))
    with pytest.raises(JobFileError, match=r"cannot be loaded: SystemExit: 5 .*left.py, line 1\)"):
        make_task(read_job_file(write(tmp_path / "job.toml", model="left:task")))
    with pytest.raises(SystemExit):
        make_task(read_job_file(write(tmp_path / "job.toml", model="leaving:task", args="code = 143")))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("terms x --gas-gwei nan", "--gas-gwei nan: a number from 0 to 1e"),
        ("terms x --gas-gwei inf", "--gas-gwei inf"),
        ("terms x --gas-gwei 1e300", "--gas-gwei 1e"),
        ("terms x --compute-ether inf", "--compute-ether inf"),
        ("terms x --compute-ether 1e300", "--compute-ether 1e"),
        ("monitor --rpc http://127.0.0.1:1 --game 0x --account 0x --every nan", "--every nan"),
        ("monitor --rpc http://127.0.0.1:1 --game 0x --account 0x --every -1", "--every -1"),
        (
            f"job post x --rpc http://127.0.0.1:1 --game 0x --nonce {2**64}",
            "Input should be less than or equal to 18446744073709551615",
        ),
        ("roots x --mode foo", "'foo' is not one of 'correct', 'nearest', 'fp32'"),
    ],
)
def test_invalid_options_are_refused(command: str, expected: str) -> None:
    with pytest.raises((VgameError, cli.UsageError)) as caught:
        options.app(command.split(), standalone_mode=False)
    assert expected in getattr(caught.value, "message", str(caught.value))


def test_a_bond_is_not_negative() -> None:
    assert options.wei_of("0.5 ether") == options.wei_of("500000000000000000") == 5 * 10**17
    with pytest.raises(VgameError, match="--max-bond: '-1 ether' is negative"):
        options.wei_of("-1 ether")


def test_a_relative_path_is_resolved_beside_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file works from every working directory."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job/reading_module.py").write_text(
        "from pathlib import Path\n"
        "from vgame.tasks import digits\n"
        "def task(path, name):\n"
        "    return digits.task(batch=int(Path(path).read_text()) + len(name))\n"
    )
    (tmp_path / "job/four").mkdir()
    (tmp_path / "job/batch.txt").write_text("4")
    monkeypatch.syspath_prepend(str(tmp_path / "job"))
    job = write(tmp_path / "job/job.toml", model="reading_module:task", args='path = "batch.txt"\nname = "four"')
    monkeypatch.chdir(tmp_path)
    assert make_task(read_job_file(job)).batch == 8  # "four" is a name: it does not look like a path
    (tmp_path / "job/batch.txt").rename(tmp_path / "batch.txt")
    assert make_task(read_job_file(job)).batch == 8
