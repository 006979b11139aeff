"""docs/commands.md from the command line's own help: whole sentences, no hidden command. With --check it only
compares."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from written_page import write_or_check

from vgame.cli.commands import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HIDDEN = {f"vgame {c.name or c.callback.__name__}" for c in app.registered_commands if c.hidden and c.callback}


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "commands.md"
        command = ["-m", "typer", "vgame.cli", "utils", "docs", "--name", "vgame", "--title", "Commands", "--output"]
        subprocess.run([sys.executable, *command, str(written)], check=True, capture_output=True)
        return whole(html.unescape(written.read_text())).rstrip() + "\n"


def whole(text: str) -> str:
    """The page without hidden commands, each summary equal to the first sentence of its command's section."""
    head, *sections = re.split(r"(?m)^(?=#{2,} `)", text)
    kept = {title(s): s for s in sections if not HIDDEN & {title(s)}}

    def summary(of: str) -> Callable[[re.Match[str]], str]:
        def line(found: re.Match[str]) -> str:
            name = f"{of} {found[1]}"
            return f"* `{found[1]}`: {' '.join(kept[name].split(chr(10) * 2)[1].split())}\n" if name in kept else ""

        return line

    pages = {"vgame": head} | kept
    return "".join(re.sub(r"(?m)^\* `([a-z][a-z-]*)`: .*\n", summary(of), page) for of, page in pages.items())


def title(section: str) -> str:
    return section.partition("`")[2].partition("`")[0]


if __name__ == "__main__":
    write_or_check(PAGE, page(), "the command line says")
