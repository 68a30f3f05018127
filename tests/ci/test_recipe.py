"""Which commit an image says that it is of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from imaging import recipe
from imaging.errors import ImageError

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "with ünicode and spaces"
    (folder / "patch" / "src").mkdir(parents=True)
    (folder / "patch" / "src" / "a.py").write_text("a = 1\n")
    (folder / ".gitignore").write_text("/patch/build/\n")
    git(tmp_path, "init", "--quiet", folder.name)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_a_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    git(checkout, "checkout", "--quiet", "--detach")
    (checkout / "notes").write_text("the build is not given them")
    (checkout / "patch" / ".a.py.swp").touch()
    (checkout / "patch" / "build").mkdir()
    (checkout / "patch" / "build" / "a.py").touch()
    assert recipe.revision(checkout) == commit


@pytest.mark.parametrize("name", ["patch/src/a.py", "patch/src/b.py", "docker/x.py"])
def test_files_that_the_commit_does_not_have(checkout: Path, name: str) -> None:
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("b = 1\n")
    assert recipe.revision(checkout) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_a_checkout_without_git_in_another_repository(checkout: Path) -> None:
    with pytest.raises(ImageError, match=r"no git checkout of its own: it is patch/ of another. Fix: "):
        recipe.revision(checkout / "patch")


def test_a_checkout_without_git(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="git rev-parse HEAD failed"):
        recipe.revision(tmp_path)


def test_what_pip_leaves_does_not_reach_the_build() -> None:
    assert "patch/build" in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
