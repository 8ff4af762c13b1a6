"""Takes the pictures of docs/images: each view of the page in front of a real server under load.

python -m tests.browser.screenshots
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from tests.browser.conftest import TIGHT, VIEWS, chromium
from tests.browser.load import Load, get_json
from tests.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).parents[2] / "docs" / "images"
BUSY_SECONDS = 40.0  # until the bars of the requests fill the time axis


def prepare(page: Page, name: str, url: str) -> None:
    """Brings a view to the state that its picture shows."""
    if name == "request":
        records = get_json(f"{url}/v1/requests?state=finished")["data"]
        chosen = max(
            records, key=lambda each: (len(each["preemptions"]), each["cached_tokens"], each["completion_tokens"])
        )
        page.goto(f"{url}/#/request/{chosen['request_id']}")
        page.wait_for_selector("canvas.picker")
    elif name == "playground":
        page.fill("textarea", "Name three rivers of Europe.")
        page.press("textarea", "Enter")
        page.wait_for_selector(".message.assistant a[href*='/steps']", timeout=120_000)
        page.click("text=Surprise")
        page.locator(".token").nth(3).hover()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    server = Server("smollm2:135m", *TIGHT)
    try:
        url = server.url()
        with Load(url), sync_playwright() as playwright:
            time.sleep(BUSY_SECONDS)
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1280, "height": 760}, locale="en-US", color_scheme="light")
            for name in VIEWS:
                page.goto(f"{url}/#/{name}")
                page.wait_for_selector(f"#view.view-{name} > *")
                prepare(page, name, url)
                page.wait_for_timeout(1500)
                page.screenshot(path=IMAGES / f"{name}.png")
            page.click("[data-view=request]")
            page.click("[data-action=walk]")
            page.wait_for_selector(".walk")
            for _ in range(4):
                page.press(".walk", "ArrowRight")
            page.screenshot(path=IMAGES / "step-through.png")
            browser.close()
    finally:
        server.kill()


if __name__ == "__main__":
    main()
