"""The page's files as the server sends them: types, caching, the security policy, and what the files may contain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from sojourn.config import ServerConfig
from sojourn.server.routes_page import FILES
from tests.server.conftest import running
from tests.server.fake_engine import FakeEngine

MOST_BYTES = 200_000
SCRIPTS = {name: file.body.decode() for name, file in FILES.items() if name.endswith(".js")}
LANGUAGES = {
    name[5:7]: json.loads(text[text.index("{") : text.rindex("}") + 1])
    for name, text in SCRIPTS.items()
    if name.startswith("lang_")
}
# Keys put together at run time: t(`tab.${name}`) and named("station", name).
PREFIXES = {prefix for text in SCRIPTS.values() for prefix in re.findall(r"(?:\bt\(`|\bnamed\(\")([a-z_]+)", text)}


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """A server with a key, asked without one."""
    with (
        running(FakeEngine(), ServerConfig(api_key=("secret",))) as live,
        httpx.Client(base_url=live.url, trust_env=False) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/static/style.css", "text/css; charset=utf-8"),
        ("/static/main.js", "text/javascript; charset=utf-8"),
        ("/static/icon.svg", "image/svg+xml"),
    ],
)
def test_the_shell_is_open_and_typed(locked: httpx.Client, path: str, content_type: str) -> None:
    reply = locked.get(path)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == content_type
    assert reply.headers["x-content-type-options"] == "nosniff"
    head = locked.head(path)
    assert head.status_code == 200
    assert head.content == b""


def test_every_file_is_sent_under_a_policy_that_admits_only_this_server(locked: httpx.Client) -> None:
    for path in ("/", *(f"/static/{name}" for name in FILES if name != "index.html")):
        policy = locked.get(path).headers["content-security-policy"]
        parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
        assert parts.pop("default-src") == "'none'"
        assert parts.pop("img-src") == "'self' data:"
        assert {parts.pop(f"{kind}-src") for kind in ("script", "style", "connect")} == {"'self'"}
        assert set(parts.values()) == {"'none'"}


def test_an_unchanged_file_is_not_sent_twice(locked: httpx.Client) -> None:
    first = locked.get("/static/main.js")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f'W/{tag}, "other"'):
        again = locked.get("/static/main.js", headers={"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
    assert locked.get("/static/main.js", headers={"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/static/", "/static/nope.js", "/static/index.html", "/static/../routes_page.py", "/static/%2e%2e/auth.py"]
)
def test_nothing_but_the_files_is_served(locked: httpx.Client, path: str) -> None:
    assert locked.get(path).status_code in {401, 404}


def test_the_whole_page_stays_small() -> None:
    assert sum(len(file.body) for file in FILES.values()) < MOST_BYTES


def test_files_and_functions_stay_readable() -> None:
    long = {name: text.count("\n") for name, text in SCRIPTS.items() if text.count("\n") > 500}
    assert not long
    functions = re.compile(r"^( *)(?:export )?(?:async )?(?:function \w+|\w+)\([^;]*\) \{\n(.*?)^\1\}", re.M | re.S)
    longest = {
        (name, match[0].splitlines()[0]): match[0].count("\n")
        for name, text in SCRIPTS.items()
        for match in functions.finditer(text)
    }
    assert longest
    assert max(longest.values()) <= 80, max(longest, key=lambda key: longest[key])


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".svg")])
def test_data_is_never_parsed_as_code_and_nothing_comes_from_elsewhere(name: str) -> None:
    text = FILES[name].body.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    urls = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
    assert not urls
    assert not re.search(r"\sstyle=|\son\w+=\"", text)


def test_every_import_of_a_module_leads_to_a_file() -> None:
    for name, text in SCRIPTS.items():
        for target in re.findall(r"^import .*?from \"\./(.+?)\";", text, re.M | re.S):
            assert target in FILES, (name, target)
    shell = FILES["index.html"].body.decode()
    assert set(re.findall(r'"static/(.+?)"', shell)) == {"icon.svg", "style.css", "main.js"}


def test_both_languages_have_the_same_texts() -> None:
    english, chinese = LANGUAGES["en"], LANGUAGES["zh"]
    assert english.keys() == chinese.keys()
    for key in english:
        assert set(re.findall(r"\{\w+\}", english[key])) == set(re.findall(r"\{\w+\}", chinese[key])), key
    assert all(text.strip() for texts in LANGUAGES.values() for text in texts.values())


def test_every_text_asked_for_exists_and_every_text_is_asked_for() -> None:
    code = "\n".join(text for name, text in SCRIPTS.items() if not name.startswith("lang_"))
    asked = set(re.findall(r"\"([a-z_]+\.\w+)\"", code))
    missing = {key for key in re.findall(r"\bt\(\"([\w.]+)\"", code) if key not in LANGUAGES["en"]}
    assert not missing
    unused = {key for key in LANGUAGES["en"] if key not in asked and key.split(".")[0] not in PREFIXES}
    assert not unused
