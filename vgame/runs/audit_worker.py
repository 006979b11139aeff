"""A process that audits parts of a run: `python -m vgame.runs.audit_worker RUN DEVICE COUNT BUNDLE [URL ...]`.

In: the folder of the order (empty: the run's own); the URLs of states that are not in the folder; lines `FIRST LAST
BEGIN` (checkpoints up to COUNT, and the one with the initial state) or `segment C` on standard input. Out: one JSON
object a line: {"ready": hash of the opened run, "vgame": its version}, then for each part {"first", "last", "checked",
"differs", "theirs", "mine", "kept", "step"}, {"segment": [state roots]} or {"error": message}; {"begins": step} as a
sign of life before each executed step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgame.errors import StoreError, VgameError
from vgame.execute.devices import prepare_environment, use_device

if TYPE_CHECKING:
    from vgame.execute.executor import Executor


def serve(run: Path, device: str, count: int, bundle: str, urls: Sequence[str]) -> None:
    from vgame.job.bundle import load_bundle
    from vgame.runs.audit import audit_kept, audit_parts
    from vgame.runs.folder import open_run, repeater_of, store_of
    from vgame.runs.history import History
    from vgame.runs.parallel_audit import opened
    from vgame.system.progress import NULL_PROGRESS
    from vgame.system.version import sources

    with use_device(device) as kind:
        store = store_of(run, load_bundle(Path(bundle)), writable=False) if bundle else open_run(run)
        if urls:
            from vgame.runs.published import Published

            store.elsewhere = Published(urls)
        executor = repeater_of(store, kind)
        _report_steps(executor)
        _print(ready=opened(store, count), vgame=sources())
        for line in sys.stdin:
            if line.startswith("segment "):
                found = History(store, executor).segment(int(line.split()[1]))
                store.bundle.refuse_changed(anew=True)
                _print(segment=[root.hex() for root in found])
                continue
            first, last, begin = map(int, line.split())
            if store.nearest(first - 1) < begin:  # else a server could force each part to start at step 1
                raise StoreError(f"the state of checkpoint {begin} disappeared during the audit; audit the run again")
            part = list(range(first, last + 1))
            finding = audit_kept(store, part) or audit_parts(store, executor, part, NULL_PROGRESS)
            store.bundle.refuse_changed(anew=True)
            _print(first=first, last=last, **asdict(finding))


def _report_steps(executor: Executor) -> None:
    """Report the start of every step, also of steps towards a state that the run does not keep."""
    step = executor.step

    def reporting(number: int, *given: Any) -> Any:
        _print(begins=number)
        return step(number, *given)

    executor.step = reporting  # type: ignore[method-assign]


def _print(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    prepare_environment(sys.argv[2])
    try:
        serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
    except VgameError as error:
        _print(error=str(error))
        sys.exit(1)
