"""docs/commands.md from the command line's own help. With --check it only compares."""

from __future__ import annotations

import argparse
import html
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"


def page() -> str:
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "commands.md"
        command = ["-m", "typer", "vgame.cli", "utils", "docs", "--name", "vgame", "--title", "Commands", "--output"]
        subprocess.run([sys.executable, *command, str(written)], check=True, capture_output=True)
        return html.unescape(written.read_text()).rstrip() + "\n"


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
