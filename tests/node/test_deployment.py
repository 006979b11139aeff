"""The registry of games: the address and the chain of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scene import Scene

from vgame.chain.connect import CHAIN_VARIABLE, named_chain
from vgame.chain.game import PARTS, Game
from vgame.chain.registry import find, open_reading, read, record
from vgame.chain.wallet import FEE_VARIABLE, deploy_game, fee_ceiling
from vgame.errors import ChainError, VgameError

OTHER = "0x" + "11" * 20


@pytest.fixture(scope="module")
def game(real_scene: Scene) -> Game:
    return Game(real_scene.chain, deploy_game(real_scene.wallet()))


def write(path: Path, *chains: int) -> str:
    path.write_text(json.dumps({str(chain): {"game": OTHER} for chain in chains}))
    return str(path)


def test_a_game_is_found_by_its_file(game: Game, tmp_path: Path) -> None:
    number, registry = game.chain.chain_id, tmp_path / "games.json"
    record(registry, game)
    (entry,) = read(registry).values()
    assert tuple(entry["parts"]) == PARTS and len({part["code"] for part in entry["parts"].values()}) == 6
    assert find(str(registry), None) == find(str(registry), number) == (game.address, number)
    assert find(OTHER, None) == (OTHER, None)


def test_a_text_that_is_no_file_is_taken_as_an_address() -> None:
    """Also one that is too long for a file's name: the command then refuses it as an address."""
    for text in ("x" * 300, "games.json/x", "", "\0"):
        assert find(text, None) == (text, None)


def test_a_file_of_several_chains_needs_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    games = write(tmp_path / "games.json", 1, 10)
    assert find(games, 10) == (OTHER, 10)
    with pytest.raises(ChainError, match="holds games of chains 1, 10; select one with --chain-id"):
        find(games, None)
    with pytest.raises(ChainError, match="chain 137 is not one of them"):
        find(games, 137)
    monkeypatch.setenv("VGAME_CHAIN_ID", "1")
    assert find(games, None) == (OTHER, 1)
    monkeypatch.setenv("VGAME_CHAIN_ID", "5")
    with pytest.raises(ChainError, match="chain 5 is not one of them"):
        find(write(tmp_path / "one.json", 1), None)


@pytest.mark.parametrize("read", [named_chain, fee_ceiling])
def test_a_number_of_any_length_is_refused_in_a_sentence(
    read: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python converts no text of more than 4,300 digits."""
    for name in (CHAIN_VARIABLE, FEE_VARIABLE):
        monkeypatch.setenv(name, "1" * 5_000)
    with pytest.raises(ChainError, match=r"number .* is expected") as refused:
        read()
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"1": {"game": 5}}', '{"one": {"game": "0x"}}', '{"1": []}', '{"1": {}, "1": {}}', "\xff",
        f'{{"{"1" * 5000}": {{"game": "0x"}}}}',
    ],
)  # fmt: skip
def test_an_invalid_registry_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "games.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(VgameError, match=r"games\.json is no registry of games"):
        find(str(tmp_path / "games.json"), None)


def test_the_file_names_the_endpoints_chain(game: Game, tmp_path: Path) -> None:
    with pytest.raises(ChainError, match=f"is chain {game.chain.chain_id}, chain 99 was expected"):
        open_reading(game.chain.url, write(tmp_path / "games.json", 99))
    record(tmp_path / "right.json", game)
    assert open_reading(game.chain.url, str(tmp_path / "right.json")).address == game.address
