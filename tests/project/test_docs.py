"""The documents name things that exist: flags, files, targets, models; and both READMEs say the same."""

from __future__ import annotations

import re

import pytest

from sojourn.cli.options import NOT_BUILT_FLAGS, flag, option_fields
from sojourn.weights.catalogue import CATALOGUE

READMES = ("README.md", "README.zh-CN.md")
OTHER_FLAGS = {"--config", "--help", "--url", "--tokens", "--last", "--lang"}  # the last one is make accuracy's


@pytest.fixture(params=READMES)
def readme(request, root) -> str:
    return (root / request.param).read_text(encoding="utf-8")


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def test_the_two_commands_come_first(readme):
    first = readme.split("```")[1].split("\n")
    assert first[1].startswith("make serve")
    assert first[2].startswith("make test")


def test_every_flag_in_the_readme_exists(readme):
    known = {flag(name) for name in (*option_fields(), *NOT_BUILT_FLAGS)} | OTHER_FLAGS
    assert flags(readme) <= known


def test_every_short_name_is_in_the_readme_with_its_size(readme):
    for name, model in CATALOGUE.items():
        assert re.search(rf"\| `{re.escape(name)}`.*\| {round(model.size / 1e6)} MB \|", readme), name


def test_both_readmes_have_the_same_flags_tables_and_code(root):
    english, chinese = ((root / name).read_text(encoding="utf-8") for name in READMES)
    assert flags(english) == flags(chinese)
    assert english.count("\n|") == chinese.count("\n|")
    assert re.findall(r"```python\n.*?```", english, re.DOTALL) == re.findall(r"```python\n.*?```", chinese, re.DOTALL)


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md"])
def test_links_and_make_targets_lead_somewhere(root, name):
    text = (root / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (root / target).exists(), target
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


def test_files_named_in_the_contributors_guide_exist(root):
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:src|tests|native)/[\w./]+)`", text):
        assert (root / path).exists(), path
