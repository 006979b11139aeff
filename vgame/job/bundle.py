"""The order: a job file that a person writes (TOML), and the bundle that everybody holds (program, initial state, data, scalars).

In: TOML, or a bundle directory. Out: `Bundle`, whose roots are always recomputed from its files, and the job spec as
the contract hashes it.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from vgame.commit.merkle import Kind, padding
from vgame.commit.tensor import tensor_root, tensors_root
from vgame.errors import EXTRAS, STOPPED, BundleError, JobFileError, VgameError
from vgame.job.cautions import call_factory, warn_of_rate
from vgame.job.data import load_data, save_data
from vgame.job.start import start_from
from vgame.job.state_keys import Keys, keys_root, load_keys, module_keys, save_keys
from vgame.program.file import load_program, save_program
from vgame.program.lower import Lowered, lower_task
from vgame.program.program import Program, TensorLabel
from vgame.program.schedule import Schedule
from vgame.program.tensor_file import pack_tensors, read_tensors
from vgame.program.validate import validate
from vgame.system.files import parse_json, read_file, write_atomic
from vgame.system.progress import SILENCE, Silence
from vgame.tasks.task import Task

#: Rounding modes by the number that the order of a job has for them, but that mode `logged` is ordered by its bits. The contract takes 0
#: and 26 to 32.
MODES = ("correct", "nearest", "fp32", "logged")

MOST_STEPS = 2**24  # what is more is a slip: a table of scalars for them alone takes hours
MOST_SPEC = 2**24  # bytes of a spec.json

UNITS = {"wei": 1, "gwei": 10**9, "ether": 10**18}


def wei(value: object) -> object:
    """`"0.5 ether"`, `"3 gwei"` or a whole number of wei."""
    if type(value) is int:
        return value
    try:
        text, unit = str(value).split()
        number, scale = Decimal(text), UNITS[unit]
    except (ValueError, KeyError, InvalidOperation):
        raise ValueError(f'{value!r} is no amount; write "0.5 ether", "3 gwei" or a whole number of wei') from None
    if not (number.is_finite() and -(2**128) < number < 2**128 and abs(number.as_tuple().exponent) <= 1000):
        raise ValueError(f"{value!r} is out of range: less than 2^128 wei is expected")
    amount = Fraction(number) * scale
    if amount.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of wei")
    return amount.numerator


Wei = Annotated[int, BeforeValidator(wei), Field(ge=0, lt=2**128)]
Seconds = Annotated[int, Field(ge=1, lt=2**32, strict=True)]


class Terms(BaseModel):
    """Money (wei) and time (seconds) of a job; what each means stands in contracts/IVerificationGame.sol.

    Twin of the minima: Settlement._checkSpec, which also asks that the bonds pay for gas.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: Wei = 10**18
    diverged_pay: Wei = 5 * 10**17
    trainer_bond: Wei = 2 * 10**18
    auditor_bond: Wei = 2 * 10**17
    accept_window: Seconds = 86_400
    claim_window: Seconds = 604_800
    challenge_window: Seconds = 604_800
    reward_window: Seconds = 86_400
    trainer_budget: Seconds = 259_200
    auditor_budget: Seconds = 259_200
    slot: Annotated[int, Field(ge=1, lt=2**24, strict=True)] = 3_600  # the contract keeps 24 bits
    # Delivery of the trained state (docs/delivery.md): all three, or none.
    confirm_window: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    key_window: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    complaint_window: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0

    @model_validator(mode="after")
    def _minima(self) -> Terms:
        least = (
            ("trainer_bond", max(self.reward, 1)), ("auditor_bond", 1), ("trainer_budget", self.slot)
        )  # fmt: skip
        for name, value in least:
            if getattr(self, name) < value:
                raise ValueError(
                    f"`{name}` = {getattr(self, name)} is less than {value}, the least that the contract takes"
                )
        windows = ("confirm_window", "key_window", "complaint_window")
        if len({getattr(self, name) > 0 for name in windows}) > 1:
            missing = next(name for name in windows if getattr(self, name) == 0)
            raise ValueError(
                f"`{missing}` = 0 beside other windows of delivery; give all three seconds (docs/delivery.md), or none for no delivery"
            )
        if self.diverged_pay > self.reward:
            raise ValueError(f"`diverged_pay` = {self.diverged_pay} is more than `reward` = {self.reward}")
        return self


class LogTerms(BaseModel):
    """How a job in mode `logged` rounds and logs (docs/paper.md): bits, and where the windows of the sums come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bits: int = Field(default=32, ge=26, le=32, strict=True)
    thresholds: Literal["adaptive", "proven"] = "adaptive"
    calibration: int = Field(default=3, ge=1, strict=True)  # steps on two devices, for adaptive ones


class JobFile(BaseModel):
    """What a client writes. `model` names a factory `module:function` that returns a vgame Task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(pattern=r"^[\w.]+:\w+$")
    args: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(ge=0, lt=2**64, strict=True)
    steps: int = Field(ge=1, le=MOST_STEPS, strict=True)
    interval: int = Field(ge=1, lt=2**32, strict=True)
    depth: int = Field(default=5, ge=1, le=8, strict=True)
    mode: Literal["correct", "logged", "nearest", "fp32"] = "correct"
    log: LogTerms | None = None
    schedule: Schedule | None = None  # none: the task's schedulers, or the optimizer's own rates
    terms: Terms = Field(default_factory=Terms)
    initial: str | None = None  # a run that is continued, or a file of weights: beside the job file
    _folder: Path | None = PrivateAttr(default=None)  # of the job file: modules beside it can be named
    _task: Task | None = PrivateAttr(default=None)  # one that lives already: `model` is not called
    _initial: Any = PrivateAttr(default=None)  # the same for `initial`

    @model_validator(mode="after")
    def _warmup_ends(self) -> JobFile:
        if self.schedule and self.schedule.warmup > self.steps:
            raise ValueError(f"`schedule.warmup` = {self.schedule.warmup} is more than `steps` = {self.steps}")
        return self


def read_job_file(path: Path) -> JobFile:
    """The job file at `path`; every problem in one sentence each."""
    try:
        job = JobFile.model_validate(tomllib.loads(read_file(path, MOST_SPEC, follow=True).decode()))
    except OSError as error:
        raise JobFileError(f"the job file {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise JobFileError(f"{path}: {problems(error)}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, tables in thousands of tables
        raise JobFileError(f"{path} is not TOML that can be read: {error}") from None
    job._folder = path.resolve().parent
    return job


def problems(error: ValidationError) -> str:
    """What a person got wrong, field by field, on one line."""
    names = {"missing": "is missing", "extra_forbidden": "is not a field of a job"}
    own = "Value error, "  # where a validator of ours has said it all

    def problem(e: Mapping[str, Any]) -> str:
        place = f"`{'.'.join(map(str, e['loc']))}` " if e["loc"] else ""
        if e["msg"].startswith(own):
            return f"{place}{e['msg'].removeprefix(own)}"
        return f"{place}{names.get(e['type']) or e['msg'] + ', got ' + repr(e['input'])}"

    return "; ".join(map(problem, error.errors()))


def make_task(job: JobFile) -> Task:
    """Call the job's factory. Its module may lie beside the job file, as a script finds the modules beside it."""
    if job._task is not None:
        return job._task
    module, _, name = job.model.partition(":")
    if job._folder and not module.startswith("vgame.") and str(job._folder) not in sys.path:
        sys.path.insert(0, str(job._folder))
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        extra = EXTRAS.get(str(getattr(error, "name", "")).split(".")[0])
        hint = f"; pip install 'vgame[{extra}]'" if extra else ""
        raise JobFileError(f"model = {job.model!r} cannot be loaded: {error}{_place(error)}{hint}") from None
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise
        raise JobFileError(f"model = {job.model!r} cannot be loaded: {_told(error)}") from None
    if not callable(factory):
        raise JobFileError(f"model = {job.model!r} is of type {type(factory).__name__}; a function is expected")
    args = _arguments(job, factory)
    try:
        task = factory(**{name: _beside(job, value) for name, value in args.items()})
    except VgameError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:
            raise
        raise JobFileError(f"{job.model} fails: {_told(error)}") from None
    if not isinstance(task, Task):
        raise JobFileError(f"{job.model} returned {type(task).__name__}; a vgame.tasks.task.Task is expected")
    return task


def _arguments(job: JobFile, factory: Callable[..., Any]) -> dict[str, Any]:
    """The job's args; a factory that asks for a `seed`, without a default of its own, gets the job's."""
    args = dict(job.args)
    try:
        signature = inspect.signature(factory)
        seed = signature.parameters.get("seed")
        if seed is not None and seed.default is seed.empty and seed.kind is not seed.VAR_KEYWORD:
            args.setdefault("seed", job.seed)
        signature.bind(**args)
    except TypeError as error:
        raise JobFileError(f"{job.model} does not take args {job.args}: {error}") from None
    except ValueError:  # a function that has no signature
        pass
    return args


def initial_of(job: JobFile) -> Any:
    """What the job starts from: None, a path, or what the API was given."""
    return _beside(job, job.initial) if job._initial is None else job._initial


def _beside(job: JobFile, value: Any) -> Any:
    """An argument that looks like a path (it has a slash or a dot) and is one from the job file's folder on: that path."""
    if job._folder is None or not isinstance(value, str) or not ("/" in value or "." in value):
        return value
    place = os.path.join(job._folder, value)
    return place if os.path.exists(place) else value


def _told(error: BaseException) -> str:
    """Type, message on one line, and the line of the user's file that it comes from."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{_place(error)}"


def _place(error: BaseException) -> str:
    """The last line that is neither Python's, vgame's nor an installed package's."""
    others = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parents[1]))
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


class LogSpec(BaseModel):
    """What mode `logged` needs in a bundle: one window per sum operator, in proven bounds on the error (2: replication is certain)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bits: int = Field(ge=26, le=32)
    windows: tuple[Annotated[float, Field(ge=0, le=2)], ...]


@dataclass(frozen=True)
class Bundle:
    """A job that can be run and checked. State, data and constants are flat tensors on the CPU."""

    program: Program
    state: tuple[torch.Tensor, ...]
    data: tuple[torch.Tensor, ...]
    scalars: torch.Tensor
    seed: int
    steps: int
    interval: int
    depth: int
    mode: str
    terms: Terms
    log: LogSpec | None = None
    keys: Keys = field(default_factory=dict)  # of the module's state_dict; no bit depends on them
    before: int = 0  # steps that the initial state has behind it, where a run is continued; for who continues this one

    @classmethod
    def load(cls, folder: Path | str) -> Bundle:
        """Read a bundle. BundleError unless its files are what its spec.json orders."""
        return load_bundle(Path(folder))

    def save(self, folder: Path | str) -> None:
        """Write all files into a folder."""
        save_bundle(self, Path(folder))

    @cached_property
    def initial_root(self) -> bytes:
        return tensors_root(Kind.STATE, self.state)

    @cached_property
    def data_root(self) -> bytes:
        return tensors_root(Kind.DATA, self.data)

    @cached_property
    def scalar_root(self) -> bytes:
        return tensor_root(self.scalars) if self.scalars.numel() else padding(Kind.TENSOR, 0)

    @cached_property
    def identity(self) -> bytes:
        """Hash over what determines the bits of a run (not the money): runs are stored under it."""
        numbers = f"{self.seed} {self.steps} {self.interval} {self.mode}".encode()
        if self.log:
            numbers += f" {self.log.bits} {' '.join(map(float.hex, self.log.windows))}".encode()
        roots = self.program.root + self.data_root + self.initial_root + self.scalar_root
        return hashlib.sha256(b"vgame run " + numbers + roots).digest()

    @property
    def checkpoints(self) -> int:
        return -(-self.steps // self.interval)

    @property
    def order(self) -> dict[str, Any]:
        """The fields of the contract's JobSpec (vgame.chain.game.JobSpec)."""
        roots = {
            "program_root": self.program.root,
            "data_root": self.data_root,
            "initial_root": self.initial_root,
            "scalar_root": self.scalar_root,
        }
        numbers = {"seed": self.seed, "steps": self.steps, "interval": self.interval, "depth": self.depth}
        numbers["mode"] = self.log.bits if self.log else MODES.index(self.mode)
        return roots | numbers | self.terms.model_dump()

    def rendering(self) -> dict[str, Any]:
        """What spec.json says: the roots for people, the rest for the loader."""
        return {
            "version": 1,
            "program_root": self.program.root.hex(),
            "data_root": self.data_root.hex(),
            "initial_root": self.initial_root.hex(),
            "scalar_root": self.scalar_root.hex(),
            "label_root": self.program.labels.root.hex(),
            "keys_root": keys_root(self.keys, self.before).hex(),
            "seed": self.seed,
            "steps": self.steps,
            "interval": self.interval,
            "depth": self.depth,
            "mode": self.mode,
            "terms": self.terms.model_dump(),
        } | ({"log": self.log.model_dump(mode="json")} if self.log else {})


def differences(a: Bundle, b: Bundle) -> list[str]:
    """What decides bits and is not the same in both, in words; none if and only if the identities are equal."""
    parts = {
        "program": lambda x: x.program.root,
        "data": lambda x: x.data_root,
        "initial state": lambda x: x.initial_root,
        "scalars": lambda x: x.scalar_root,
        **{name: lambda x, name=name: getattr(x, name) for name in ("seed", "steps", "interval", "mode", "log")},
    }
    return [name for name, part in parts.items() if part(a) != part(b)]


def ordered_differences(order: Bundle, held: Bundle) -> list[str]:
    """The same, and the names of the tensors, which decide where weights are loaded."""
    names = order.program.labels.root != held.program.labels.root
    if order.keys and held.keys:  # earlier versions did not write them
        names |= order.keys != held.keys
    return differences(order, held) + ["names"] * names


def prepare(job: JobFile, listener: Silence = SILENCE) -> Bundle:
    """Capture the job's model and collect everything that the order consists of."""
    bundle = prepare_without_log(job, listener)
    if job.mode == "logged" and (job.log or LogTerms()).thresholds == "adaptive":
        listener.stage("calibrates thresholds on two devices")
    return with_log(bundle, job.log)


def prepare_without_log(job: JobFile, listener: Silence = SILENCE) -> Bundle:
    """The same, but for what mode `logged` calibrates."""
    if job._task is None:
        listener.stage(f"calls {job.model}")
    task = call_factory(lambda: make_task(job)) if job._task is None else job._task
    warn_of_rate(task, job.schedule)
    start = start_from(initial_of(job), task.model)
    lowered: Lowered = lower_task(task, start.schedule(job.schedule), start.before + job.steps, listener)
    state, scalars = start.lowered(lowered)
    bundle = Bundle(
        lowered.program, state, lowered.data, scalars,
        job.seed, job.steps, job.interval, job.depth, job.mode, job.terms, None, module_keys(task.model), start.before,
    )  # fmt: skip
    _validate(bundle)
    return bundle


def with_log(bundle: Bundle, terms: LogTerms | None) -> Bundle:
    """The bundle with its windows, calibrated if the job asks for that; in other modes the bundle itself."""
    if bundle.mode != "logged":
        if terms is not None:
            raise JobFileError(f"[log] belongs to mode = 'logged', but the mode is {bundle.mode!r}")
        return bundle
    from vgame.logged.kernels import sum_operators
    from vgame.runs.thresholds import PROVEN, calibrate

    terms = terms or LogTerms()
    proven = LogSpec(bits=terms.bits, windows=(PROVEN,) * len(sum_operators(bundle.program)))
    bundle = replace(bundle, log=proven)
    if terms.thresholds == "proven":
        return bundle
    return replace(bundle, log=LogSpec(bits=terms.bits, windows=calibrate(bundle, terms.calibration).windows))


def _validate(bundle: Bundle) -> None:
    """Everything that decides bits is what the roots fix: a tensor's words alone do not say its type and shape, the program does."""
    data = [(t.numel(), not t.is_floating_point()) for t in bundle.data]
    validate(bundle.program, data, bundle.steps, bundle.mode)
    sources, labels = bundle.program.sources, bundle.program.labels.state
    if not len(sources) == len(labels) == len(bundle.state):
        raise BundleError(
            f"the program has {len(sources)} state tensors, {len(labels)} names and {len(bundle.state)} initial ones"
        )
    for source, label, tensor in zip(sources, labels, bundle.state, strict=True):
        found, expected = (
            (tensor.numel(), tensor.dtype),
            (source.elements, torch.int32 if source.integer else torch.float32),
        )
        if found != expected:
            raise BundleError(
                f"the initial state {label.name} is {found[0]} words of {found[1]}, the program has {expected[0]} of {expected[1]}"
            )
    shape = (bundle.steps, bundle.program.scalars)
    if bundle.scalars.dtype != torch.float32 or tuple(bundle.scalars.shape) != shape:
        found = f"{tuple(bundle.scalars.shape)} of {bundle.scalars.dtype}"
        raise BundleError(f"the scalars are {found}, the program reads {shape} of torch.float32")


# ---- bundles on disk ----


def save_bundle(bundle: Bundle, folder: Path) -> None:
    """Write all files; spec.json comes last, so a bundle without it is not one."""
    labels = bundle.program.labels
    save_program(bundle.program, folder / "program.vgp")
    write_atomic(folder / "initial.safetensors", pack_tensors(labels.state, bundle.state))
    save_data(folder, labels.data, bundle.data)
    write_atomic(folder / "scalars.safetensors", pack_tensors([_scalars_label(bundle.scalars.shape)], [bundle.scalars]))
    save_keys(folder, bundle.keys, bundle.before)
    write_atomic(folder / "spec.json", (json.dumps(bundle.rendering(), indent=2) + "\n").encode())


def _scalars_label(shape: Sequence[int]) -> TensorLabel:
    return TensorLabel("scalars", tuple(shape))


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle back, recompute every root and compare it with what spec.json states."""
    spec = _read_spec(folder / "spec.json")
    program = load_program(folder / "program.vgp")
    try:
        terms = Terms.model_validate(spec["terms"])
        numbers = (spec["seed"], spec["steps"], spec["interval"], spec["depth"], spec["mode"])
        log = LogSpec.model_validate(spec["log"]) if spec["mode"] == "logged" else None
    except KeyError as error:
        raise BundleError(f"{folder / 'spec.json'} is not a job spec of this version: {error} is missing") from None
    except ValidationError as error:
        raise BundleError(f"{folder / 'spec.json'} is not a job spec of this version: {problems(error)}") from None
    least, most = (0, 1, 1, 1), (2**64 - 1, MOST_STEPS, 2**32 - 1, 8)
    if numbers[4] not in MODES or not all(
        type(n) is int and low <= n <= high for n, low, high in zip(numbers[:4], least, most, strict=True)
    ):
        told = f"{numbers}"[:200]
        raise BundleError(
            f"{folder / 'spec.json'} is not a job spec of this version: seed, steps, interval, depth, mode = {told}; numbers from {least} "
            f"to {most} and one of {MODES} are expected"
        )
    state = read_tensors(folder / "initial.safetensors", program.labels.state)
    data = load_data(folder, program.labels.data)
    table = _scalars_label((numbers[1], program.scalars))
    (scalars,) = read_tensors(folder / "scalars.safetensors", [table])
    bundle = Bundle(
        program,
        state,
        data,
        scalars.reshape(table.shape),
        *numbers,
        terms,
        log,
        *load_keys(folder, program.labels.state),
    )
    _validate(bundle)
    spec.setdefault("label_root", program.labels.root.hex())  # an earlier version did not write it
    if not bundle.keys:  # nor this one
        spec.setdefault("keys_root", keys_root({}, bundle.before).hex())
    for name, value in bundle.rendering().items():
        if spec.get(name) != value:
            raise BundleError(
                f"{folder}: the {name.replace('_', ' ')} of the files is {value}, spec.json orders {spec.get(name)}; "
                "the bundle is damaged or not the one that was ordered: get it again from the client"
            )
    return bundle


def _read_spec(path: Path) -> dict[str, Any]:
    try:
        spec = parse_json(read_file(path, MOST_SPEC))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}; a bundle is made by `vgame prepare`") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {error}") from None
    if not isinstance(spec, dict):
        raise BundleError(f"{path} is damaged: it holds a {type(spec).__name__}, not the fields of a job")
    return spec


__all__ = [
    "Bundle",
    "JobFile",
    "Terms",
    "VgameError",
    "load_bundle",
    "make_task",
    "prepare",
    "read_job_file",
    "save_bundle",
]
