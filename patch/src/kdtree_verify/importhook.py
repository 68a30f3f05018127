"""Runs an action on a module when it has been imported: at once if it is there already, once either way.

A process that never imports the module pays nothing and imports nothing for us.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Calls `action(module)` after the body of module `name` has run.

    An exception of the action ends the import (or this call) with it.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    finder = next((f for f in sys.meta_path if isinstance(f, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(action)


class _Finder(MetaPathFinder):
    """Lets the other finders find a module that is waited for, and puts its loader in ours."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Action]] = {}
        self._searching: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.waiting or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec


class _Loader(Loader):
    """The module's own loader, followed by the actions that wait for it."""

    def __init__(self, own: Any, finder: _Finder) -> None:
        self._own, self._finder = own, finder

    def __getattr__(self, name: str) -> Any:  # get_source, get_data, is_package: what inspect and runpy ask for
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        self._own.exec_module(module)
        for action in self._finder.waiting.pop(module.__name__, []):
            action(module)
