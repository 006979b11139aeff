"""The registry file of a deployment: locks, links, full disks, sizes, other texts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from scene import Scene
from test_deployed_again import OTHER, count, run

import vgame
from vgame.chain import registry
from vgame.chain.registry import read, record
from vgame.errors import VgameError
from vgame.system.progress import Reporter


def test_a_registry_of_a_complete_game_is_written_to_a_new_folder(real_scene: Scene, tmp_path: Path) -> None:
    wallet = real_scene.wallet()
    assert run(wallet).exit_code == 0
    done = run(wallet, "--registry", tmp_path / "new" / "games.json")
    assert done.exit_code == 0 and len(read(tmp_path / "new" / "games.json")) == 1 and count(wallet) == 6


@pytest.fixture
def game(real_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> vgame.Game:
    monkeypatch.setattr(registry, "LONGEST", 0.5)
    return vgame.Game.deploy(real_scene.wallet())


def test_a_lock_that_is_never_released_is_named(game: vgame.Game, tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(VgameError, match="another process has held the lock"):
        record(tmp_path / "games.json", game)
    os.close(held)
    record(tmp_path / "games.json", game)


def test_a_registry_that_would_be_too_large_is_not_written(game: vgame.Game, tmp_path: Path) -> None:
    """Its own indentation makes a compact file longer."""
    games = tmp_path / "games.json"
    games.write_text(json.dumps({str(n): {"game": OTHER} for n in range(1, 17_000)}, separators=(",", ":")))
    before = games.read_bytes()
    assert len(before) < registry.MOST
    with pytest.raises(VgameError, match="has no room"):
        record(games, game)
    assert games.read_bytes() == before


def test_a_registry_without_room_is_found_before_the_payment(game: vgame.Game, tmp_path: Path) -> None:
    games = tmp_path / "games.json"
    games.write_text(json.dumps({str(n): {"game": OTHER} for n in range(10, 16_000)}, separators=(",", ":")))
    with pytest.raises(VgameError, match="has no room"):
        registry.check_room(games, 5)


def test_a_registry_on_a_full_disk_is_found_before_the_payment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can be created there; its data has no room."""

    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(registry, "flush", full)
    with pytest.raises(VgameError, match="No space left on device; nothing was deployed"):
        registry.check_room(tmp_path / "games.json", 5)
    assert not list(tmp_path.iterdir())


def test_a_mounted_file_is_found_before_the_payment() -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in filter(Path.is_file, map(Path, mounts)):
        assert registry._is_mounted(path)
    assert registry._is_mounted(Path("/proc")) and not registry._is_mounted(Path(__file__))


def test_mount_points_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the list of mounts, spaces and controls are octal; other bytes need not be text."""
    table = b"22 1 0:5 / /caf\xe9 rw - tmpfs none rw\n23 1 0:5 / /a\\040b\xc2\x85 rw - tmpfs none rw\n"
    monkeypatch.setattr(Path, "read_bytes", lambda _: table)
    found = [registry._is_mounted(Path(os.fsdecode(name))) for name in (b"/caf\xe9", b"/a b\xc2\x85", b"/a")]
    assert found == [True, True, False]


def test_a_file_of_another_user_in_a_sticky_folder_is_found_before_the_payment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "games.json").write_text("{}")
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(VgameError, match="only its owner may replace it; nothing was deployed"):
        registry.check_room(tmp_path / "games.json", 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_a_registry_keeps_its_owner(game: vgame.Game, tmp_path: Path) -> None:
    games = tmp_path / "games.json"
    games.write_text("{}")
    os.chown(games, 2_001, 3_000)
    record(games, game)
    assert (games.stat().st_uid, games.stat().st_gid) == (2_001, 3_000)


def test_a_registry_keeps_its_mode(game: vgame.Game, tmp_path: Path) -> None:
    games = tmp_path / "games.json"
    games.write_text("{}")
    games.chmod(0o660)
    record(games, game)
    assert games.stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize(
    "text",
    [
        '{"05": {"game": "%s"}}', '{"5": {"game": "%s"}, "05": {"game": "%s"}}', '{"0": {"game": "%s"}}',
        '{"5": {"game": "%s", "x": 1e999}}', '{"5": {"game": "%s", "x": NaN}}', '{"5": {"game": "0x%s"}}',
    ],
)  # fmt: skip
def test_an_ambiguous_registry_is_not_used(game: vgame.Game, tmp_path: Path, text: str) -> None:
    games = tmp_path / "games.json"
    text = text.replace("0x%s", 10**6 * "A").replace("%s", OTHER)
    games.write_text(text)
    with pytest.raises(VgameError, match="is no registry of games") as refused:
        record(games, game)
    assert len(str(refused.value)) < 400 and games.read_text() == text


def test_a_pipe_in_place_of_the_folder_is_named(game: vgame.Game, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(VgameError, match="cannot be written"):
        record(tmp_path / "pipe" / "games.json", game)


def test_a_working_directory_that_was_deleted_is_named(
    game: vgame.Game, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(VgameError, match="give an absolute path"):
        registry.check_room(Path("games.json"), 5)
    with pytest.raises(VgameError, match="give an absolute path"):
        record(Path("games.json"), game)


def test_a_game_is_registered_also_if_its_address_cannot_be_told(real_scene: Scene, tmp_path: Path) -> None:
    """Output to a full disk or a closed pipe."""
    wallet = real_scene.wallet()

    def lost(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reporter, "emit", lost)
        assert run(wallet, "--registry", tmp_path / "games.json").exit_code != 0
    assert len(read(tmp_path / "games.json")) == 1


def test_a_linked_registry_stays_a_link(game: vgame.Game, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    link, target = tmp_path / "games.json", tmp_path / "shared" / "games.json"
    link.symlink_to(target)
    with pytest.raises(VgameError, match="a link to a file that is not there"):
        record(link, game)
    target.write_text('{"5": {"game": "' + OTHER + '"}}')
    record(link, game)
    assert link.is_symlink() and set(read(target)) == {"5", str(game.chain.chain_id)}


def test_one_game_has_one_address_in_any_letters(game: vgame.Game, tmp_path: Path) -> None:
    games = tmp_path / "games.json"
    games.write_text(json.dumps({str(game.chain.chain_id): {"game": game.address.lower()}}))
    record(games, game)
    assert read(games)[str(game.chain.chain_id)]["game"] == game.address
