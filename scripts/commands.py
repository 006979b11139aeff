"""docs/commands.md from the command line's own help: whole sentences, no hidden command. With --check it only
compares."""

from __future__ import annotations

import argparse
import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

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
    """Without the hidden commands, and each summary as its command's section begins."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    found = page()
    if not parser.parse_args().check:
        PAGE.write_text(found)
    elif PAGE.read_text() != found:
        sys.exit("docs/commands.md is not what the command line says; run scripts/commands.py and commit the page")


if __name__ == "__main__":
    main()
