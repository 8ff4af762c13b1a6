"""Each of the eight views in a browser, fed by a real server under load, asserted on by what it says."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import BLOCKS, Guard, Open
from tests.browser.load import get_json
from tests.servers import Server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

STATIONS = {
    "receive",
    "render",
    "tokenize",
    "send",
    "queue",
    "prefix",
    "prefill",
    "sample",
    "return",
    "stream",
    "decode",
}


def number(text: str) -> float:
    """The milliseconds that a cell shows."""
    value, unit = re.match(r"-?([\d.]+) (ms|s)", text).groups()  # type: ignore[union-attr]
    return float(value) * (1000 if unit == "s" else 1)


def finished(server: Server, *, at_least: int = 20) -> dict[str, Any]:
    """The full record of a finished chat request."""
    for summary in get_json(f"{server.url()}/v1/requests?state=finished")["data"]:
        if summary["completion_tokens"] >= at_least and summary["endpoint"] == "/v1/chat/completions":
            return get_json(f"{server.url()}/v1/requests/{summary['request_id']}")  # type: ignore[no-any-return]
    raise AssertionError("no request has finished")


def until(page: Page, script: str, argument: object = None) -> None:
    """Asks from here: the page's own policy forbids the script that playwright would leave in it to poll."""
    deadline = time.monotonic() + 60
    while not page.evaluate(script, argument):
        assert time.monotonic() < deadline, f"never came true: {script}"
        page.wait_for_timeout(50)


def press(place: Locator, *keys: str) -> None:
    for key in keys:
        place.press(key)


def test_requests_are_rows_with_a_growing_bar(view: Open) -> None:
    page = view("requests")
    until(page, "document.querySelectorAll('tbody tr').length >= 5")
    live = page.locator("tbody tr", has=page.locator("[data-state=running]")).first
    key = live.get_attribute("data-id")
    bar = f"tbody tr[data-id='{key}'] svg.bar"
    classes = page.eval_on_selector(
        bar, "bar => [...bar.querySelectorAll('rect')].map(each => each.getAttribute('class'))"
    )
    assert {"f-receive", "f-queue", "f-prefill"} <= set(classes)
    length = "bar => bar.record.completion_tokens + (bar.record.state === 'running' ? 0 : 1000)"
    before = page.eval_on_selector(bar, length)
    until(page, f'before => ({length})(document.querySelector("{bar}")) > before', before)
    assert "requests" in page.inner_text(".summary")
    assert "now" in page.text_content("svg.axis")


def test_requests_are_filtered_sorted_and_pinned(view: Open) -> None:
    page = view("requests")
    until(page, "document.querySelectorAll('tbody tr').length >= 5")
    page.fill("input[type=search]", "/v1/completions")
    until(page, "[...document.querySelectorAll('tbody tr')].every(row => row.dataset.id.startsWith('cmpl-'))")
    page.fill("input[type=search]", "")
    page.select_option("select", "finished")
    until(page, "[...document.querySelectorAll('tbody .state')].every(each => each.textContent === 'length')")
    page.click("th[data-column=ttft] button")
    page.click("th[data-column=ttft] button")
    assert page.get_attribute("th[data-column=ttft]", "aria-sort") == "ascending"
    page.wait_for_timeout(300)
    shown = [number(text) for text in page.locator("tbody tr td:nth-child(8)").all_inner_texts()]
    assert shown == sorted(shown)
    last = page.locator("tbody tr").last
    key = last.get_attribute("data-id")
    last.locator(".pin").click()
    until(page, "key => document.querySelector('tbody tr').dataset.id === key", key)


def test_one_request_adds_up(view: Open, server: Server) -> None:
    record = finished(server)
    page = view(f"request/{record['request_id']}")
    page.wait_for_selector("h1")
    assert page.inner_text("h1:visible") == record["request_id"]
    life = set(page.eval_on_selector_all("table.life tbody tr", "rows => rows.map(row => row.dataset.station)"))
    assert life >= STATIONS
    for which in ("ttft", "e2e"):
        page.click(f"text={'First token' if which == 'ttft' else 'Whole life'}")
        rows = page.locator("table.account tr")
        shown = {row.get_attribute("data-part"): row.inner_text().split("\t") for row in rows.all()}
        parts = record[which]["parts"]
        assert set(shown) == {*parts, "unattributed", None}
        assert abs(number(shown[None][1]) - record[which]["total_ms"]) <= 0.006 * record[which]["total_ms"]
        percents = [float(cells[2].strip("<%")) for name, cells in shown.items() if name is not None]
        assert abs(sum(percents) - 100) < 2
    assert f"{record['prompt_tokens']}" in page.inner_text(".request-header")
    assert "request received" in page.inner_text(".events")


def test_a_token_of_the_strip_leads_to_its_step(view: Open, server: Server) -> None:
    record = finished(server)
    page = view(f"request/{record['request_id']}")
    strip = page.locator("canvas.picker[aria-label='Tokens of this request']")
    strip.wait_for()
    assert strip.get_attribute("aria-valuemax") == str(len(record["itl_ms"]) - 1)
    strip.click(position={"x": 3, "y": 50})
    detail = strip.locator("xpath=ancestor::section").locator(".detail")
    assert detail.inner_text().startswith("Token 2:")
    step = detail.locator("a").first.inner_text()
    press(strip, "ArrowRight", "ArrowRight")
    assert "Token 4:" in detail.inner_text()
    press(strip, "Home", "Enter")
    page.wait_for_selector("#view.view-steps .step-detail h2")
    assert page.inner_text(".step-detail h2 >> nth=0").lower().startswith(step)
    assert page.locator(f".members a[title='{record['request_id']}']").count() == 1


def test_the_record_can_be_saved(view: Open, server: Server, tmp_path: Any) -> None:
    record = finished(server)
    page = view(f"request/{record['request_id']}")
    with page.expect_download() as saved:
        page.click("[data-action=json]")
    saved.value.save_as(tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text())["request_id"] == record["request_id"]
    with page.expect_download() as saved:
        page.click("[data-action=perfetto]")
    saved.value.save_as(tmp_path / "trace.json")
    assert record["request_id"] in (tmp_path / "trace.json").read_text()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_step_through_walks_the_whole_life(view: Open, server: Server) -> None:
    record = finished(server)
    page = view(f"request/{record['request_id']}/steps")
    walk = page.locator(".walk")
    walk.wait_for()
    assert "no model computation yet" in walk.inner_text()
    assert "Live KV: 0 positions" in walk.inner_text()
    assert set(walk.locator("li.active").all_inner_texts()) == {"receive", "render", "tokenize", "send", "queue"}
    at, last = map(int, walk.locator(".counter").inner_text().split(" / "))
    assert at == 1
    seen = []
    for _ in range(last - 1):
        walk.press("ArrowRight")
        seen.append(int(re.search(r"Live KV: ([\d,]+)", walk.inner_text())[1].replace(",", "")))  # type: ignore[index]
    decodes = [step["to"] + 1 for step in record["steps"] if step["kind"] == "decode"]
    assert seen[-1] == 0
    assert (
        [kv for kv in seen if kv in decodes][-1]
        == decodes[-1]
        == record["prompt_tokens"] + record["completion_tokens"] - 1
    )
    assert "Its blocks are released" in walk.inner_text()
    assert walk.locator(".next").is_disabled()
    walk.locator(".previous").click()
    assert walk.locator(".counter").inner_text() == f"{last - 1} / {last}"


def preempted(server: Server) -> dict[str, Any]:
    """The full record of a request that lost its blocks to another and finished all the same."""
    for _ in range(240):
        for summary in get_json(f"{server.url()}/v1/requests?state=finished")["data"]:
            if summary["preemptions"]:
                return get_json(f"{server.url()}/v1/requests/{summary['request_id']}")  # type: ignore[no-any-return]
        time.sleep(0.5)
    raise AssertionError("no request was preempted")


def test_a_preemption_is_an_event_and_a_stop(view: Open, server: Server) -> None:
    record = preempted(server)
    page = view(f"request/{record['request_id']}/steps")
    walk = page.locator(".walk")
    walk.wait_for()
    assert "preempted, " in page.inner_text(".events")
    titles = [walk.locator("strong").first.inner_text()]
    while walk.locator(".next").is_enabled():
        walk.press("ArrowRight")
        titles.append(walk.locator("strong").first.inner_text())
        if titles[-1].startswith("Preempted"):
            assert "Live KV: 0 positions" in walk.inner_text()
    names = [title.split(" \u00b7 ")[0] for title in titles]
    assert names.count("Preempted") == len(record["preemptions"])
    assert names[-1] == "Stop and release"
    decodes = sum(step["kind"] == "decode" for step in record["steps"])
    assert f"Decode {decodes}" in names


def test_engine_steps_say_who_was_in_them(view: Open) -> None:
    page = view("steps")
    until(page, "document.querySelectorAll('.members tbody tr').length > 0")
    chart = page.locator("canvas.picker")
    press(chart, "ArrowLeft", "ArrowLeft")
    text = chart.get_attribute("aria-valuetext")
    number = re.match(r"Step (\d+)", text)[1]  # type: ignore[index,arg-type]
    assert page.inner_text(".step-detail h2 >> nth=0").startswith(f"Step {number},")
    assert re.search(r"\d+ of \d+ tokens", text)
    for part in ("schedule", "prepare", "compute", "sample", "update"):
        assert part in page.inner_text(".step-detail")
    page.hover("canvas.picker", position={"x": 60, "y": 120})
    assert page.inner_text("#tip").startswith("Step ")
    page.click("text=Follow")
    until(
        page, "number => !document.querySelector('.step-detail h2').textContent.startsWith(`Step ${number},`)", number
    )
    page.locator(".members a").first.click()
    page.wait_for_selector("#view.view-request h1")


def test_kv_blocks_have_states_owners_and_evictions(view: Open, server: Server) -> None:
    page = view("kv")
    grid = page.locator("canvas.picker")
    assert grid.get_attribute("aria-valuemax") == str(BLOCKS - 1)
    until(page, "/evicted while watched [1-9]/.test(document.querySelector('.legend').textContent)")
    legend = page.inner_text(".legend")
    states = [int(re.search(rf"{name} (\d+)", legend)[1]) for name in ("live", "cached", "free")]  # type: ignore[index]
    assert sum(states) == BLOCKS
    press(grid, "Home", "ArrowRight")
    assert grid.get_attribute("aria-valuetext").startswith("Block 1 (32 tokens), ")
    until(page, "document.querySelectorAll('.holders tr').length > 0")
    grid.hover(position={"x": 10, "y": 10})
    assert page.inner_text("#tip").startswith("Block 0")


def test_the_queue_says_why(view: Open) -> None:
    page = view("queue")
    until(page, "document.querySelectorAll('table.queue tbody')[0].rows.length > 0")
    row = page.locator("table.queue").first.locator("tbody tr").first
    cells = row.inner_text().split("\t")
    assert cells[0] == "1"
    assert cells[2] in {"slots", "KV blocks", "token budget", "prefix", "step running"}
    assert number(cells[3]) > 0
    assert page.locator(".reason small").first.inner_text().endswith(".")
    until(page, "document.querySelectorAll('table.queue tbody')[1].rows.length > 0")


def test_a_bar_of_a_histogram_filters_the_requests(view: Open) -> None:
    page = view("histograms")
    for metric in ("ttft", "itl", "e2e", "queue"):
        chart = page.locator(f"[data-metric={metric}]")
        until(page, f"/p50.*p90.*p99/.test(document.querySelector('[data-metric={metric}] .figures').textContent)")
        assert chart.locator("rect.hit").count() >= 2
    bar = page.locator("[data-metric=ttft] rect.hit").first
    bar.focus()
    label = bar.get_attribute("aria-label")
    press(bar, "Enter")
    page.wait_for_selector("#view.view-requests .chip")
    assert label.split(",")[0] in page.inner_text(".chip")
    count = int(re.search(r", (\d+) requests", label)[1])  # type: ignore[index]
    assert page.locator("tbody tr").count() == count
    page.click(".chip")
    until(page, "count => document.querySelectorAll('tbody tr').length > count", count)


def test_times_between_tokens_are_those_of_the_records(view: Open, server: Server) -> None:
    """The page derives them from steps, the records from their own stamps."""
    page = view("histograms")
    opened_ms = page.evaluate("async () => (await import('/static/store.js')).now()")
    url = f"{server.url()}/v1/requests?state=finished&since={opened_ms}"
    until(page, "async url => (await (await fetch(url)).json()).data.length >= 3", url)
    page.wait_for_timeout(1000)
    held = "async id => (await import('/static/store.js')).state.tokenTimes.samples.filter(s => s.id === id)"
    for summary in get_json(url)["data"][-3:]:
        record = get_json(f"{server.url()}/v1/requests/{summary['request_id']}")
        derived = [sample["ms"] for sample in page.evaluate(held, record["request_id"])]
        assert derived == pytest.approx(record["itl_ms"], abs=0.01)


def test_the_playground_explains_its_tokens(view: Open) -> None:
    page = view("playground")
    page.fill("input[type=number] >> nth=0", "24")
    page.fill("textarea", "Name three colours.")
    page.press("textarea", "Enter")
    page.wait_for_selector(".message.assistant a[href*='/steps']", timeout=60_000)
    tokens = page.locator(".token")
    assert tokens.count() >= 2
    assert "".join(tokens.all_text_contents()).strip() != ""
    tokens.first.focus()
    press(tokens.first, "ArrowRight")
    detail = page.inner_text(".token-detail")
    assert detail.startswith("Token 2")
    assert re.search(r"at \S+ m?s, took \S+ m?s · step \d+ · logprob -?\d", detail)
    page.click(".message.assistant a >> nth=0")
    page.wait_for_selector("#view.view-request h1")


def test_the_system_says_where_each_setting_came_from(view: Open) -> None:
    page = view("system")
    text = page.inner_text("#view")
    for expected in ("smollm2:135m", "llama", "Q4_1", "135 M", "native", "KV cache", "Start-up"):
        assert expected in text
    settings = {
        row.split("\t")[0]: row.split("\t")[1:] for row in page.locator(".configuration tbody tr").all_inner_texts()
    }
    assert settings["--num-kv-blocks"] == [str(BLOCKS), "flag"]
    assert settings["--host"] == ["127.0.0.1", "default"]
    assert page.locator(".startup rect").count() >= 3


def test_an_id_that_looks_like_markup_stays_text(view: Open, server: Server, guards: list[Guard]) -> None:
    hostile = "<img/src=x/onerror=alert(1)>"
    body = json.dumps({"prompt": "Hi", "max_tokens": 2}).encode()
    headers = {"content-type": "application/json", "x-request-id": hostile}
    with urllib.request.urlopen(urllib.request.Request(f"{server.url()}/v1/completions", body, headers)) as reply:
        found = json.load(reply)["id"]
    page = view("requests")
    page.fill("input[type=search]", hostile.lower())
    page.wait_for_selector(f"tbody tr[data-id='{found}']")
    page.goto(f"{server.url()}/#/request/{found}")
    page.wait_for_selector("h1:has-text('cmpl-')")
    assert hostile in page.inner_text(".request-header")
    assert page.locator("img").count() == 0
    page.goto(f"{server.url()}/#/request/{hostile}")
    page.wait_for_selector("text=There is no record of this request")
    assert page.locator("img").count() == 0
    (missing,) = guards[0].errors  # the browser's own note of the 404
    assert "404" in missing
    guards[0].errors.clear()
