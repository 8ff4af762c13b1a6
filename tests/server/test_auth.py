"""API keys: nothing answers without one but liveness, readiness and the page's shell."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from sojourn.config import ServerConfig
from sojourn.server.admission import ENGINE_PATHS
from tests.server.conftest import Live, running
from tests.server.fake_engine import FakeEngine

KEY = "a-secret-key"


@pytest.fixture(scope="module")
def locked() -> Iterator[Live]:
    with running(FakeEngine(), ServerConfig(api_key=(KEY, "another"))) as live:
        yield live


@pytest.fixture
def stranger(locked: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=locked.url, trust_env=False) as client:
        yield client


def routes(live: Live) -> list[tuple[str, str]]:
    """Every method and path of the application, the generated documents included."""
    spec = live.app.openapi()
    found = {(method.upper(), path) for path, methods in spec["paths"].items() for method in methods}
    found |= {("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/docs/oauth2-redirect")}
    return sorted(found)


def test_b85_every_route_but_the_open_ones_needs_a_key(locked: Live, stranger: httpx.Client) -> None:
    walked = routes(locked)
    assert {path for _, path in walked} >= ENGINE_PATHS | {"/metrics", "/v1/models", "/version", "/docs"}
    for method, path in walked:
        status = stranger.request(method, path.replace("{model_id}", "fake-model")).status_code
        assert (status == 401) is (path not in {"/health", "/ready"}), (method, path, status)


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1/models/", "/v1/../v1/models", "/V1/models", "/health/", "/static", "/nope"]
)
def test_b85_other_spellings_need_a_key_too(stranger: httpx.Client, path: str) -> None:
    assert stranger.get(path).status_code == 401


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"])
def test_b85_other_methods_need_a_key_too(stranger: httpx.Client, method: str) -> None:
    assert stranger.request(method, "/v1/models").status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer",
        f"Bearer {KEY} {KEY}",
        f"Token {KEY}",
    ],
)
def test_b85_a_wrong_key_or_scheme_is_401(stranger: httpx.Client, header: str) -> None:
    reply = stranger.get("/v1/models", headers={"authorization": header})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert KEY not in reply.text


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", "Bearer another"])
def test_b85_any_of_the_keys_opens(stranger: httpx.Client, header: str) -> None:
    assert stranger.get("/v1/models", headers={"authorization": header}).status_code == 200


def test_b85_the_official_client_raises_authentication_error(locked: Live) -> None:
    with openai.OpenAI(base_url=locked.url + "/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        assert client.with_options(api_key=KEY).models.list().data


def test_b85_a_stranger_reads_no_body_into_memory(locked: Live, stranger: httpx.Client) -> None:
    reply = stranger.post("/v1/completions", content=b"x" * 100_000, headers={"content-type": "application/json"})
    assert reply.status_code == 401


def test_every_post_route_passes_admission(live: Live) -> None:
    posts = {path for path, methods in live.app.openapi()["paths"].items() if "post" in methods}
    assert posts == ENGINE_PATHS
