"""Socket folders are found and removed, wherever they lie."""

from pathlib import Path

from varuna_runtime.agent import sockets


def test_a_folder_outside_a_deep_home_is_found_by_its_link_and_removed(tmp_path: Path) -> None:
    home, run = tmp_path / "home", tmp_path / "temp" / "varuna-0123"
    home.mkdir()
    sockets.make(home, run)
    (run / "r0.sock").touch()
    sockets.remove_all(home)
    assert not run.exists()
    assert not (home / "run").exists()


def test_a_new_incarnation_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    sockets.make(home, tmp_path / "varuna-old")
    sockets.make(home, home / "run" / "new")
    assert not (tmp_path / "varuna-old").exists()
    assert (home / "run" / "new").stat().st_mode & 0o777 == 0o700


def test_a_link_to_something_else_costs_only_the_link(tmp_path: Path) -> None:
    (tmp_path / "home" / "run").mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "home" / "run" / "x").symlink_to(precious)
    sockets.remove_all(tmp_path / "home")
    assert precious.is_dir()
    assert not (tmp_path / "home" / "run").exists()
