"""Write a page of docs/; with `--check` only compare it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write_or_check(page: Path, found: str, source: str) -> None:
    """Write `found`, or exit with one sentence if the page differs. `source`: its source, for the message."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        page.write_text(found)
    elif not page.exists() or page.read_text() != found:
        script = f"scripts/{Path(sys.argv[0]).name}"
        sys.exit(f"docs/{page.name} is not what {source}; run {script} and commit the page")
