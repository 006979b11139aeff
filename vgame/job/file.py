"""Job files: the model, the number of steps, the terms."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from vgame.errors import JobFileError
from vgame.program.schedule import Schedule
from vgame.system.files import read_file
from vgame.tasks.task import Task

MOST_STEPS = 2**24  # more is a mistake: the table of scalars alone would take hours


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
    exponent = number.as_tuple().exponent
    if not (isinstance(exponent, int) and -(2**128) < number < 2**128 and abs(exponent) <= 1000):
        raise ValueError(f"{value!r} is out of range: less than 2^128 wei is expected")
    amount = Fraction(number) * scale
    if amount.denominator != 1:
        raise ValueError(f"{value!r} is not a whole number of wei")
    return amount.numerator


Wei = Annotated[int, BeforeValidator(wei), Field(ge=0, lt=2**128)]
Account = Annotated[str, Field(pattern="^0x[0-9a-fA-F]{40}$")]
NO_ACCOUNT = "0x" + 40 * "0"


Seconds = Annotated[int, Field(ge=1, lt=2**32, strict=True)]


class Terms(BaseModel):
    """Amounts and times of an order on a chain. Amounts: wei, or "0.5 ether", "3 gwei"; times: seconds. `vgame terms`
    proposes the smallest safe terms for a bundle."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: Wei = 10**18
    """Paid to the trainer of a final claim."""
    diverged_pay: Wei = 5 * 10**17
    """Paid instead for a claim that training diverged: at most the reward."""
    trainer_bond: Wei = 2 * 10**18
    """At stake for the trainer: at least the reward."""
    auditor_bond: Wei = 2 * 10**17
    """At stake for each auditor."""
    accept_window: Seconds = 86_400
    """From the order to its acceptance."""
    claim_window: Seconds = 604_800
    """From the acceptance to the claim."""
    challenge_window: Seconds = 604_800
    """From the claim, in which it can be challenged."""
    trainer_budget: Seconds = 259_200
    """The trainer's clock in a dispute: at least `slot`."""
    auditor_budget: Seconds = 259_200
    """The auditor's clock in a dispute."""
    slot: Annotated[int, Field(ge=1, lt=2**24, strict=True)] = 3_600
    """Added for each other duty that may come first in the trainer's queue; less than 2^24."""
    confirm_window: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    """Delivery of the trained state (docs/delivery.md), all three windows or none: from finality, to confirm or
    decline."""
    key_window: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    """For the key, and for the answer to a request."""
    complaint_window: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 0
    """From the key, for complaints."""
    fee: Annotated[Wei, Field(lt=2**96)] = 0
    """Paid with each challenge in addition to the bond; burnt unless the claim is convicted on the dispute's path."""
    guardian: Account = NO_ACCOUNT
    """The auditor that is paid if the trainer is convicted while this auditor has a dispute open
    (docs/protocol.md section 6); 0: none."""
    trainer: Account = NO_ACCOUNT
    """The only account that may accept; 0: any account."""

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "reward_window" in given:
            raise ValueError(
                "`reward_window` is no longer part of an order: take the line out (docs/protocol.md section 6)"
            )
        return given

    @model_validator(mode="after")
    def _minima(self) -> Terms:
        """The least values that the contract takes. Twin: Settlement._checkSpec, which also requires bonds that cover
        gas."""
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
                f"`{missing}` = 0 beside other windows of delivery; give all three seconds (docs/delivery.md), or "
                "none for no delivery"
            )
        if self.diverged_pay > self.reward:
            raise ValueError(f"`diverged_pay` = {self.diverged_pay} is more than `reward` = {self.reward}")
        return self


def _check_name(name: str) -> str:
    if len(name.encode()) > NAME_BYTES or not name.isprintable():
        raise ValueError(f"`name` = {name!r}: at most {NAME_BYTES} bytes of printable UTF-8 are expected")
    return name


NAME_BYTES = 32  # of the order's name, as the contract stores it


Name = Annotated[str, AfterValidator(_check_name)]


class LogTerms(BaseModel):
    """How a job in mode `logged` rounds and logs (docs/paper.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bits: int = Field(default=32, ge=26, le=32, strict=True)
    """Bits that results are rounded to, 26 to 32."""
    thresholds: Literal["adaptive", "proven"] = "adaptive"
    """The distance to a rounding boundary below which a direction is logged: measured on two devices (`adaptive`, as in
    the paper), or from a bound on the error (`proven`; disputes need it)."""
    calibration: int = Field(default=3, ge=1, strict=True)
    """Steps on two devices for the measurement of adaptive thresholds."""


def usual_interval(steps: int) -> int:
    """A tenth of the steps: the most that an interrupted training or an audit of one interval repeats."""
    return max(1, steps // 10)


class JobFile(BaseModel):
    """The client's file. `model` names a factory `module:function` that returns a vgame Task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(pattern=r"^[\w.]+:\w+$")
    args: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(default=0, ge=0, lt=2**64, strict=True)
    steps: int = Field(ge=1, le=MOST_STEPS, strict=True)
    interval: int = Field(ge=1, lt=2**32, strict=True)  # left out: a tenth of the steps
    depth: int = Field(default=5, ge=1, le=8, strict=True)
    mode: Literal["correct", "logged", "nearest", "fp32"] = "correct"
    log: LogTerms | None = None
    schedule: Schedule | None = None  # None: the task's schedulers, or the optimizer's own rates
    terms: Terms = Field(default_factory=Terms)
    name: Name = ""  # of the order, for display
    initial: str | None = None  # a run that is continued, or a file of weights: beside the job file
    _folder: Path | None = PrivateAttr(default=None)  # of the job file; modules beside it can be imported
    _task: Task | None = PrivateAttr(default=None)  # a task of the API, used instead of calling `model`
    _initial: Any = PrivateAttr(default=None)  # the same for `initial`

    @model_validator(mode="before")
    @classmethod
    def _usual_interval(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("interval") is not None:
            return given
        steps = given.get("steps")
        return {**given, "interval": usual_interval(steps) if type(steps) is int else 1}

    @model_validator(mode="after")
    def _warmup_ends(self) -> JobFile:
        if self.schedule and self.schedule.warmup > self.steps:
            raise ValueError(f"`schedule.warmup` = {self.schedule.warmup} is more than `steps` = {self.steps}")
        return self


def read_job_file(path: Path) -> JobFile:
    """Read the job file at `path`. VgameError names each problem."""
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
    """The problems of the fields, on one line."""
    names = {"missing": "is missing", "extra_forbidden": "is not a field of a job"}
    own = "Value error, "  # a validator of vgame wrote the whole message

    def problem(e: Mapping[str, Any]) -> str:
        place = f"`{'.'.join(map(str, e['loc']))}` " if e["loc"] else ""
        if e["loc"] == ("schedule",) and e["msg"].startswith("Input should be"):
            return f'`schedule` = {e["input"]!r}; vgame.Constant(lr="0.01") or another schedule is expected'
        if place and e["msg"].startswith("Input should be"):
            return f"{place}= {e['input']!r}; it {e['msg'].removeprefix('Input ')}"
        if e["msg"].startswith(own):
            return f"{place}{e['msg'].removeprefix(own)}"
        return f"{place}{names.get(e['type']) or e['msg'] + ', got ' + repr(e['input'])}"

    return "; ".join(map(problem, error.errors()))
