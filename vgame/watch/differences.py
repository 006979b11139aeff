"""One state as a flat dictionary of records, and the difference of two states.

INVARIANT: `apply(old, difference(old, new)) == new`, so a page that receives every difference shows the state.
"""

from __future__ import annotations

from typing import Any

from vgame.system.progress import plain

State = dict[str, Any]  # "job/ID", "dispute/ID/N", "move/ID/NNNNNN", ... -> a record of plain JSON

LONGEST = 400  # characters of a text on the page: names come from untrusted files and chains


def difference(old: State, new: State) -> dict[str, Any]:
    """{"set": new or changed records, "gone": removed keys}."""
    changed = {key: record for key, record in new.items() if key not in old or old[key] != record}
    return {"set": changed, "gone": [key for key in old if key not in new]}


def apply(old: State, change: dict[str, Any]) -> State:
    """The state after a difference."""
    gone = set(change["gone"])
    return {key: record for key, record in old.items() if key not in gone} | change["set"]


def shown(text: object) -> str:
    """Untrusted text, made safe to show: no direction marks, no control characters, bounded length."""
    whole = str(text)
    cut = whole[:LONGEST]
    return plain(cut).replace("\n", " ").replace("\t", " ") + (
        f"… ({len(whole):,} characters)" if len(whole) > LONGEST else ""
    )
