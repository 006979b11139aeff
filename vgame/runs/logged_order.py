"""The log of a bundle in mode `logged`: bits, and a window per sum operator, proven or measured.

In: a bundle without it, and the [log] of its job file. Out: the bundle with it; in other modes the same bundle.
"""

from __future__ import annotations

from dataclasses import replace

from vgame.errors import JobFileError
from vgame.job.bundle import Bundle
from vgame.job.file import LogTerms
from vgame.logged.kernels import sum_operators
from vgame.logged.spec import PROVEN, LogSpec
from vgame.system.progress import NULL_PROGRESS, NullProgress


def with_log(bundle: Bundle, terms: LogTerms | None, listener: NullProgress = NULL_PROGRESS) -> Bundle:
    """The bundle with its log; measured windows are measured now."""
    if not bundle.keeps_log:
        if terms is not None:
            raise JobFileError(f"[log] belongs to mode = 'logged', but the mode is {bundle.mode!r}")
        return bundle
    terms = terms or LogTerms()
    spec = LogSpec(bits=terms.bits, windows=(PROVEN,) * len(sum_operators(bundle.program)))
    if terms.thresholds == "adaptive":
        from vgame.runs.thresholds import calibrate

        listener.stage("calibrates thresholds on two devices")
        windows = calibrate(replace(bundle, log=spec), terms.calibration).windows
        spec = LogSpec(bits=terms.bits, windows=windows)
    return replace(bundle, log=spec)


def with_known_log(bundle: Bundle, terms: LogTerms | None, known: LogSpec | None) -> Bundle:
    """`with_log` for a comparison with a run, whose log is `known`: measured windows are taken from it, none if it has
    other bits."""
    own = terms or LogTerms()
    if not bundle.keeps_log or own.thresholds == "proven":
        return with_log(bundle, terms)
    return replace(bundle, log=known) if known and known.bits == own.bits else bundle
