#!/usr/bin/env python3
"""Print the rooms of vgame that a command enters, and the calls from a lower room to a higher one.

`walks.py COMMAND ..` takes a vgame command line, or `pytest ..`; `--repo DIR` another checkout. The order of the rooms
is that of its pyproject.toml.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import threading
import tomllib
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

Room = tuple[str, str]  # name of the room, and of the file


class Walk:
    """Calls from one room to another. Frames of libraries are skipped, imports do not count."""

    def __init__(self, repo: Path) -> None:
        self.repo, self.places = repo, dict[CodeType, Room | None]()
        self.entered: dict[str, set[str]] = {}  # by room: its files
        self.calls: Counter[tuple[str, str]] = Counter()
        self.climbs: Counter[tuple[Room, Room]] = Counter()
        layers = tomllib.loads((repo / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
        self.levels = {name.strip(): n for n, layer in enumerate(layers) for name in layer.split("|")}

    def place(self, code: CodeType) -> Room | None:
        if code not in self.places:
            path = Path(code.co_filename)
            inside = path.is_relative_to(self.repo) and path.relative_to(self.repo).parts
            known = inside and (inside[0] == "tests" or (inside[0] == "vgame" and len(inside) > 1))
            room = Path(inside[1]).stem if known and inside[0] == "vgame" else "other"
            made = not code.co_flags & CO_OPTIMIZED  # a module or the body of a class: an import
            self.places[code] = ("import" if made else room, path.name) if known else None
        return self.places[code]

    def note(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or (to := self.place(frame.f_code)) is None or to[0] not in self.levels:
            return
        caller, here = frame.f_back, None
        while caller is not None and (here := self.place(caller.f_code)) is None:
            caller = caller.f_back
        if here is not None and here[0] == "import":
            return
        self.entered.setdefault(to[0], set()).add(to[1])
        if here is None or here[0] not in self.levels or here[0] == to[0]:
            return
        self.calls[here[0], to[0]] += 1
        if self.levels[to[0]] < self.levels[here[0]]:
            self.climbs[here, to] += 1

    def drawing(self) -> str:
        rooms = sorted(self.entered, key=self.levels.__getitem__)
        lines = [f"{len(rooms)} rooms, {sum(map(len, self.entered.values()))} files"]
        for room in rooms:
            down = sorted({to for here, to in self.calls if here == room}, key=self.levels.__getitem__)
            below = [to for to in down if self.levels[to] >= self.levels[room]]
            lines.append(f"{room:15} {len(self.entered[room]):3}  {'-> ' if below else ''}{', '.join(below)}")
        pairs = {(here[0], to[0]) for here, to in self.climbs}
        lines.append(f"climbs back: {len(pairs)} pairs of rooms")
        lines += sorted({f"  {'/'.join(here)} -> {'/'.join(to)}" for here, to in self.climbs})
        return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repo", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    walk, module = Walk(args.repo.resolve()), "vgame"
    sys.path.insert(0, str(walk.repo))
    sys.argv = ["vgame", *args.command]
    if args.command[:1] == ["pytest"]:
        module, sys.argv = "pytest", args.command
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        runpy.run_module(module, run_name="__main__")
    except SystemExit as end:
        if end.code:
            return 1
    finally:
        sys.setprofile(None)
        print(walk.drawing())
    return 0


if __name__ == "__main__":
    sys.exit(main())
