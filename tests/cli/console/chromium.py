"""The distribution's Chromium for tests and pictures, without a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

from tests.tools import find_chromium

WIDTHS = (1280, 360)
Scheme = Literal["light", "dark"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Only one at a time: its loop runs in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


def open_page(browser: Browser, width: int, scheme: Scheme) -> Page:
    """Open the page in a context without cookies."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, locale="en-GB")
    return context.new_page()
