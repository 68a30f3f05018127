"""Links between the repository's Markdown files lead somewhere, anchors too."""

from __future__ import annotations

from pathlib import Path

import pytest

import documents


def broken(page: Path) -> list[str]:
    """The page's links that lead nowhere."""
    found = []
    for link in documents.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in documents.anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", documents.pages(), ids=lambda page: str(page.relative_to(documents.ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# A `title` of [two](x) words\n\n# Twice\n\n## Twice\n")
    page.write_text(
        "# Here\n[a](other.md) [b](gone.md) [c](other.md#a-title-of-two-words) [d](other.md#gone) [e](#here) [f](#no)\n"
        "[g](other.md#twice-1) [h](https://example.org/gone) `[i](gone.md)`\n```text\n[j](gone.md)\n```\n"
    )
    assert broken(page) == ["gone.md", "other.md#gone", "#no"]


def test_readme_names_every_operating_page() -> None:
    linked = set(documents.links(documents.ROOT / "README.md"))
    assert {f"docs/operating/{page.name}" for page in documents.operating_pages()} <= linked
