"""A walk through every page in Chromium, wide and narrow: no error, no other host, readable, usable by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.cli.console.server import ConsoleServer
from tests.cli.console.chromium import WIDTHS, Scheme, chromium, open_page
from tests.cli.console.scene import ORDERS, PAYMENTS
from tests.cli.console.walk import CHANGE_PAGES, PAGES

pytestmark = [
    pytest.mark.needs("Chromium"),
]
WAIT_MS = 90_000
expect.set_options(timeout=WAIT_MS)
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
PALE_TEXT = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3)
      .map((part) => part / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const pale = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg, option, .hidden")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) pale.add(element.tagName + "." + element.className);
  }
  return [...pale];
}"""


class Watched:
    """A page, with what must not happen on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self._url = page, url.rstrip("/")
        self.problems: list[str] = []
        host = urlsplit(url).netloc
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog {dialog.message}"))
        page.on(
            "request", lambda asked: self.problems.append(asked.url) if urlsplit(asked.url).netloc != host else None
        )

    def go(self, path: str) -> None:
        answer = self.page.goto(self._url + path)
        assert answer is not None
        assert answer.status == 200, path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize(
    ("width", "scheme"), [(WIDTHS[0], SCHEMES[0]), pytest.param(WIDTHS[1], SCHEMES[1], marks=pytest.mark.slow)]
)
def test_every_page(
    browser: Browser, reading: ConsoleServer, changing: ConsoleServer, width: int, scheme: Scheme
) -> None:
    for console, pages in ((reading, PAGES), (changing, CHANGE_PAGES)):
        watched = Watched(open_page(browser, width, scheme), console.url)
        for name, path in pages.items():
            watched.go(path)
            assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
            assert watched.page.evaluate(PALE_TEXT) == [], (name, scheme)
            assert watched.page.locator("h1").count() == 1, name
            unnamed = "input:not([type=hidden]), select, textarea"
            labels = watched.page.locator(unnamed).evaluate_all("all => all.every((each) => each.labels.length > 0)")
            assert labels, f"a field without a label: {name}"
        assert watched.problems == []
        watched.page.context.close()


HIDDEN_CELLS = """() => [...document.querySelectorAll(".cards :is(td, tbody th)")].filter((cell) => {
  const box = cell.getBoundingClientRect();
  return box.width && (box.left < 0 || box.right > innerWidth || cell.scrollWidth > cell.clientWidth + 1);
}).map((cell) => cell.textContent)"""


def test_a_telephone_shows_values_and_high_watermarks(browser: Browser, reading: ConsoleServer) -> None:
    """Without scrolling to the side: a row is a card."""
    watched = Watched(open_page(browser, 360, "light"), reading.url)
    page = watched.page
    for path, label in ((f"/topic?name={ORDERS}", "High watermark"), (f"/configs?kind=topic&name={ORDERS}", "Value")):
        watched.go(path)
        assert page.locator(f'[data-label="{label}"]').count() >= 3
        assert page.locator(f'[data-label="{label}"]').first.bounding_box()
        assert page.evaluate(HIDDEN_CELLS) == [], path
    assert watched.problems == []
    page.context.close()


def test_by_keyboard_alone(browser: Browser, reading: ConsoleServer) -> None:
    watched = Watched(open_page(browser, 360, "light"), reading.url)
    page = watched.page
    watched.go("/topics")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0, "visible once it has the focus"
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Name contains")).to_be_focused()
    page.keyboard.type(PAYMENTS[:3])
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name=ORDERS, exact=True)).to_have_count(0)
    box = page.get_by_role("region", name="Topics")
    while not box.evaluate("element => element === document.activeElement"):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowRight")
    while not box.evaluate("element => element.scrollLeft"):  # it scrolls smoothly
        page.evaluate("() => new Promise(requestAnimationFrame)")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(PAYMENTS)
    assert watched.problems == []
    page.context.close()


@pytest.mark.slow
def test_records_are_walked_through(browser: Browser, reading: ConsoleServer) -> None:
    watched = Watched(open_page(browser, 1280, "light"), reading.url)
    page = watched.page
    watched.go(f"/records?topic={ORDERS}")
    page.get_by_label("From").select_option("earliest")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(25)
    page.get_by_role("link", name="Newer").first.click()
    expect(page.locator("tbody tr")).to_have_count(15)
    expect(page.locator("tbody th").first).to_have_text("25")
    shared = page.url
    page.get_by_role("link", name="39", exact=True).click()
    expect(page.get_by_role("region", name="Headers")).to_contain_text("shop")
    expect(page.locator("pre.json")).to_contain_text('"customer": "customer-15"')
    page.goto(shared)
    expect(page.locator("tbody th").first).to_have_text("25")
    assert watched.problems == []
    page.context.close()


@pytest.mark.slow
def test_charts_draw_themselves_again(browser: Browser, reading: ConsoleServer) -> None:
    watched = Watched(open_page(browser, 1280, "dark"), reading.url)
    page = watched.page
    page.clock.install()
    watched.go("/charts?minutes=15")
    with page.expect_response(lambda answer: "/charts/live?minutes=15" in answer.url) as live:
        page.clock.fast_forward(6_000)
    assert live.value.status == 200
    expect(page.locator("figure")).to_have_count(5)
    assert watched.problems == []
    page.context.close()


def test_a_change_is_confirmed(browser: Browser, changing: ConsoleServer) -> None:
    watched = Watched(open_page(browser, 360, "dark"), changing.url)
    page = watched.page
    watched.go("/topics")
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_label("Partitions").fill("2")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("main")).to_contain_text("Topic by-hand is created with 2 partitions.")
    page.get_by_role("button", name="Create a topic").click()
    expect(page.locator("h1")).to_have_text("by-hand")
    page.get_by_role("button", name="Continue").last.click()
    page.get_by_label("Type by-hand to confirm").fill("by-hand")
    page.get_by_role("button", name="Delete a topic").click()
    expect(page.locator("h1")).to_have_text("Topics")
    assert watched.problems == []
    page.context.close()
