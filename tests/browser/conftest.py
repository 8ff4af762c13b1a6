"""A real server under a real load, and a headless Chromium that may talk to nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.browser.load import Load
from tests.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# Little memory and few slots, so that requests wait, share, are preempted and evicted within seconds.
BLOCKS = 14
TIGHT = ("--threads", "1", "--max-num-seqs", "4", "--num-kv-blocks", str(BLOCKS), "--max-num-batched-tokens", "128")
VIEWS = ("requests", "request", "steps", "kv", "queue", "histograms", "playground", "system")

Open = Callable[..., "Page"]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server("smollm2:135m", *TIGHT)
    running.url()
    yield running
    running.kill()


@pytest.fixture(scope="session")
def load(server: Server) -> Iterator[Load]:
    with Load(server.url()) as busy:
        busy.until_finished(4)
        yield busy


def chromium() -> str:
    """Path of the browser: Debian's, or a Chrome."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    assert found is not None, "no Chromium found: run `make test-tools`"
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # Here: only `make test-browser` installs it, and `make test` collects these files too.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield launched
        launched.close()


class Guard:
    """Cuts a context off from every host but one, and keeps what went wrong in its pages."""

    def __init__(self, context: BrowserContext, host: str) -> None:
        self.foreign: list[str] = []
        self.errors: list[str] = []
        self._host = host
        context.route("**/*", self._route)
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))

    def _route(self, route: Any) -> None:
        parts = urlsplit(route.request.url)
        if parts.scheme in {"data", "blob"} or parts.netloc == self._host:
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def _on_console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)


@pytest.fixture
def guards() -> list[Guard]:
    return []


@pytest.fixture
def open_page(browser: Browser, guards: list[Guard], request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a view of the server at `url`. At the end nothing may have failed or gone elsewhere."""
    contexts = []

    def open_view(url: str, view: str = "requests", **options: Any) -> Page:
        options = {"viewport": {"width": 1360, "height": 820}, "locale": "en-US", "color_scheme": "light", **options}
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        guards.append(Guard(context, urlsplit(url).netloc))
        page = context.new_page()
        page.goto(f"{url}/#/{view}")
        return page

    yield open_view
    for context in contexts:
        context.close()
    assert not [url for guard in guards for url in guard.foreign]
    assert not [error for guard in guards for error in guard.errors]


@pytest.fixture
def view(open_page: Open, server: Server, load: Load) -> Open:
    """Opens a view of the server under load, once its data is there."""

    def open_view(name: str, **options: Any) -> Page:
        page = open_page(server.url(), name, **options)
        page.wait_for_selector("#status[data-phase=live]")
        page.wait_for_selector(f"#view.view-{name.partition('/')[0]} > *")
        return page

    return open_view
