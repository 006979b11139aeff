"""Every error that vgame raises on purpose. One clear sentence each: the value, what was expected, what to do.

Exit codes of the command line: 0 fine, 1 the environment or the input, 2 the verdict is "cheated".
"""

from __future__ import annotations

from collections.abc import Sequence

#: The exit code after a SIGTERM (vgame/cli/commands.py), even if code of a user runs at that moment.
STOPPED = 143
#: Environment variable with the id of the process that started this one, if this one has to end with it.
PARENT_VARIABLE = "VGAME_PARENT"


def some_of(names: Sequence[str]) -> str:
    """The first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class VgameError(Exception):
    """Something outside vgame is wrong, and the user can correct it. The command line prints it and exits with 1."""

    exit_code = 1
    reported = False  # by another process of the same command; then this one only exits


#: Imported package -> the extra of vgame that installs it.
EXTRAS = {
    **dict.fromkeys(("web3", "eth", "eth_account", "eth_keyfile", "eth_tester", "eth_utils", "hexbytes"), "chain"),
    **dict.fromkeys(("starlette", "uvicorn"), "watch"),
    **dict.fromkeys(("transformers", "tokenizers", "accelerate"), "hf"),
    **dict.fromkeys(("timm", "torchvision"), "zoo"),
    "triton": "gpu",
    "pyarrow": "data",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "aiohttp": "remote",
}


def how_to_install(extra: str) -> str:
    """The pip command for an extra, from the repository: no package index has vgame."""
    return f"in the clone of vgame, pip install -e '.[{extra}]'"


class MissingPackage(VgameError, ImportError):
    """A package that only a part of vgame needs is not installed; `extra` installs it."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"the package {package} is not installed; this part of vgame needs it: {how_to_install(extra)}"
        )


def missing_package(error: ModuleNotFoundError) -> MissingPackage:
    """The error for a missing package of an extra; an import error with another cause is raised again unchanged."""
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS:
        raise error
    return MissingPackage(package, EXTRAS[package])


class Cancelled(VgameError):
    """Cancelled by the caller; committed checkpoints stay, and the same call resumes from them."""


class ProofError(VgameError):
    """A Merkle proof or an opening is malformed or does not lead to its root."""


class ProgramError(VgameError):
    """A program, or a record of one, is malformed or invalid."""


class UnsupportedOperators(ProgramError):
    """The model uses operators that vgame cannot lower; `found` maps each to the modules it comes from."""

    def __init__(self, found: dict[str, list[str]]) -> None:
        self.found = found
        listing = "; ".join(f"{what} in {', '.join(where)}" for what, where in sorted(found.items()))
        advice = "; leave sparse=True out: gradients are dense" if "sparse" in listing else ""
        super().__init__(f"the training step uses operators that are not supported: {listing}{advice}")


class ValidationError(ProgramError):
    """The program is not what the task's own code computes (docs/validation.md); `difference`: the place."""

    def __init__(self, text: str, difference: object = None) -> None:
        self.difference = difference
        super().__init__(text)


class JobFileError(VgameError):
    """A job file is missing, malformed, or names something that does not exist."""


class BundleError(VgameError):
    """A bundle's files are missing, damaged, or not the ones that were ordered."""


class StoreError(VgameError):
    """A run's files are damaged or belong to another run."""


class DeliveryError(VgameError):
    """Delivered or served data is missing, or is not the committed data."""


class ChainError(VgameError):
    """The chain is down, is another chain, or rejects a transaction."""


class EndpointError(ChainError):
    """A reply of the endpoint cannot be read, contradicts another one, or does not have the expected hash; it is
    ignored."""


class TooDear(EndpointError):
    """The base fee is above the user's limit; nothing is sent until it falls."""


class ContractError(VgameError):
    """The contract refused a call; `name` and `args_` are its custom error's."""

    def __init__(self, name: str, args_: tuple[object, ...]) -> None:
        self.name, self.args_ = name, args_
        told = ", ".join(f"0x{a.hex()}" if isinstance(a, bytes) else repr(a) for a in args_)
        super().__init__(f"the contract refused: {name}" + (f"({told})" if told else ""))


class LostRace(ContractError):
    """A transaction reverted in its block though the call succeeds before and after it; the caller reads the chain
    again."""

    def __init__(self, call: str) -> None:
        super().__init__("reverted", (call,))
        self.args = (
            f"{call} reverted in its block and would not revert now: another transaction came "
            "between; read the chain again",
        )


class Abstain(VgameError):
    """An agent's own data are not enough to act safely, so it does nothing and reports that."""


class Over(Abstain):
    """Nothing is left to do, and a final state shows that: a role reports it and ends."""


class Undelivered(DeliveryError, Over):
    """The job has ended without its state."""


class NotYet(VgameError):
    """A condition does not hold yet, for example because an endpoint lags or too few of them agree; the caller tries
    again later."""


class Paused(NotYet):
    """The same call was sent a short time ago. `is_longest`: the pause is the longest one, after several calls without
    effect."""

    def __init__(self, call: str, is_longest: bool = False) -> None:
        super().__init__(f"{call} was sent a short time ago; it is sent again after a pause")
        self.is_longest = is_longest


class DataError(VgameError):
    """A data set is missing, damaged, or not the expected one."""
