"""The page as a whole: languages, themes, the keyboard, the key, a lost connection."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import VIEWS, Open
from tests.browser.load import get_json
from tests.e2e.conftest import MICRO
from tests.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

CHINESE = re.compile(r"[\u4e00-\u9fff]")
KEY = "a-secret-key"
FOCUSED = "(e => e.tagName + ' ' + (e.dataset.view ?? e.textContent))(document.activeElement)"


def brightness(page: Page) -> float:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def go(page: Page, name: str) -> None:
    page.evaluate("name => { location.hash = `#/${name}`; }", name)
    page.wait_for_selector(f"#view.view-{name} > *")


@pytest.mark.parametrize(
    ("locale", "scheme", "is_chinese"), [("en-US", "light", False), ("zh-CN", "dark", True), ("de-DE", "dark", False)]
)
def test_every_view_follows_the_browsers_language_and_colours(
    view: Open, locale: str, scheme: str, is_chinese: bool
) -> None:
    page = view("requests", locale=locale, color_scheme=scheme)
    assert (brightness(page) > 200) is (scheme == "light")
    assert (brightness(page) < 60) is (scheme == "dark")
    for name in VIEWS:
        go(page, name)
        page.wait_for_timeout(300)
        text = page.inner_text("#view") + page.inner_text("#top nav")
        assert bool(CHINESE.search(text)) is is_chinese, name
        assert not re.search(r"undefined|NaN|\[object", text), name


def test_language_and_theme_can_be_chosen_and_are_remembered(view: Open, server: Server) -> None:
    page = view("requests")
    page.click("#language")
    assert CHINESE.search(page.inner_text("#top nav"))
    assert page.get_attribute("html", "lang") == "zh-CN"
    page.click("#theme")
    page.click("#theme")
    assert brightness(page) < 60
    page.goto(f"{server.url()}/?again#/queue")
    page.wait_for_selector("#status[data-phase=live]")
    assert CHINESE.search(page.inner_text("#view"))
    assert brightness(page) < 60


def test_the_keyboard_reaches_everything(view: Open) -> None:
    page = view("requests")
    page.wait_for_selector("tbody tr")
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
        if reached[-1].startswith("TR "):
            break
    names = [text.split(" ", 1)[1] for text in reached]
    assert set(VIEWS) <= set(names)
    assert {"Queue", "TTFT", "Life", "Freeze", "30 s", "中文"} <= set(names)
    assert reached[-1].startswith("TR ")
    page.keyboard.press("ArrowDown")
    key = page.evaluate("document.activeElement.dataset.id")
    page.keyboard.press("Space")
    page.wait_for_selector(f"tr.pinned[data-id='{key}']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#view.view-request h1")
    assert key in page.inner_text("#view")
    for digit, name in enumerate(VIEWS, 1):
        page.keyboard.press("Escape")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press(str(digit))
        page.wait_for_selector(f"#view.view-{name}")


def test_tab_never_gets_stuck_in_a_view(view: Open) -> None:
    """From the top of the page Tab comes round to it again, through whatever the view holds."""
    page = view("requests")
    for name in VIEWS:
        go(page, name)
        page.focus("#top nav a >> nth=0")
        for _ in range(250):
            page.keyboard.press("Tab")
            if page.evaluate("[document.body, document.querySelector('nav a')].includes(document.activeElement)"):
                break
        else:
            raise AssertionError(f"{name} keeps the focus")


def test_a_narrow_window_scrolls_only_its_tables(view: Open) -> None:
    page = view("requests", viewport={"width": 480, "height": 800})
    for name in VIEWS:
        go(page, name)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 480, name
        assert page.evaluate("document.querySelector('#view').scrollWidth") <= 480, name


@pytest.fixture(scope="module")
def locked_server() -> Server:
    running = Server(str(MICRO), "--served-model-name", "micro-secret", "--api-key", KEY)
    running.url()
    yield running  # type: ignore[misc]
    running.kill()


def test_without_the_key_there_is_a_shell_and_nothing_to_read(
    open_page: Open, browser: Browser, locked_server: Server
) -> None:
    context = browser.new_context()
    page = context.new_page()
    bodies: list[tuple[str, int]] = []
    page.on("response", lambda reply: bodies.append((reply.url.removeprefix(locked_server.url()), reply.status)))
    page.goto(locked_server.url() + "/#/system")
    page.wait_for_selector("#key")
    assert "micro-secret" not in page.content()
    assert all(status == 401 for path, status in bodies if path != "/" and not path.startswith("/static/"))
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("text=The server refused that key")
    assert "micro-secret" not in page.content()
    page.fill("#key", KEY)
    page.press("#key", "Enter")
    page.wait_for_selector("text=micro-secret")
    assert KEY not in page.content()
    assert page.evaluate("Object.keys(localStorage).length") == 0
    page.goto(locked_server.url() + "/?again#/system")
    page.wait_for_selector("text=micro-secret")
    assert get_json(f"{locked_server.url()}/v1/system", KEY)["model"] == "micro-secret"
    context.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_lost_connection_is_said_and_comes_back(browser: Browser) -> None:
    port = str(free_port())
    first = Server(str(MICRO), "--port", port)
    context = browser.new_context(locale="en-US")
    page = context.new_page()
    page.goto(first.url() + "/#/system")
    page.wait_for_selector("#status[data-phase=live]")
    first.kill()
    page.wait_for_selector("#banner:has-text('Connection lost')")
    page.wait_for_selector("#view[data-stale]")
    assert "Model" in page.inner_text("#view")
    second = Server(str(MICRO), "--port", port)
    second.url()
    page.click("#banner button")
    page.wait_for_selector("#status[data-phase=live]")
    assert page.is_hidden("#banner")
    context.close()
    second.kill()
