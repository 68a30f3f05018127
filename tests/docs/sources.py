"""What the sources say to people: refusals of this repository, and any text of another's, read without running them.

A text with values in it becomes a template: each value is one `…`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from documents import ROOT
from kdtree_verify import errors

HOLE = "…"


def _errors() -> dict[str, type[errors.KdtreeError]]:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, errors.KdtreeError)}


CODES = {name: int(kind.code) for name, kind in _errors().items()} | {"drift": 78, "Unhealthy": 1, "Problem": 1}
"""Calls whose first argument says what is wrong, and the exit code that they lead to."""
FOLDERS = ("docker", "patch/src/kdtree_verify")
# Handed on from where it is a literal: server.json's and a rank's own error.
_HANDED_ON = {"snapshot.error", "rank.error"}


def modules() -> list[Path]:
    """What runs at a user's: the entrypoint, the build's checks, the package."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "standin" not in path.parts)


@dataclass
class Refusal:
    """A refusal's or a finding's text.

    Attributes:
        places: Where it is said.
        kinds: The names of what is called to say it (CODES); none where it is only printed.
    """

    places: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)


def refusals() -> dict[str, Refusal]:
    """Every refusal of modules(), by its `what` as a template. Warnings, which stop nothing, are not among them."""
    found: dict[str, Refusal] = {}
    for path in modules():
        for line, text, kind in [*_raised(path), *_printed(path)]:
            refusal = found.setdefault(text, Refusal())
            refusal.places.append(f"{path.relative_to(ROOT)}:{line}")
            refusal.kinds |= {kind} - {""}
    return found


def _raised(path: Path) -> Iterator[tuple[int, str, str]]:
    tree = _tree(path)
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]:
        handed = function.args.args if isinstance(function, ast.FunctionDef) else []
        parameters = {argument.arg for argument in handed}
        for node in _own(function):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name not in CODES or not node.args:
                continue
            what = node.args[0]
            if isinstance(what, ast.Name) and what.id in parameters:
                continue  # a helper that hands on what its callers say
            if ast.unparse(what) in _HANDED_ON:
                continue
            texts = list(_texts(what, function, tree))
            assert texts, f"{path}:{node.lineno}: cannot read what {ast.unparse(node)} says"
            yield from ((node.lineno, text, name) for text in texts)


def _printed(path: Path) -> Iterator[tuple[int, str, str]]:
    """Lines with a Fix that are printed and not raised."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.JoinedStr):
            text = _template(node, _tree(path))
            what, found, _ = text.removeprefix("kdtree: ").partition(". Fix: ")
            if found and what not in ("", HOLE, f"{HOLE}: {HOLE}"):
                yield node.lineno, what.split(f": {HOLE}")[0], ""


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, or of a module, that are of no function inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, ast.FunctionDef):
            yield from _own(child)


def _texts(node: ast.expr, function: ast.AST, tree: ast.Module) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, function, tree)
        yield from _texts(node.orelse, function, tree)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value, function, tree)
    elif isinstance(node, ast.Name):
        for assigned in ast.walk(function):
            if isinstance(assigned, ast.Assign) and any(ast.unparse(t) == node.id for t in assigned.targets):
                yield from _texts(assigned.value, function, tree)
    elif isinstance(node, ast.BinOp):  # texts put together
        for left in _texts(node.left, function, tree):
            for right in _texts(node.right, function, tree):
                yield left + right
    elif isinstance(node, ast.Constant | ast.JoinedStr):
        yield _template(node, tree)


def _template(node: ast.Constant | ast.JoinedStr, tree: ast.Module) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = []
    for part in node.values:
        value = part.value if isinstance(part, ast.FormattedValue) else part
        constant = value.value if isinstance(value, ast.Constant) else _constants(tree).get(ast.unparse(value))
        parts.append(HOLE if constant is None else str(constant))
    return re.sub(f"{HOLE}+", HOLE, "".join(parts))


def _constants(tree: ast.Module) -> dict[str, str]:
    """The module's own constants that are a text or a number."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    return {ast.unparse(target): str(node.value.value) for node in assigned for target in node.targets}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def texts_of(path: Path) -> list[str]:
    """Every text in a Python file, neighbours joined as the parser joins them."""
    nodes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.Constant | ast.JoinedStr)]
    return [_template(node, _tree(path)) for node in nodes if isinstance(getattr(node, "value", ""), str)]


def says(path: Path, quoted: str) -> bool:
    """Whether one text in the file holds what is quoted, in which `…` stands for anything."""
    pattern = re.compile(".*".join(map(re.escape, quoted.split(HOLE))), re.S)
    return any(pattern.search(text) for text in texts_of(path))


def library_statuses() -> list[str]:
    """What the kernel libraries can answer a call with, in words."""
    text = (ROOT / "kernel" / "common" / "status.cpp").read_text(encoding="utf-8")
    return [found for found in re.findall(r'return "([^"]+)"', text) if found != "ok"]
