"""A browser for all tests of pages; without one they are skipped."""

from collections.abc import Iterator

import pytest

from tests.cli.conftest import hasfl as hasfl
from tests.report.browser import Tab, chromium, installed


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    if installed() is None:
        pytest.skip("no Chromium is installed: pages are looked at in a real browser")
    with chromium(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Tab:
    """The browser, with an empty list of faults."""
    browser.forget()
    return browser
