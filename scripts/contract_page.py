"""docs/contracts.md from the NatSpec of the contracts' interfaces: functions, events, errors, types. With --check it
only compares.

In: the Solidity files of `SOURCES`, with `///` lines before each part (tests/test_repository.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from written_page import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "contracts.md"
SOURCES = ("IMoves", "ISettlement", "IDelivery", "IGame", "IGameTypes", "IReferee", "AccuracyEscrow")
HEAD = """# The contracts' interface

Written by `scripts/contract_page.py` from the comments in `contracts/`. The game is one address:
`VerificationGame` implements `IMoves`, and runs the code of `Settlement` and `Delivery` for the
other calls. The order of calls: [protocol](protocol.md), [delivery](delivery.md),
[bonus](bonus.md). Other words: [glossary](glossary.md).
"""
PART = re.compile(r"(function|event|error|struct|enum) (\w+)")
HEADINGS = {"function": "Functions", "event": "Events", "error": "Errors", "struct": "Structs", "enum": "Enums"}


@dataclass
class Part:
    """One documented declaration: its kind, name, signature or fields, and its `///` lines."""

    kind: str
    name: str
    code: str
    tags: dict[str, str]

    @property
    def text(self) -> str:
        return self.tags.get("notice", self.tags.get("inheritdoc", ""))


def tags_of(lines: list[str]) -> dict[str, str]:
    """`@notice`, `@title` and `@param name` -> their text."""
    found: dict[str, str] = {}
    key = "notice"
    for line in lines:
        if tag := re.match(r"@(param|return) (\w+) ?(.*)|@(\w+) ?(.*)", line):
            key = f"{tag[1]} {tag[2]}" if tag[1] else tag[4]
            line = tag[3] if tag[1] else tag[5]
        found[key] = f"{found.get(key, '')} {line}".strip()
    return found


def parts_of(source: str) -> list[Part]:
    """The contracts of a file, each followed by its declarations."""
    found, comment, lines = [], [], iter(source.splitlines())
    for line in lines:
        text = line.strip()
        if text.startswith("///"):
            comment.append(text.removeprefix("///").strip())
            continue
        if start := re.match(r"(interface|contract) (\w+)", text):
            found.append(Part("contract", start[2], "", tags_of(comment)))
        elif (start := PART.match(text)) and re.match(r" {4}\S", line):
            end = "}" if start[1] in ("struct", "enum") else (";", "{")
            code = [text]
            while not code[-1].endswith(end):
                code.append(next(lines).strip())
            if not re.search(r"\b(private|internal)\b", " ".join(code)):
                found.append(Part(start[1], start[2], "\n".join(code), tags_of(comment)))
        comment = []
    return found


def signature(code: str) -> str:
    """The call on one line, without `external` and its like."""
    flat = re.sub(r"\s+", " ", code).rstrip(" ;{").replace("( ", "(").replace(" )", ")")
    flat = re.sub(r"^(function|event|error) ", "", flat)
    return re.sub(r" (external|public|calldata|memory|indexed)\b", "", flat)


def fields(part: Part) -> list[tuple[str, str]]:
    """(declaration, meaning) of each field of a struct or value of an enum."""
    rows = []
    for line in part.code.splitlines()[1:-1]:
        code, _, remark = line.partition("//")
        code = code.strip().rstrip(";,")
        rows.append((code, remark.strip() or part.tags.get(f"param {code.split()[-1]}", "")))
    return rows


def row(code: str, text: str) -> str:
    return f"| `{code}` | {text.replace('|', chr(92) + '|')} |"


def described(part: Part) -> str:
    params = [(k.split()[1], v) for k, v in part.tags.items() if k.startswith(("param ", "return "))]
    return " ".join([part.text, *(f"`{name}`: {text}." for name, text in params)]).strip()


def section(kind: str, parts: list[Part]) -> list[str]:
    """A heading and its tables."""
    lines = ["", f"### {HEADINGS[kind]}"]
    if kind in ("struct", "enum"):
        for part in parts:
            lines += ["", f"**{part.name}**. {part.text}".rstrip(), "", "| field | meaning |", "|---|---|"]
            lines += [row(*field) for field in fields(part)]
        return lines
    table = [row(signature(part.code), described(part)) for part in parts]
    return [*lines, "", f"| {kind} | meaning |", "|---|---|", *table]


def page() -> str:
    from reflow import reflow

    lines = [HEAD.rstrip()]
    for name in SOURCES:
        declared: list[Part] = []
        for part in [*parts_of((ROOT / f"contracts/{name}.sol").read_text()), Part("contract", "", "", {})]:
            if part.kind != "contract":
                declared.append(part)
                continue
            for kind in HEADINGS:
                if of_kind := [p for p in declared if p.kind == kind]:
                    lines += section(kind, of_kind)
            declared = []
            if part.name:
                lines += ["", f"## {part.name}", "", f"{part.tags['title'].rstrip('.')}. {part.text}".rstrip()]
    return reflow("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_or_check(PAGE, page(), "the contracts say")
