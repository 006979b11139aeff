"""Text files as rows of tokens of one length, written once, with a recipe to make the same rows again.

In: text files and a tokenizer. Out: int32 [rows, length], which stays in its file, mapped by `vgame.mapped`; the recipe
is in a file next to it, and `prepare` writes it into the bundle. Memory: one piece of a text.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from vgame.commit.mapped import cache_folder, source_of
from vgame.errors import DataError, missing_package
from vgame.system.files import parse_json, read_file
from vgame.tasks.mapped import mapped

PIECE = 2**20  # bytes of a text that are tokenised at a time, up to their last newline
HEADER = 128  # bytes of a .npy's header, also after its number of rows is known
MOST_RECIPE = 2**22

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class _Tokens:
    """A tokenizer, with the facts about it in a recipe."""

    facts: dict[str, Any]
    encode: Encode
    number: Callable[[str], int | None]


def packed(
    texts: Path | str | Sequence[Path | str],
    tokenizer: Any = None,
    *,
    length: int,
    end: int | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> torch.Tensor:
    """int32 [rows, length]: the tokens of UTF-8 text files one after the other, cut into rows; an incomplete last row
    is left out. `tokenizer`: a `tokenizers.Tokenizer`, a fast tokenizer of transformers, a folder or a tokenizer.json;
    None for bytes. `end`: a token after each text. `progress(done, all)` counts bytes. The rows are written once for
    the same files and tokenizer, in the cache folder; `Bundle.recipes` has the recipe. DataError if a text, the
    tokenizer or a number cannot be used."""
    paths = [Path(p) for p in ([texts] if isinstance(texts, (str, Path)) else texts)]
    if not paths or type(length) is not int or length < 1:
        raise DataError(
            f"packed() has {len(paths)} texts and length {length!r}; at least one text and a length of at least 1 are "
            "expected"
        )
    tokens = _tokens(tokenizer)
    last = tokens.number(end) if isinstance(end, str) else end
    if end is not None and (type(last) is not int or not 0 <= last < 2**31):
        raise DataError(
            f"end = {end!r} is not a token of {tokens.facts['name']}; give a token of its vocabulary, or a number"
        )
    read = [{"name": p.name, **_seen(p)} for p in paths]
    recipe = {"recipe": "packed 1", "texts": read, "tokenizer": tokens.facts, "end": last, "length": length}
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]
    target = cache_folder() / "packed" / f"{digest}.npy"
    if not (target.exists() and _beside(target).exists()):
        _write(target, recipe, _stream(paths, tokens.encode, last, sum(f["bytes"] for f in read), progress), length)
    return mapped(target)


def recipe_of(tensor: torch.Tensor) -> dict[str, Any] | None:
    """The recipe of a tensor from `packed`; None for every other tensor."""
    source = source_of(tensor)
    if source is None or source.path.parent != cache_folder() / "packed":
        return None
    try:
        return dict(parse_json(read_file(_beside(source.path), MOST_RECIPE)))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{_beside(source.path)} cannot be read: {error}; remove {source.path} and call packed() again"
        ) from None


def _beside(path: Path) -> Path:
    return path.with_suffix(".json")


def _seen(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": os.fstat(file.fileno()).st_size}
    except OSError as error:
        raise DataError(f"the text {path} cannot be read: {error.strerror}") from None


def _tokens(given: Any) -> _Tokens:
    if given is None:
        return _Tokens({"name": "bytes"}, lambda text: text.encode(), lambda word: None)
    try:
        import tokenizers
    except ModuleNotFoundError as error:
        raise missing_package(error) from None
    found = getattr(given, "backend_tokenizer", given)  # of transformers
    if isinstance(found, (str, Path)):
        path = Path(found) / "tokenizer.json" if Path(found).is_dir() else Path(found)
        try:
            found = tokenizers.Tokenizer.from_str(path.read_text())
        except Exception as error:  # the library raises Exception itself
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
            raise DataError(f"the tokenizer {path} cannot be read: {reason}; give a local tokenizer.json") from None
    if not isinstance(found, tokenizers.Tokenizer):
        raise DataError(
            f"{type(given).__name__} is not a tokenizer that can be saved; give a tokenizers.Tokenizer, a fast "
            "tokenizer of transformers, or a folder with tokenizer.json"
        )
    own = tokenizers.Tokenizer.from_str(found.to_str())
    own.no_truncation()
    own.no_padding()
    facts = {
        "name": type(given).__name__ if found is not given else type(own.model).__name__,
        "sha256": hashlib.sha256(own.to_str().encode()).hexdigest(),
        "tokenizers": tokenizers.__version__,
    }
    return _Tokens(facts, lambda text: own.encode(text, add_special_tokens=False).ids, own.token_to_id)


def _stream(
    paths: Sequence[Path], encode: Encode, end: int | None, size: int, progress: Callable[[int, int], None] | None
) -> Iterator[np.ndarray]:
    done = 0
    for path in paths:
        with open(path, "rb") as file:
            for at, piece in _pieces(file):
                try:
                    text = piece.decode()
                except UnicodeDecodeError as error:
                    raise DataError(f"{path} is not UTF-8 at byte {at + error.start:,}; convert it first") from None
                yield np.fromiter(encode(text), "<i4")
                done += len(piece)
                if progress:
                    progress(done, size)
        if end is not None:
            yield np.array([end], "<i4")


def _pieces(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(first byte, bytes) of each piece, which ends after a newline if it has one, else between two characters."""
    at, held = 0, b""
    while True:
        more = file.read(PIECE - len(held))
        held += more
        if not held:
            return
        cut = (held.rfind(b"\n") + 1 or _whole(held)) if more else len(held)
        yield at, held[:cut]
        at, held = at + cut, held[cut:]


def _whole(held: bytes) -> int:
    """The number of bytes before an incomplete last character."""
    for back in range(1, min(4, len(held)) + 1):
        if held[-back] & 0xC0 != 0x80:  # the first byte of the last character
            expected = 1 if held[-back] < 0x80 else 2 if held[-back] < 0xE0 else 3 if held[-back] < 0xF0 else 4
            return len(held) if expected <= back or back == len(held) else len(held) - back
    return len(held)


def _write(target: Path, recipe: dict[str, Any], pieces: Iterator[np.ndarray], length: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_suffix(f".{os.getpid()}.half")
    rows = 0
    rest: np.ndarray = np.zeros(0, "<i4")
    try:
        with open(half, "wb") as out:
            out.seek(HEADER)
            for piece in pieces:
                rest = np.concatenate([rest, piece])
                whole = len(rest) // length
                out.write(rest[: whole * length].tobytes())
                rows, rest = rows + whole, rest[whole * length :]
            if not rows:
                raise DataError(
                    f"the texts have {len(rest):,} tokens, but a row has {length:,}; give more text or a smaller length"
                )
            out.seek(0)
            np.lib.format.write_array_header_1_0(out, {"descr": "<i4", "fortran_order": False, "shape": (rows, length)})
            assert out.tell() == HEADER, "a header of numpy's has other bytes"
        _beside(target).write_text(json.dumps(recipe | {"rows": rows, "left_out": len(rest)}))
        os.replace(half, target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror}; free space, or set XDG_CACHE_HOME") from None
    finally:
        half.unlink(missing_ok=True)
