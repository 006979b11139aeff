"""The order: a job file (TOML), and the bundle that all parties hold (program, initial state, data, scalars).

In: TOML, or a bundle directory. Out: `Bundle`, whose roots are always recomputed from its files, and the job spec as
the contract hashes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from vgame.commit.mapped import refuse_changed
from vgame.commit.merkle import Kind, padding
from vgame.commit.tensor import tensor_root, tensors_root
from vgame.errors import BundleError
from vgame.job.data import load_data, save_data
from vgame.job.file import MOST_SPEC, MOST_STEPS, Name, Terms, problems
from vgame.job.forecast import Forecast
from vgame.job.shown import table
from vgame.job.state_keys import Keys, keys_root, load_keys, save_keys
from vgame.logged.spec import LogSpec
from vgame.program.file import load_program, save_program
from vgame.program.modes import MODES
from vgame.program.program import Program, TensorLabel
from vgame.program.tensor_file import pack_tensors, read_tensors
from vgame.program.validate import validate
from vgame.system.files import parse_json, read_file, write_atomic
from vgame.tasks.task import SAMPLES, TOTALS
from vgame.validation.record import Record, line

VERSION = 3  # of spec.json: 2 had a window for rewards, and no `label_root`


@dataclass(frozen=True)
class Bundle:
    """A job, ready to run and to check. `seed`, `steps`, `interval`, `depth`, `mode`, `terms` and `name` are those of
    the job file."""

    program: Program
    """One training step, as a list of operators."""
    state: tuple[torch.Tensor, ...]
    """The initial state: weights, buffers, the optimizer's slots; flat, on the CPU."""
    data: tuple[torch.Tensor, ...]
    """The data set; flat, on the CPU."""
    scalars: torch.Tensor
    """Numbers that change per step, such as learning rates: float32 [steps, scalars]."""
    seed: int
    steps: int
    interval: int
    depth: int
    mode: str
    terms: Terms
    log: LogSpec | None = None
    """In mode `logged`: bits, and one window per sum operator."""
    keys: Keys = field(default_factory=dict)
    """Keys of the module's state_dict; no bit of a run depends on them."""
    before: int = 0
    """Steps of the run that this job continues; 0 for a new run."""
    recipes: dict[str, Any] = field(default_factory=dict)
    """By name of a data tensor: the recipe by which `vgame.packed` made it."""
    without_gradient: tuple[str, ...] = ()
    """Parameters without a gradient; known after `prepare`, stored in no file."""
    validation: dict[str, Any] | None = None
    """The result of the comparison with the user's code (docs/validation.md); in no root."""
    name: str = ""
    forecast: Forecast | None = None
    """Time, memory and disk of a run on the preparing machine; stored in no file."""

    def __repr__(self) -> str:
        """One line: without the data."""
        sizes = (
            f"{len(self.program.operators)} operators, {len(self.state)} state tensors, {len(self.data)} data tensors"
        )
        name = f"{self.name!r}, " if self.name else ""
        cost = f", {self.forecast.cost}" if self.forecast else ""
        return f"Bundle({name}{self.steps} steps, {sizes}, program {self.program.root.hex()[:16]}{cost})"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the roots, the result of the validation, the forecast."""
        cost = {"cost here": str(self.forecast)} if self.forecast else {}
        return table(self.facts | {"checked": self.checked} | cost)

    @property
    def keeps_log(self) -> bool:
        """Whether a run of this job has a log of its rounding decisions."""
        return MODES[self.mode].keeps_log

    @property
    def facts(self) -> dict[str, str]:
        """The facts that determine the bits of a run, by name."""
        named = {"name": self.name} if self.name else {}
        return named | {
            "job": self.identity.hex(),
            "program root": self.program.root.hex(),
            "data root": self.data_root.hex(),
            "initial root": self.initial_root.hex(),
            "scalar root": self.scalar_root.hex(),
            "steps": f"{self.steps}, a checkpoint every {self.interval}",
            "seed": str(self.seed),
            "mode": f"{self.mode}, {self.log.bits} bits" if self.log else self.mode,
        }

    @property
    def checked(self) -> str:
        """The recorded result of the validation, as one line of text."""
        if self.validation is None:
            return "not validated: the bundle records no comparison with the client's code"
        return line(self.validation)

    @classmethod
    def load(cls, folder: Path | str) -> Bundle:
        """Read a bundle. BundleError unless its files match its spec.json."""
        return load_bundle(Path(folder))

    def save(self, folder: Path | str) -> None:
        """Write all files into a folder."""
        save_bundle(self, Path(folder))

    def refuse_changed(self, anew: bool = False) -> None:
        """DataError if a file of the data has changed since it was hashed. `anew`: read all bytes again, as before a
        claim, a verdict or an export."""
        for tensor in self.data:
            refuse_changed(tensor, anew)

    @cached_property
    def initial_root(self) -> bytes:
        """Root over the initial state."""
        return tensors_root(Kind.STATE, self.state)

    @cached_property
    def data_root(self) -> bytes:
        """Root over the data set."""
        return tensors_root(Kind.DATA, self.data)

    @cached_property
    def scalar_root(self) -> bytes:
        """Root over the scalars."""
        return tensor_root(self.scalars) if self.scalars.numel() else padding(Kind.TENSOR, 0)

    @cached_property
    def identity(self) -> bytes:
        """Hash over the fields that determine the bits of a run (not the amounts); the key of a stored run."""
        numbers = f"{self.seed} {self.steps} {self.interval} {self.mode}".encode()
        if self.log:
            numbers += f" {self.log.bits} {' '.join(map(float.hex, self.log.windows))}".encode()
        roots = self.program.root + self.data_root + self.initial_root + self.scalar_root
        return hashlib.sha256(b"vgame run " + numbers + roots).digest()

    @property
    def checkpoints(self) -> int:
        """The number of checkpoints: ceil(steps / interval)."""
        return -(-self.steps // self.interval)

    @property
    def purpose(self) -> str:
        """ "evaluating" for an evaluation on held-out data (vgame/api_evaluation.py), else "training"."""
        counts = any(label.name == f"{TOTALS}.{SAMPLES}" for label in self.program.labels.state)
        return "evaluating" if counts else "training"

    @property
    def order(self) -> dict[str, Any]:
        """The fields of the contract's JobSpec (vgame.chain.records.JobSpec)."""
        roots = {
            "program_root": self.program.root,
            "data_root": self.data_root,
            "initial_root": self.initial_root,
            "scalar_root": self.scalar_root,
        }
        numbers = {"seed": self.seed, "steps": self.steps, "interval": self.interval, "depth": self.depth}
        numbers["mode"] = self.log.bits if self.log else list(MODES).index(self.mode)
        return roots | numbers | self.terms.model_dump()

    def rendering(self) -> dict[str, Any]:
        """The content of spec.json: roots for readers, the other fields for the loader."""
        return {
            "version": VERSION,
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
            **({"log": self.log.model_dump(mode="json")} if self.log else {}),
            **({"recipes": self.recipes} if self.recipes else {}),
            **({"name": self.name} if self.name else {}),
        }


def differences(a: Bundle, b: Bundle) -> list[str]:
    """The differing fields that determine bits, as phrases; empty if and only if the identities are equal."""
    parts = {
        "program": "program.root",
        "data": "data_root",
        "initial state": "initial_root",
        "scalars": "scalar_root",
    } | {name: name for name in ("seed", "steps", "interval", "mode", "log")}
    return [name for name, part in parts.items() if attrgetter(part)(a) != attrgetter(part)(b)]


def ordered_differences(order: Bundle, held: Bundle) -> list[str]:
    """`differences`, also of the tensors' names (they decide where weights are loaded) and of the steps before the
    first."""
    names = order.program.labels.root != held.program.labels.root or order.keys != held.keys
    return differences(order, held) + ["names"] * names + ["steps before the first"] * (order.before != held.before)


def refuse_invalid(bundle: Bundle) -> None:
    """BundleError unless state, data and scalars have the types and shapes that the program states; roots cover words
    only."""
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
                f"the initial state {label.name} is {found[0]} words of {found[1]}, the program has {expected[0]} of "
                f"{expected[1]}"
            )
    shape = (bundle.steps, bundle.program.scalars)
    if bundle.scalars.dtype != torch.float32 or tuple(bundle.scalars.shape) != shape:
        given = f"{tuple(bundle.scalars.shape)} of {bundle.scalars.dtype}"
        raise BundleError(f"the scalars are {given}, the program reads {shape} of torch.float32")


# ---- bundles on disk ----


def save_bundle(bundle: Bundle, folder: Path) -> None:
    """Write all files, spec.json last: a folder without it is no bundle."""
    labels = bundle.program.labels
    save_program(bundle.program, folder / "program.vgp")
    write_atomic(folder / "initial.safetensors", pack_tensors(labels.state, bundle.state))
    save_data(folder, labels.data, bundle.data)
    write_atomic(folder / "scalars.safetensors", pack_tensors([_scalars_label(bundle.scalars.shape)], [bundle.scalars]))
    save_keys(folder, bundle.keys, bundle.before)
    if bundle.validation is not None:
        write_atomic(folder / "validation.json", (json.dumps(bundle.validation, indent=2) + "\n").encode())
    write_atomic(folder / "spec.json", (json.dumps(bundle.rendering(), indent=2) + "\n").encode())


def _scalars_label(shape: Sequence[int]) -> TensorLabel:
    return TensorLabel("scalars", tuple(shape))


def load_bundle(folder: Path) -> Bundle:
    """Read a bundle, recompute every root and compare it with spec.json."""
    spec, numbers, terms, log = read_spec(folder / "spec.json")
    program = load_program(folder / "program.vgp")
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
        _recipes(folder / "spec.json", spec.get("recipes", {}), [label.name for label in program.labels.data]),
        validation=_validation(folder / "validation.json"),
        name=_name(folder / "spec.json", spec.get("name", "")),
    )
    refuse_invalid(bundle)
    for name, value in bundle.rendering().items():
        if spec.get(name) != value:
            raise BundleError(
                f"{folder}: the {name.replace('_', ' ')} of the files is {value}, spec.json orders {spec.get(name)}; "
                "the bundle is damaged or not the one that was ordered: get it again from the client"
            )
    return bundle


def _name(path: Path, found: Any) -> str:
    try:
        return TypeAdapter(Name).validate_python(found, strict=True)
    except ValidationError as error:
        raise BundleError(f"{path}: {problems(error)}") from None


def _validation(path: Path) -> dict[str, Any] | None:
    """The bundle's record of its validation; None without one, as in earlier versions."""
    try:
        found = parse_json(read_file(path, MOST_SPEC))
        Record.model_validate(found)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        problem = problems(error)
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error)
    else:
        return dict(found)
    raise BundleError(f"{path} is damaged: {problem}; delete it, no root depends on it")


def _recipes(path: Path, found: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(found, dict) and all(name in names and isinstance(recipe, dict) for name, recipe in found.items()):
        return found
    raise BundleError(f"{path}: recipes = {str(found)[:200]}; recipes of the data {', '.join(names)} are expected")


def read_spec(path: Path) -> tuple[dict[str, Any], tuple[int, int, int, int, str], Terms, LogSpec | None]:
    """(content of spec.json; seed, steps, interval, depth and mode; terms; LogSpec). BundleError for another
    version."""
    spec = _read_fields(path)
    if spec.get("version") != VERSION:
        raise BundleError(
            f"{path.parent} is a bundle of version {str(spec.get('version', 1))[:20]}, this vgame reads version "
            f"{VERSION}, whose orders have no window for rewards: prepare the job again, or read "
            "it with the vgame that wrote it"
        )
    try:
        terms = Terms.model_validate(spec["terms"])
        numbers = (spec["seed"], spec["steps"], spec["interval"], spec["depth"], spec["mode"])
        keeps_log = numbers[4] in [name for name, mode in MODES.items() if mode.keeps_log]
        log = LogSpec.model_validate(spec["log"]) if keeps_log else None
    except KeyError as error:
        raise BundleError(f"{path} is not a job spec of this version: {error} is missing") from None
    except ValidationError as error:
        raise BundleError(f"{path} is not a job spec of this version: {problems(error)}") from None
    least, most = (0, 1, 1, 1), (2**64 - 1, MOST_STEPS, 2**32 - 1, 8)
    if numbers[4] not in tuple(MODES) or not all(
        type(n) is int and low <= n <= high for n, low, high in zip(numbers[:4], least, most, strict=True)
    ):
        found = f"{numbers}"[:200]
        raise BundleError(
            f"{path} is not a job spec of this version: seed, steps, interval, depth, mode = {found}; numbers from "
            f"{least} to {most} and one of {tuple(MODES)} are expected"
        )
    return spec, numbers, terms, log


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        spec = parse_json(read_file(path, MOST_SPEC))
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}; a bundle is made by `vgame prepare`") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {error}") from None
    if not isinstance(spec, dict):
        raise BundleError(f"{path} is damaged: it holds a {type(spec).__name__}, not the fields of a job")
    return spec
