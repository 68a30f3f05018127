"""The page in a real browser: it asks nobody for anything, complains of nothing, fits a phone, and its plots plot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import browser
import made
from kdtree_verify.config import from_environment
from kdtree_verify.verdict import command, page
from kdtree_verify.verdict.judge import Verdict

pytestmark = pytest.mark.skipif(browser.missing() is not None, reason=browser.missing() or "")
WIDTHS = pytest.mark.parametrize("width", [390, 1280])
NAMES = ("justified", "not yet", "no", "empty", "hostile")

# Text that a model's name, a host's and a file's must not become anything but: markup, attributes, a style, a script.
HOSTILE = "</p><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">'\"&<b>"


def documents(name: str) -> list[made.Document]:
    whole = made.evidence()
    if name == "not yet":
        cells = [
            made.cell(start, start * 2 or 1024, 6 * steps, batch)
            for start, steps in ((0, 9000), (1024, 7000), (2048, 900), (65536, 40), (131072, 9))
            for batch in ((1, 2), (2, 4), (4, 8), (64, None))
        ]
        whole["rank"]["shapes"] = cells
        whole["rank"]["layers"] += [made.layer(0, "draft"), made.layer(1, "draft")]
        other = made.changed(made.evidence(start=made.START - 90_000), setup__library="77" * 32)
        return [other, whole | {"active_seconds": 60.0}]
    if name == "no":
        whole["rank"]["layers"] = [made.layer(number) for number in range(61)]
        whole["rank"]["layers"][7].update(exceeded_calls=3, worst_rel_l2=0.71)
        whole["rank"]["layers"][8].update(nonfinite=3, worst_rel_l2=float("nan"))
    if name == "empty":
        whole["rank"].update(layers=[], shapes=[], yardstick=None)
        whole.update(points=[], layers=[])
    if name == "hostile":
        whole["server"].update(run=HOSTILE, host=HOSTILE, model=HOSTILE)
        whole["setup"].update(model=HOSTILE * 8, device=HOSTILE, sglang=HOSTILE)
        whole["rank"].update(state="failed", reason=HOSTILE)
        whole["rank"]["rank"]["name"] = "dp0-pp0-tp0"
        whole["rank"]["counters"]["declined"] = {HOSTILE: 9}
        whole["rank"]["yardstick"]["case"] = HOSTILE
    return [whole]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    with browser.started(tmp_path_factory.mktemp("browser")) as found:
        found.open(Path(__file__), 800)  # what the browser's own first page asks for is not the report's
        found.requests()
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page for each name."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kdtree_verify.verdict.installed.versions", lambda: made.rank_document()["versions"])
        for name in NAMES:
            folder = made.write(tmp_path_factory.mktemp("evidence"), *documents(name))
            report = command.make(folder, from_environment({"KDTREE_LIBRARY_DIR": str(folder)}))
            found[name] = folder / "report.html"
            found[name].write_text(page.page(report), encoding="utf-8")
    return found


@WIDTHS
@pytest.mark.parametrize("name", NAMES)
def test_it_asks_nobody_and_complains_of_nothing(
    chromium: browser.Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.open(pages[name], width)
    assert chromium.requests() == [pages[name].as_uri()]
    assert chromium.complaints() == []


@WIDTHS
@pytest.mark.parametrize(
    ("name", "verdict"), [("justified", Verdict.JUSTIFIED), ("not yet", Verdict.NOT_YET), ("no", Verdict.NO)]
)
def test_the_verdict_is_seen_first(
    chromium: browser.Browser, pages: dict[str, Path], name: str, verdict: Verdict, width: int
) -> None:
    chromium.open(pages[name], width)
    text, top, bottom, left, right = chromium.run(
        "const e = document.querySelector('.verdict .word'), b = e.getBoundingClientRect();"
        "return [e.innerText, b.top, b.bottom, b.left, b.right]"
    )
    assert text.split(maxsplit=1)[1] == verdict
    assert 0 <= top < bottom < 400
    assert 0 <= left < right <= width
    assert chromium.run("return document.title") == f"KDTree: {verdict}"


@WIDTHS
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wider_than_the_window(
    chromium: browser.Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.open(pages[name], width)
    wide = chromium.run(
        "return [document.documentElement.scrollWidth, ...[...document.querySelectorAll('body *')]"
        # A table may be wider than its frame, which scrolls.
        ".filter(e => !e.closest('.scroll table') && e.getBoundingClientRect().right > innerWidth + 0.5)"
        ".map(e => e.outerHTML.slice(0, 120))]"
    )
    assert wide == [width]


@WIDTHS
@pytest.mark.parametrize("name", ["justified", "not yet", "no"])
def test_plots_have_extent_and_their_points_lie_within(
    chromium: browser.Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    chromium.open(pages[name], width)
    plots: list[dict[str, Any]] = chromium.run(
        """
        const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
        const mid = b => [(b[0] + b[2]) / 2, (b[1] + b[3]) / 2];
        return [...document.querySelectorAll('svg.chart')].map(s => ({
          title: s.querySelector('title').textContent, chart: box(s), area: box(s.querySelector('.area')),
          points: [...s.querySelectorAll('.point')].map(p => mid(box(p))),
          texts: [...s.querySelectorAll('text')].map(box),
          lines: [...s.querySelectorAll('.reference')].map(box),
          scale: s.getScreenCTM().a, font: parseFloat(getComputedStyle(s.querySelector('text')).fontSize)}));
        """
    )
    titles = [plot["title"] for plot in plots]
    assert titles[:3] == ["Difference per layer", "Difference over time", "Difference over prefix length"]
    assert titles[3].startswith("Time of one layer's call, batch ")
    for plot in plots:
        left, top, right, bottom = plot["area"]
        assert right - left > 200, plot["title"]
        assert bottom - top > 100, plot["title"]
        assert len(plot["points"]) >= 3, plot["title"]
        for x, y in plot["points"]:
            assert left - 1 <= x <= right + 1, plot["title"]
            assert top - 1 <= y <= bottom + 1, plot["title"]
        assert len({y for _, y in plot["points"]}) > 1, "all points lie on one line"
        for box in plot["texts"]:
            assert box[0] >= plot["chart"][0] - 1, "a label is cut off"
            assert box[2] <= plot["chart"][2] + 1, "a label is cut off"
            assert box[3] <= plot["chart"][3] + 1, "a label is cut off"
        assert plot["font"] * plot["scale"] > 9, "too small to read"
    assert len(plots[0]["lines"]) == 3, "the bound, and both kernels against float64"


def test_labels_of_an_axis_do_not_lie_on_each_other(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["no"], 390)
    crossing = chromium.run(
        """
        const found = [];
        for (const s of document.querySelectorAll('svg.chart')) {
          const boxes = [...s.querySelectorAll('text')].map(t => [t.getBoundingClientRect(), t.textContent]);
          for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
            const [a, b] = [boxes[i][0], boxes[j][0]];
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
                Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) found.push([boxes[i][1], boxes[j][1]]);
          }
        }
        return found;
        """
    )
    assert crossing == []


def test_a_hostile_name_is_a_name(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["hostile"])
    assert chromium.run("return document.title") == "KDTree: no"
    assert chromium.run("return document.querySelectorAll('script, img, iframe, link:not([rel=icon])').length") == 0
    assert HOSTILE in chromium.run("return document.querySelector('main').textContent")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_by_day_and_by_night_text_is_told_from_its_ground(
    chromium: browser.Browser, pages: dict[str, Path], scheme: str
) -> None:
    """WCAG's contrast of 4.5 for all text of the page."""
    chromium.open(pages["not yet"], 1280, prefers_color_scheme=scheme)
    low = chromium.run(
        """
        const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
            .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
          return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
          if (!/, 0\\)$|transparent/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
        return [...document.querySelectorAll('main *')].filter(e => [...e.childNodes].some(n => n.nodeType == 3 &&
          n.textContent.trim())).filter(e => !e.closest('title, desc')).map(e => {
            const s = getComputedStyle(e), c = e.closest('svg') ? s.fill : s.color;
            const [a, b] = [light(c), light(ground(e))].sort((x, y) => y - x);
            return [(a + 0.05) / (b + 0.05), e.textContent.slice(0, 40)]; }).filter(f => f[0] < 4.5);
        """
    )
    assert low == []


def test_pictures_have_words(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    """Every plot has a title and a description; what is only for the eye is hidden from a reader of screens."""
    chromium.open(pages["justified"])
    silent = chromium.run(
        """
        return [...document.querySelectorAll('svg')].filter(s => s.getAttribute('aria-hidden') != 'true' && !(
          s.getAttribute('role') == 'img' && s.getAttribute('aria-labelledby').split(' ').every(
            id => document.getElementById(id) && document.getElementById(id).textContent.length > 10))).length
          + [...document.querySelectorAll('table')].filter(t => !t.ariaLabel || !t.querySelector('th[scope]')).length;
        """
    )
    assert silent == 0
    levels = chromium.run("return [...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_it_can_be_printed(chromium: browser.Browser, pages: dict[str, Path]) -> None:
    chromium.open(pages["not yet"], 1280, prefers_color_scheme="dark")
    printed = chromium.pdf()
    assert 1 <= printed.count(b"/Type /Page\n") <= 6
