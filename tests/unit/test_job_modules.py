"""Modules beside job files: each job has its own, in their current version, under any names."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_files import write

import vgame
from vgame.cli import local as cli
from vgame.errors import JobFileError
from vgame.job.file import read_job_file
from vgame.runs.prepare import prepare

HEAD = "import torch\nfrom vgame.tasks.task import Task\n"
TASK = """
class Net(torch.nn.Linear):
    pass
def loss(model, batch):
    {lazy}
    return SCALE * torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
def task({arguments}):
    torch.manual_seed(0)
    model, x = Net(4, 3), torch.randn(32, 4)
    rule = torch.optim.SGD(model.parameters(), lr=SCALE)
    return Task(model, loss, rule, {{"x": x, "y": torch.arange(32) % 3}}, batch=8)
"""


@pytest.fixture(autouse=True)
def _modules_as_before(tmp_path: Path) -> Iterator[None]:
    path = sys.path[:]
    yield
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    assert sys.path == path


def put(
    folder: Path, name: str = "mine", head: str = "", lazy: str = "pass", arguments: str = "", **files
) -> vgame.Job:
    """A job in a folder with a module `name` and other files, read."""
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        place = folder / f"{file.replace('__', '/', 1)}.py"
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    (folder / f"{name}.py").write_text(HEAD + head + TASK.format(lazy=lazy, arguments=arguments))
    return vgame.Job.from_toml(write(folder / "job.toml", f"{name}:task", args=""))


def rate(job: vgame.Job) -> float:
    return job.task.optimizer.param_groups[0]["lr"]


def measured(job: vgame.Job) -> float:
    """The factor of the loss."""
    (x, y), task = job.task.data.values(), job.task
    loss = task.loss(task.model, {"x": x, "y": y})
    return round(float(loss / importlib.import_module("torch").nn.functional.cross_entropy(task.model(x), y)), 4)


@pytest.mark.parametrize(
    "head",
    [
        "SCALE = {}\n",
        "from helper import SCALE\n",
        "import helper as h\nSCALE = h.SCALE\n",
        "from parts.inner import SCALE\n",
        "import pkg.a, sys\nfrom pkg import b, c\nassert pkg.b is b and pkg.a.b is b and c.b is b\nSCALE = b.SCALE\n",
        "import importlib\nSCALE = importlib.import_module('helper').SCALE\n",
        "import os, sys\nsys.path.append(os.path.dirname(__file__) + '/parts')\nfrom inner import SCALE\n",
    ],
)
def test_two_jobs_with_modules_of_the_same_names(head: str, tmp_path: Path) -> None:
    def job(name: str, value: str) -> vgame.Job:
        inner = "from helper import SCALE\n"
        package = {"pkg____init__": "from . import b\n", "pkg__a": "from . import b\n", "pkg__c": "import pkg.b as b\n"}
        files = {"helper": f"SCALE = {value}\n", "parts__inner": inner, "pkg__b": inner} | package
        return put(tmp_path / name, head=head.format(value), **files)

    a, b = job("a", "0.5"), job("b", "2.0")
    assert (rate(a), rate(b), measured(a), measured(b)) == (0.5, 2.0, 0.5, 2.0)
    again = job("a", "0.7")  # as long as 0.5, in the same second
    assert (rate(again), measured(again), measured(a), measured(b)) == (0.7, 0.7, 0.5, 2.0)


@pytest.mark.parametrize("name", ["helper", "queue", "random"])
def test_an_import_in_the_loss_finds_the_jobs_own_module(name: str, tmp_path: Path) -> None:
    """Also where the program, or Python, has another module of this name."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/helper.py").write_text("SCALE = 9.0\n")
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    theirs = importlib.import_module(name)
    sys.path.remove(str(tmp_path / "elsewhere"))
    head, lazy = f"from {name} import SCALE\n", f"from {name} import SCALE"
    a = put(tmp_path / "a", head=head, lazy=lazy, **{name: "SCALE = 0.5\n"})
    b = put(tmp_path / "b", head="SCALE = 2.0\n", lazy=lazy, **{name: "SCALE = 2.0\n"})
    assert (measured(a), measured(b), rate(a), rate(b)) == (0.5, 2.0, 0.5, 2.0)
    assert importlib.import_module(name) is theirs


@pytest.mark.parametrize("name", ["types", "random", "queue", "numbers", "platform", "code", "test", "data"])
def test_a_module_with_a_name_of_pythons(name: str, tmp_path: Path) -> None:
    before = sys.modules.get(name)
    job = put(tmp_path / "a", name, head="SCALE = 0.5\n")
    assert rate(job) == 0.5 and sys.modules.get(name, before) in (
        before,
        sys.modules.get(type(job.task.model).__module__),
    )
    assert sys.modules[type(job.task.model).__module__].__file__ == str(tmp_path / f"a/{name}.py")


def test_a_module_built_into_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        JobFileError, match=r"no attribute 'task'; time is built into Python: give time.py another name"
    ):
        put(tmp_path, "time", head="SCALE = 0.5\n")


def test_a_file_that_a_module_reads_is_read_again(tmp_path: Path) -> None:
    head = "from pathlib import Path\nSCALE = float((Path(__file__).parent / 'scale').read_text())\n"
    for value in ("0.5", "0.7"):
        (tmp_path / "scale").write_text(value)
        assert rate(put(tmp_path, head=head)) == float(value)


def test_a_factory_called_twice_finds_one_module(tmp_path: Path) -> None:
    """A module that registers something cannot be executed twice."""
    put(tmp_path, head="import sys\nassert not hasattr(sys, '_vgame_once')\nSCALE = 0.5\n")
    head = "import sys\nassert not hasattr(sys, '_vgame_once')\nsys._vgame_once = True\nSCALE = 0.5\n"
    (tmp_path / "mine.py").write_text(HEAD + head + TASK.format(lazy="pass", arguments=""))
    try:
        prepare(read_job_file(tmp_path / "job.toml"))
    finally:
        del sys._vgame_once


def test_pickle_and_import_find_a_jobs_module(tmp_path: Path) -> None:
    """By the module's name. If two jobs use one name, pickle finds the second job's module by another name, and an
    import of the name is an error."""
    a = put(tmp_path / "a", head="SCALE = 0.5\n").task.model
    assert type(pickle.loads(pickle.dumps(a))) is type(a) and type(a).__module__ == "mine"
    assert importlib.import_module("mine").Net is type(a)
    b = put(tmp_path / "b", head="SCALE = 0.5\n").task.model
    assert type(pickle.loads(pickle.dumps(b))) is type(b)
    with pytest.raises(ImportError, match=r"two jobs of this process have a module mine: \S+/a/mine.py and \S+/b/mine"):
        importlib.import_module("mine").Net  # noqa: B018


def test_a_job_made_from_another(tmp_path: Path) -> None:
    put(tmp_path / "a", head="SCALE = 0.5\n")
    base = (
        f"import vgame\nSCALE = vgame.Job.from_toml({str(tmp_path / 'a/job.toml')!r}).task.optimizer.defaults['lr']\n"
    )
    b = put(
        tmp_path / "b", head=base + "from helper import TWO\nSCALE *= TWO\n", lazy="import helper", helper="TWO = 2\n"
    )
    assert (rate(b), measured(b)) == (1.0, 1.0)


def test_a_failure_names_the_users_line(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=rf"ZeroDivisionError: division by zero \({tmp_path}/helper.py, line 2\)"):
        put(tmp_path, head="import helper\n", helper="x = 1\nx / 0\n")


def test_an_error_has_the_users_name_of_a_module(tmp_path: Path) -> None:
    """A second job's module of the same name has another one inside this process."""
    _ = put(tmp_path / "a", head="from rates import SCALE\n", rates="SCALE = 0.5\n").task
    with pytest.raises(JobFileError, match=r"cannot import name 'SCALES' from 'rates' \("):
        _ = put(tmp_path / "b", head="from rates import SCALES as SCALE\n", rates="SCALE = 0.25\n").task


# ---- a job's code as a script ----


@pytest.fixture
def folder_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_argument_parser_of_a_job_gets_no_arguments_of_vgame(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vgame", "prepare", "job.toml", "--out", "bundle"])
    parser = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--{}")\nSCALE = 0.5\np.parse_args()\n'
    assert rate(put(tmp_path / "a", head=parser.format("rate"))) == 0.5
    assert sys.argv[1:] == ["prepare", "job.toml", "--out", "bundle"]


@pytest.mark.parametrize(
    "head",
    [
        'import argparse\np = argparse.ArgumentParser()\np.add_argument("--data", required=True)\np.parse_args()\n',
        "import sys\nsys.exit()\n",
    ],
)
def test_a_parser_that_ends_the_process_is_refused_with_a_remedy(tmp_path: Path, head: str) -> None:
    with pytest.raises(JobFileError, match=r"SystemExit: .*a job's code gets no command line: give what it parses"):
        put(tmp_path / "a", head=head)


def test_errors_made_of_warnings_hold_in_the_jobs_code_only(tmp_path: Path) -> None:
    head = "import warnings\nwarnings.filterwarnings('error')\nwarnings.filterwarnings('ignore', 'mine')\nSCALE = 0.5\n"
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        job = put(tmp_path / "a", head=head)
        with pytest.warns(UserWarning, match="vgame's"):
            warnings.warn("vgame's", stacklevel=1)
        assert ("ignore", "mine") in [(action, text and text.pattern) for action, text, *_ in warnings.filters]
    assert rate(job) == 0.5
    loud = "import warnings\nwarnings.simplefilter('error')\nwarnings.warn('from the job')\n"
    with warnings.catch_warnings(), pytest.raises(JobFileError, match="UserWarning: from the job"):
        put(tmp_path / "b", head=loud)


def test_a_bundle_is_written_relative_to_the_folder_of_the_command(folder_kept: Path) -> None:
    put(folder_kept / "a", head="import os\nSCALE = 0.5\nos.chdir('/')\n", name="moves")
    os.chdir(folder_kept)
    cli.prepare(Path("a/job.toml"), Path("bundle"), validate=0.0, against=None)
    assert (folder_kept / "bundle" / "spec.json").exists()
