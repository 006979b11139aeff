"""vgame: train a network so that anyone can check the result, bit for bit. Every name outside `__all__` is private.
Importing vgame loads nothing else: a name is imported from its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vgame.system.fields import show_fields
from vgame.system.version import __version__

if TYPE_CHECKING:
    from vgame import augment
    from vgame.api import AuditResult, audit, locate, prepare, train
    from vgame.api_bonus import Escrow
    from vgame.api_chain import AuditorAgent, Game, Node, Order, Received, TrainerAgent, embedded_chain
    from vgame.api_evaluation import Evaluated, evaluate, evaluated, evaluation_job
    from vgame.api_job import Job
    from vgame.api_run import Run
    from vgame.chain.connect import connect
    from vgame.chain.connection import Chain
    from vgame.chain.wallet import Wallet
    from vgame.errors import (
        BundleError,
        Cancelled,
        ChainError,
        ContractError,
        DataError,
        JobFileError,
        MissingPackage,
        ProgramError,
        StoreError,
        UnsupportedOperators,
        ValidationError,
        VgameError,
    )
    from vgame.job.bundle import Bundle
    from vgame.job.file import LogTerms, Terms
    from vgame.job.forecast import Forecast
    from vgame.runs.header import Divergence
    from vgame.runs.locate import Difference
    from vgame.schedules import Constant, Cosine, Linear, StepDecay
    from vgame.tasks.mapped import mapped
    from vgame.tasks.packing import packed
    from vgame.tasks.task import Evaluation, Task

_PLACES = {
    "vgame.api": ("AuditResult", "audit", "locate", "prepare", "train"),
    "vgame.api_job": ("Job",),
    "vgame.api_run": ("Run",),
    "vgame.api_chain": ("AuditorAgent", "Game", "Node", "Order", "Received", "TrainerAgent", "embedded_chain"),
    "vgame.api_bonus": ("Escrow",),
    "vgame.api_evaluation": ("Evaluated", "evaluate", "evaluated", "evaluation_job"),
    "vgame.runs.header": ("Divergence",),
    "vgame.runs.locate": ("Difference",),
    "vgame.schedules": ("Constant", "Cosine", "Linear", "StepDecay"),
    "vgame.errors": (
        "BundleError", "Cancelled", "ChainError", "ContractError", "DataError", "JobFileError",
        "MissingPackage", "ProgramError", "StoreError", "UnsupportedOperators", "ValidationError", "VgameError",
    ),
    "vgame.chain.connect": ("connect",),
    "vgame.chain.connection": ("Chain",),
    "vgame.chain.wallet": ("Wallet",),
    "vgame.job.bundle": ("Bundle",),
    "vgame.job.file": ("LogTerms", "Terms"),
    "vgame.job.forecast": ("Forecast",),
    "vgame.tasks.mapped": ("mapped",),
    "vgame.tasks.packing": ("packed",),
    "vgame.tasks.task": ("Evaluation", "Task"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "AuditResult",
    "AuditorAgent",
    "Bundle",
    "BundleError",
    "Cancelled",
    "Chain",
    "ChainError",
    "Constant",
    "ContractError",
    "Cosine",
    "DataError",
    "Difference",
    "Divergence",
    "Escrow",
    "Evaluated",
    "Evaluation",
    "Forecast",
    "Game",
    "Job",
    "JobFileError",
    "Linear",
    "LogTerms",
    "MissingPackage",
    "Node",
    "Order",
    "ProgramError",
    "Received",
    "Run",
    "StepDecay",
    "StoreError",
    "Task",
    "Terms",
    "TrainerAgent",
    "UnsupportedOperators",
    "ValidationError",
    "VgameError",
    "Wallet",
    "__version__",
    "audit",
    "augment",
    "connect",
    "embedded_chain",
    "evaluate",
    "evaluated",
    "evaluation_job",
    "locate",
    "mapped",
    "packed",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "augment":
        return import_module("vgame.augment")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'vgame' has no attribute {name!r}; public are {', '.join(__all__)}")
    try:
        module = import_module(_MODULE_OF[name])
    except ModuleNotFoundError as error:
        from vgame.errors import missing_package

        raise missing_package(error) from None
    value = globals()[name] = getattr(module, name)
    show_fields(value)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
