"""Prose of the Markdown pages at no more than 100 columns: `reflow.py FILE...` breaks the paragraphs that are wider;
with `--check` it changes nothing, names the files, and fails.

Tables, code, mathematics, headings and HTML stay as they are. A code span or a link is never broken, so a line may
be as wide as one of them. A page reads the same before and after: only white space between words changes.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 100
ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
FENCE = re.compile(r"\s*(?:```|~~~|\$\$)")
WHOLE = re.compile(
    r"\s*(?:[|#<>]|!!!|\?\?\?|\[\^?[^\]]+\]:|---|===)"
)  # a line of a table, heading, HTML, quotation ...
WORD = re.compile(r"(?:!?\[[^\]]*\]\([^)]*\)|`[^`]*`|\$[^$\s][^$]*\$|\S)+")  # with its code spans, links and formulas
MARKER = re.compile(r"(?:[-*+#>|=]|\d+[.)]$)")  # must not begin a line: Markdown would read a list or a heading


def blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The lines of a page in groups: (whether it is a paragraph or an item of a list, its lines)."""
    prose: list[str] = []
    fenced = False
    for line in text.split("\n"):
        fence = bool(FENCE.match(line))
        single = line.strip().startswith("$$") and line.strip().endswith("$$") and len(line.strip()) > 2
        whole = (
            fenced or fence or not line.strip() or bool(WHOLE.match(line)) or (not prose and line.startswith("    "))
        )
        if (whole or ITEM.match(line)) and prose:
            yield True, prose
            prose = []
        if whole:
            yield False, [line]
        else:
            prose.append(line)
        fenced ^= fence and not single
    if prose:
        yield True, prose


def wide(lines: list[str]) -> bool:
    """Whether a line is above the width and has a place where it can be broken."""
    return any(len(line) > WIDTH for line in lines) and broken(lines) != lines


def broken(lines: list[str]) -> list[str]:
    """The same words in lines of at most WIDTH columns, an item's under its first word."""
    if any(line.endswith(("  ", "\\")) for line in lines):  # an explicit line break
        return lines
    item = ITEM.match(lines[0])
    first = item.group() if item else re.match(r"\s*", lines[0]).group()
    words = WORD.findall("\n".join(lines)[len(first) :])
    result, line, indent = [], first, " " * len(first)
    for at, word in enumerate(" ".join(word.split("\n")) for word in words):
        if at and len(line) + 1 + len(word) > WIDTH and not MARKER.match(word):
            result.append(line)
            line = indent + word
        else:
            line += (" " if at else "") + word
    return [*result, line]


def reflow(text: str) -> str:
    """The page with its wide paragraphs broken; the others keep their lines."""
    return "\n".join("\n".join(broken(lines) if prose and wide(lines) else lines) for prose, lines in blocks(text))


if __name__ == "__main__":
    check = "--check" in sys.argv
    pages = [path for path in map(Path, sys.argv[1:]) if path.suffix == ".md"]
    wider = [path for path in pages if reflow(path.read_text()) != path.read_text()]
    for path in wider:
        if check:
            print(f"{path} has prose of more than {WIDTH} columns: make fmt breaks it")
        else:
            path.write_text(reflow(path.read_text()))
    sys.exit(1 if check and wider else 0)
