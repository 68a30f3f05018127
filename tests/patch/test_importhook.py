"""Actions run on a module once it is imported, whoever comes first."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdtree_verify import importhook
from kdtree_verify.importhook import when_imported

NAME = "kdtree_test_package.inner"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "kdtree_test_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text("RUNS = globals().get('RUNS', 0) + 1\ndef f():\n    return 1\n")
    (folder / "broken.py").write_text("raise ValueError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.startswith("kdtree_test_package")]:
        del sys.modules[name]


def test_before_the_import() -> None:
    seen = []
    when_imported(NAME, seen.append)
    assert seen == []
    assert NAME not in sys.modules
    module = importlib.import_module(NAME)
    assert seen == [module]
    assert module.RUNS == 1


def test_after_the_import() -> None:
    module = importlib.import_module(NAME)
    seen = []
    when_imported(NAME, seen.append)
    assert seen == [module]


def test_several_actions_run_in_order_and_once() -> None:
    seen = []
    when_imported(NAME, lambda module: seen.append("first"))
    when_imported(NAME, lambda module: seen.append("second"))
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    importlib.reload(sys.modules[NAME])
    assert seen == ["first", "second"]
    assert sum(isinstance(finder, importhook._Finder) for finder in sys.meta_path) == 1


def test_the_action_sees_a_whole_module_with_its_own_loader() -> None:
    def action(module) -> None:
        assert module.f() == 1
        assert inspect.getsource(module.f).startswith("def f")
        assert type(module.__loader__) is type(module.__spec__.loader) is type(pytest.__loader__)

    when_imported(NAME, action)
    importlib.import_module(NAME)


def test_an_exit_ends_the_import() -> None:
    def refuse(module) -> None:
        raise SystemExit(78)

    when_imported(NAME, refuse)
    with pytest.raises(SystemExit):
        importlib.import_module(NAME)
    assert NAME not in sys.modules


def test_a_module_that_fails_or_is_missing_fails_as_ever() -> None:
    seen = []
    when_imported("kdtree_test_package.broken", seen.append)
    when_imported("kdtree_test_package.missing", seen.append)
    with pytest.raises(ValueError, match="broken"):
        importlib.import_module("kdtree_test_package.broken")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kdtree_test_package.missing")
    assert seen == []
