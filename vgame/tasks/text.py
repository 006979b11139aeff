"""Text for language models: any file, as bytes or with a tokenizer directory of Hugging Face. vgame never downloads."""

from __future__ import annotations

from pathlib import Path

import torch

from vgame.errors import DataError, how_to_install


def load_tokens(path: str | Path, tokenizer: str | Path | None = None) -> torch.Tensor:
    """int64 [T]: the bytes of the file, or its tokens."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"the text {path} cannot be read: {error.strerror}") from None
    if tokenizer is None:
        tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.int64)
    else:
        tokens = _tokenize(path, data, Path(tokenizer))
    if len(tokens) < 2:
        raise DataError(f"the text {path} has {len(tokens)} tokens; at least 2 are needed")
    return tokens


def _tokenize(path: Path, data: bytes, folder: Path) -> torch.Tensor:
    if not folder.is_dir():
        raise DataError(f"the tokenizer directory {folder} does not exist; give a local folder (vgame never downloads)")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise DataError(
            f"a tokenizer directory needs the package transformers ({error}): {how_to_install('hf')}"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return torch.tensor(tokenizer(data.decode())["input_ids"], dtype=torch.int64)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be tokenized with {folder}: {error}") from None
