"""One state as a flat dictionary of records, and what changed between two of them.

INVARIANT: `apply(old, difference(old, new)) == new`, so a page that hears every difference shows the state.
"""

from __future__ import annotations

from typing import Any

from vgame.system.progress import plain

State = dict[str, Any]  # "job/ID", "dispute/ID/N", "move/ID/NNNNNN", ... -> a record of plain JSON

LONGEST = 400  # characters of a text that a page shows: names come from files and chains of strangers


def difference(old: State, new: State) -> dict[str, Any]:
    """{"set": records that are new or other, "gone": keys that are no more}."""
    changed = {key: record for key, record in new.items() if key not in old or old[key] != record}
    return {"set": changed, "gone": [key for key in old if key not in new]}


def apply(old: State, change: dict[str, Any]) -> State:
    """The state after a difference."""
    gone = set(change["gone"])
    return {key: record for key, record in old.items() if key not in gone} | change["set"]


def shown(text: object) -> str:
    """A stranger's text as text: no mark that turns its direction, no control character, not too long."""
    told = str(text)
    cut = told[:LONGEST]
    return plain(cut).replace("\n", " ").replace("\t", " ") + (
        f"… ({len(told):,} characters)" if len(told) > LONGEST else ""
    )
