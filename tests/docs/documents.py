"""The repository's Markdown as these tests read it: fenced blocks, commands, headings, links, cells of tables."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPERATING = ROOT / "docs" / "operating"
_GENERATED = {"build", "node_modules"}


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Its file.
        line: Of the opening fence, from 1.
        info: The words behind the fence: a kind, then names or `name=value`.
        text: What is between the fences.
    """

    page: Path
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def kind(self) -> str:
        return self.info[0] if self.info else ""

    def value(self, name: str) -> str | None:
        """What the info string gives `name`; None where it does not."""
        return dict(word.split("=", 1) for word in self.info[1:] if "=" in word).get(name)

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def pages() -> list[Path]:
    """Every Markdown file of the repository, generated ones aside."""
    found = []
    # What is generated is not gone into: a running engine's containers come and go there.
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if name not in _GENERATED and not name.startswith(".")]
        found += [Path(folder, name) for name in names if name.endswith(".md") and not name.startswith(".")]
    return sorted(found)


def operating_pages() -> list[Path]:
    return sorted(OPERATING.glob("*.md"))


def blocks(page: Path) -> list[Block]:
    """The page's fenced blocks, in order. A fence that is not closed is an error."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.lstrip().startswith("```"):
            inside.append(line)
        elif opened is None:
            opened, inside = (number, line.strip().strip("`")), []
        else:
            found.append(Block(page, opened[0], tuple(opened[1].split()), "\n".join(inside)))
            opened = None
    if opened is not None:
        raise ValueError(f"{page}: the fence of line {opened[0]} is not closed")
    return found


def commands(block: Block) -> list[list[str]]:
    """The block's commands as words: lines joined at a trailing backslash, comments dropped, split at && and ;."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if word in ("&&", ";", "|"):
                found.append(words)
                words = []
            else:
                words.append(word)
        found.append(words)
    return [words for words in found if words]


def prose(page: Path) -> str:
    """The page without what its fences hold, line for line."""
    inside, kept = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = line.lstrip().startswith("```")
        kept.append("" if inside or fence else line)
        inside ^= fence
    return "\n".join(kept)


def inline_code(page: Path) -> Iterator[str]:
    """What stands between single backquotes in the page's prose."""
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def section(page: Path, title: str) -> str:
    """The prose below a heading, up to the next of the same or a higher level."""
    lines = prose(page).splitlines()
    for start, line in enumerate(lines):
        if re.fullmatch(rf"#+ {re.escape(title)}", line):
            level = len(line.split()[0])
            ends = (n for n in range(start + 1, len(lines)) if re.match(rf"#{{1,{level}}} ", lines[n]))
            return "\n".join(lines[start + 1 : next(ends, len(lines))])
    raise ValueError(f"{page} has no section {title!r}")


def rows(table: str) -> list[list[str]]:
    """Cells of the tables in a text, row by row; heads and rules are left out."""
    found: list[list[str]] = []
    lines = table.splitlines()
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("|") and not _is_rule(line) and not _is_rule(following):
            found.append([cell.strip() for cell in line.strip().split("|")[1:-1]])
    return found


def options(program: str) -> set[str]:
    """What a program's parser takes, by its --help: the list, and not what its author says of it."""
    told = subprocess.run([ROOT / program, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z][a-z-]*", told.split("\noptions:\n")[1]))


def _is_rule(line: str) -> bool:
    return bool(re.fullmatch(r"\|[-| :]+\|", line))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the page's headings."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", prose(page), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        base = slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


def links(page: Path) -> list[str]:
    """Targets of the page's links and images that are not on the web."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", target)]
