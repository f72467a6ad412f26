"""The page in a real browser, where one is installed: it draws, hovers, copies, complains not."""

import asyncio
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from sweeper.report.page import render
from tests.report.browser import find_browser, open_page
from tests.report.runs import RUNS

BROWSER = find_browser()
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium is installed"),
    pytest.mark.slow,
]


def write(folder: Path, text: str) -> Path:
    page = folder / "report.html"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("name", ["empty", "all_failed", "a_night", "two_objectives", "hostile"])
def test_every_figure_is_drawn_without_a_complaint(tmp_path: Path, name: str) -> None:
    run = RUNS[name]()
    page = write(tmp_path, render([run]))

    async def look() -> None:
        async with open_page(str(BROWSER), page, tmp_path / "profile") as tab:
            assert tab.complaints == []
            assert await tab.ask("document.title.includes('broken')") is (name == "hostile")
            assert await tab.ask("document.title !== 'broken'")
            assert (
                await tab.ask("document.querySelectorAll('.plot a[href], .plot img').length") == 0
            )

    asyncio.run(look())


@pytest.mark.parametrize(("width", "dark"), [(1200, True), (360, False)])
def test_no_figure_is_wider_than_the_screen(tmp_path: Path, width: int, dark: bool) -> None:
    page = write(tmp_path, render([RUNS["a_night"]()]))

    async def look() -> None:
        async with open_page(
            str(BROWSER), page, tmp_path / "profile", width=width, dark=dark
        ) as tab:
            assert tab.complaints == []
            assert await tab.ask("document.documentElement.scrollWidth") <= width
            paper = await tab.ask("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(15, 18, 22)") is dark

    asyncio.run(look())


def test_hover_shows_the_setting_and_the_button_copies_the_command(tmp_path: Path) -> None:
    run = RUNS["a_night"]()
    page = write(tmp_path, render([run]))
    middle = (
        "(r => [r.x + r.width / 2, r.y + r.height / 2])"
        "(document.querySelector('{}').getBoundingClientRect())"
    )
    figure = "#r0-by-launch-0"

    async def look() -> None:
        async with open_page(str(BROWSER), page, tmp_path / "profile") as tab:
            points = f"{figure} .scatterlayer .trace .points path"
            x, y = await tab.ask(middle.format(points))
            await tab.click(x - 40, y, press=False)
            await tab.click(x, y, press=False)
            await tab.until(f"document.querySelector('{figure} .hovertext') !== null")
            shown = await tab.ask(f"document.querySelector('{figure} .hovertext').textContent")
            assert "trial" in shown

            await tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
            await tab.click(*await tab.ask(middle.format("button[data-copy]")))
            await tab.until("document.getElementById('status').textContent === 'Copied'")
            assert await tab.ask("navigator.clipboard.readText()") == run.verdict.command

    asyncio.run(look())


def test_a_page_beside_its_script_works_from_a_disk(tmp_path: Path) -> None:
    (tmp_path / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    page = write(tmp_path, render([RUNS["a_night"]()], plotly="directory"))

    async def look() -> None:
        async with open_page(str(BROWSER), page, tmp_path / "profile") as tab:
            assert tab.complaints == []

    asyncio.run(look())
