"""Health, readiness, version, metrics, tokens, and the generated document."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sojourn import __version__
from sojourn.config import ServerConfig
from sojourn.records import EngineStats
from sojourn.timeline.metrics import Metrics
from tests.server.conftest import Live, running, wait_for
from tests.server.fake_engine import BOS, FakeEngine

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_and_ready_answer(http: httpx.Client, method: str) -> None:
    assert http.request(method, "/health").status_code == 200
    assert http.request(method, "/ready").status_code == 200


@pytest.mark.parametrize(
    ("state", "health", "chat"),
    [("loading", 200, 503), ("draining", 200, 503), ("stuck", 200, 200), ("dead", 503, 503)],
)
def test_b60_readiness_tells_what_liveness_does_not(
    http: httpx.Client, engine: FakeEngine, state: str, health: int, chat: int
) -> None:
    engine.state = state
    ready = http.get("/ready")
    assert (ready.status_code, ready.json()["error"]["code"]) == (503, state)
    assert int(ready.headers["retry-after"]) > 0
    assert http.get("/health").status_code == health
    assert http.post(CHAT, json=GOOD).status_code == chat


def test_b59_a_dead_engine_refuses_at_once(http: httpx.Client, engine: FakeEngine) -> None:
    engine.state = "dead"
    began = time.monotonic()
    reply = http.post(CHAT, json=GOOD)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "dead")
    assert "retry-after" in reply.headers
    assert time.monotonic() - began < 1.0


def test_b60_liveness_answers_while_the_engine_makes_no_progress(
    http: httpx.Client, live: Live, engine: FakeEngine
) -> None:
    engine.delay = 1.0
    with httpx.Client(base_url=live.url, trust_env=False) as other, other.stream("GET", "/health"):
        began = time.monotonic()
        assert http.get("/health").status_code == 200
        assert time.monotonic() - began < 0.5


def test_everything_but_liveness_waits_for_the_model() -> None:
    with running(None) as live, httpx.Client(base_url=live.url, trust_env=False) as http:
        for method, path in [("POST", CHAT), ("POST", "/tokenize"), ("GET", "/v1/models"), ("GET", "/ready")]:
            reply = http.request(method, path, json=GOOD)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "loading")
            assert "retry-after" in reply.headers
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").status_code == 200
        live.app.state.context.gate.attach(FakeEngine())
        assert http.get("/ready").status_code == 200
        assert http.post(CHAT, json=GOOD).status_code == 200


def test_version(http: httpx.Client) -> None:
    assert http.get("/version").json() == {"version": __version__}


STATS = EngineStats(
    step=9,
    num_running=2,
    waiting_by_reason={"kv_blocks": 3},
    kv_live=5,
    kv_cached=6,
    kv_free=7,
    num_preemptions=1,
    prompt_tokens=120,
    cached_tokens=20,
    recomputed_tokens=7,
    generation_tokens=50,
    prefix_queries=150,
    prefix_hits=45,
    finished={"stop": 4, "abort": 2},
)


def samples(text: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "model_name"]
            assert "model_name" in sample.labels
            found[sample.name, *labels] = sample.value
    return found


def test_metrics_show_the_engines_numbers(http: httpx.Client, engine: FakeEngine) -> None:
    engine.stats = STATS
    reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(reply.text)
    assert found["sojourn_num_requests_running",] == 2
    assert found["sojourn_num_requests_waiting", "kv_blocks"] == 3
    assert found["sojourn_num_requests_waiting", "seq_slots"] == 0
    assert [found["sojourn_kv_blocks", state] for state in ("live", "cached", "free")] == [5, 6, 7]
    assert found["sojourn_num_preemptions_total",] == 1
    assert found["sojourn_prompt_tokens_total",] == 120
    assert found["sojourn_generation_tokens_total",] == 50
    assert found["sojourn_prompt_tokens_cached_total",] == 20
    assert found["sojourn_tokens_recomputed_total",] == 7
    assert found["sojourn_prefix_cache_queries_total",] == 150
    assert found["sojourn_prefix_cache_hits_total",] == 45
    finished = {
        reason: found["sojourn_request_success_total", reason] for reason in ("stop", "length", "abort", "error")
    }
    assert finished == {"stop": 4, "length": 0, "abort": 2, "error": 0}
    assert found["sojourn_requests_aborted_total",] == 2


def test_b29_the_three_kv_gauges_add_up() -> None:
    found = samples(Metrics("sojourn").render("m", STATS).decode())
    assert sum(value for name, value in found.items() if name[0] == "sojourn_kv_blocks") == 18


def test_the_vllm_prefix_gives_vllms_names() -> None:
    found = samples(Metrics("vllm").render("m", STATS).decode())
    assert found["vllm:num_requests_running",] == 2
    assert found["vllm:kv_cache_usage_perc",] == 5 / 18
    assert found["vllm:request_success_total", "stop"] == 4
    assert not [name for name, *_ in found if not name.startswith("vllm:")]


def test_http_requests_are_counted_by_route_and_not_by_what_clients_invent(live: Live, http: httpx.Client) -> None:
    http.get("/v1/models/org/fake")
    http.get("/invented/by/a/client")
    http.request("PROPFIND", "/health")
    wait_for(lambda: 'method="other"' in http.get("/metrics").text)
    text = http.get("/metrics").text
    assert 'handler="/v1/models/{model_id:path}",method="GET"' in text
    assert 'handler="none",method="GET"' in text
    assert "invented" not in text
    assert "PROPFIND" not in text


def test_b65_health_and_metrics_answer_while_the_queue_is_full(http: httpx.Client, engine: FakeEngine) -> None:
    from sojourn.errors import QueueFull

    engine.refuse = lambda request_id: QueueFull("full")
    assert http.post(CHAT, json=GOOD).status_code == 429
    assert http.get("/health").status_code == 200
    assert http.get("/metrics").status_code == 200


# -- tokens --------------------------------------------------------------------------------------------------------


def test_tokenize_a_prompt(http: httpx.Client) -> None:
    reply = http.post("/tokenize", json={"prompt": "ab", "return_token_strs": True}).json()
    assert reply == {"count": 3, "max_model_len": 8192, "tokens": [BOS, 97, 98], "token_strs": ["<s>", "a", "b"]}


def test_tokenize_without_special_tokens(http: httpx.Client) -> None:
    reply = http.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False}).json()
    assert reply == {"count": 2, "max_model_len": 8192, "tokens": [97, 98]}


def test_tokenize_messages_as_generation_would(http: httpx.Client, engine: FakeEngine) -> None:
    reply = http.post("/tokenize", json={"messages": GOOD["messages"], "add_generation_prompt": False}).json()
    assert reply["count"] == http.post(CHAT, json=GOOD).json()["usage"]["prompt_tokens"]
    assert engine.rendered[0]["add_generation_prompt"] is False


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": GOOD["messages"]}, {"prompt": None}])
def test_tokenize_takes_exactly_one_input(http: httpx.Client, body: dict[str, Any]) -> None:
    assert http.post("/tokenize", json=body).status_code == 400


def test_detokenize_is_the_way_back(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "日本"}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "<s>日本"}


def test_detokenize_refuses_ids_outside_the_vocabulary(http: httpx.Client) -> None:
    reply = http.post("/detokenize", json={"tokens": [5, 258]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tokens")


# -- the document --------------------------------------------------------------------------------------------------


def test_the_document_describes_every_field_and_no_422(http: httpx.Client) -> None:
    spec = http.get("/openapi.json").json()
    chat = spec["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"messages", "top_k", "min_p", "stop", "logit_bias", "chat_template_kwargs"} <= set(chat)
    prompt = spec["components"]["schemas"]["CompletionRequest"]["properties"]["prompt"]
    assert len(prompt["anyOf"]) == 4
    for methods in spec["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]


def test_the_page_of_the_api_comes_from_this_server_alone(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    links = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""", page.text)
    assert len(links) == 4  # style, icon, script, document
    for link in links:
        assert link.startswith("/"), link
        assert http.get(link).status_code == 200, link
    assert "https://" not in page.text


@pytest.fixture
def priority_server() -> Iterator[Live]:
    with running(FakeEngine(), ServerConfig(), scheduling_policy="priority") as live:
        yield live


def test_priority_is_served_under_the_priority_policy(priority_server: Live) -> None:
    reply = httpx.post(priority_server.url + CHAT, json={**GOOD, "priority": -3}, trust_env=False)
    assert reply.status_code == 200
    assert priority_server.engine.submitted[0].priority == -3
