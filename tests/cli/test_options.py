"""Flags come from the configuration classes; flag beats environment beats file beats default; nothing is ignored."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import sojourn.cli
from sojourn.cli.options import CONFIGS, NOT_BUILT_FLAGS, flag, option_fields, settings, with_options
from sojourn.errors import StartupError

SOURCE = Path(sojourn.cli.__file__).parents[1]


class Parsed:
    """A command with every option, whose settings the tests look at."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp_path = tmp_path
        self.monkeypatch = monkeypatch

    def __call__(self, *args: str, env: dict[str, str] | None = None, file: str | None = None):
        if file is not None:
            path = self.tmp_path / "options.yaml"
            path.write_text(file)
            args = (*args, "--config", str(path))
        for name, value in (env or {}).items():
            self.monkeypatch.setenv(name, value)
        app, seen = typer.Typer(), []

        @app.command()
        @with_options()
        def command(model: Annotated[str, typer.Argument()] = "m", **options: object) -> None:
            seen.append(settings(model, options))

        result = CliRunner().invoke(app, args, catch_exceptions=True)
        if isinstance(result.exception, StartupError):
            raise result.exception
        if not seen:
            raise ValueError(result.output)
        return seen[0]


@pytest.fixture
def parse(tmp_path, monkeypatch) -> Parsed:
    return Parsed(tmp_path, monkeypatch)


def test_without_flags_every_configuration_holds_its_defaults(parse):
    parsed = parse()
    for config in (parsed.server, parsed.frontend, parsed.engine.scheduler, parsed.engine.cache):
        assert config == type(config)()
    assert dataclasses.replace(parsed.engine, model="x") == dataclasses.replace(type(parsed.engine)(), model="x")


def test_flags_reach_the_configuration_they_belong_to(parse):
    parsed = parse(
        "some/model", "--port", "0", "--api-key", "a", "--api-key", "b", "--threads", "2", "--max-num-seqs", "4",
        "--num-kv-blocks", "9", "--no-enable-prefix-caching", "--in-process", "--request-timeout", "1.5",
    )  # fmt: skip
    assert parsed.engine.model == "some/model"
    assert (parsed.server.port, parsed.server.api_key, parsed.server.in_process) == (0, ("a", "b"), True)
    assert (parsed.engine.threads, parsed.engine.scheduler.max_num_seqs) == (2, 4)
    assert (parsed.engine.cache.num_kv_blocks, parsed.engine.cache.enable_prefix_caching) == (9, False)
    assert parsed.frontend.request_timeout == 1.5


def test_auto_is_the_word_for_a_count_left_to_us(parse):
    assert parse("--threads", "auto", "--max-model-len", "auto").engine.threads is None


def test_flag_beats_environment_beats_file_beats_default(parse):
    file = "port: 1\nhost: from-file\nmax-num-seqs: 7\n"
    env = {"SOJOURN_PORT": "2", "SOJOURN_HOST": "from-env"}
    parsed = parse("--port", "3", env=env, file=file)
    assert parsed.server.port == 3
    assert parsed.server.host == "from-env"
    assert parsed.engine.scheduler.max_num_seqs == 7
    assert parsed.engine.scheduler.max_num_batched_tokens is None


def test_file_takes_dashes_underscores_lists_and_the_model(parse):
    file = "model: m2\napi-key: [a, b]\nserved_model_name: x\nenable_prefix_caching: false\n"
    file += "kv-cache-memory: 30%\nthreads: 2\n"
    parsed = parse(file=file)
    assert parsed.engine.model == "m2"
    assert parsed.server.api_key == ("a", "b")
    assert parsed.frontend.served_model_name == ("x",)
    assert parsed.engine.cache.enable_prefix_caching is False
    assert parsed.engine.cache.kv_cache_memory == "30%"
    assert parsed.engine.threads == 2


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("prot: 1\n", "unknown option 'prot'. Did you mean port?"),
        ("port: [\n", "not valid YAML"),
        ("- port\n", "must hold"),
        ("script: x\n", "unknown option 'script'"),  # an internal field is no option
    ],
)
def test_a_file_nobody_can_follow_is_refused(parse, file, message):
    with pytest.raises(StartupError, match=re.escape(message)):
        parse(file=file)


def test_a_missing_file_is_refused(parse, tmp_path):
    with pytest.raises(StartupError, match="can't read"):
        parse("--config", str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("args", "env"), [(("--port", "x"), {}), ((), {"SOJOURN_PORT": "x"}), (("--no-such-flag",), {})]
)
def test_wrong_values_and_unknown_flags_are_usage_errors(parse, args, env):
    with pytest.raises(ValueError, match=r"--port|--no-such-flag"):
        parse(*args, env=env)


@pytest.mark.parametrize("name", sorted(NOT_BUILT_FLAGS))
def test_a_flag_whose_feature_is_not_built_is_refused_by_name(parse, name):
    args = (flag(name),) if NOT_BUILT_FLAGS[name] is bool else (flag(name), "value")
    with pytest.raises(StartupError, match=f"{flag(name)} is not built yet"):
        parse(*args)


def test_such_a_flag_is_refused_from_environment_and_file_too(parse):
    with pytest.raises(StartupError, match="--tool-call-parser is not built yet"):
        parse(file="tool-call-parser: hermes\n")
    with pytest.raises(StartupError, match="--reasoning-parser is not built yet"):
        parse(env={"SOJOURN_REASONING_PARSER": "x"})


def test_a_value_whose_feature_is_not_built_is_refused_by_name(parse):
    with pytest.raises(StartupError, match="--backend scripted is not built yet; use auto or"):
        parse("--backend", "scripted")


@pytest.mark.parametrize("value", ["fp8", "fp8_e4m3", "bf16", "INT8", ""])
def test_b78_an_unknown_kv_dtype_is_refused_with_those_there_are(parse, value):
    with pytest.raises(StartupError, match=f"--kv-cache-dtype '{value}'.*auto, f16, f32, int8") as refused:
        parse("--kv-cache-dtype", value)
    assert ("fp8 is not supported; int8 takes as little memory" in str(refused.value)) == ("fp8" in value)


def test_every_option_is_read_somewhere():
    """An option that no code reads would be accepted and ignored."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in SOURCE.rglob("*.py")
        if path.name != "config.py" and path.parent.name != "records" and path.name != "options.py"
    )
    unread = [name for name in option_fields() if not re.search(rf"\.{name}\b", code)]
    assert not unread


def test_options_have_unique_names_across_configurations():
    names = [field.name for config in CONFIGS for field in dataclasses.fields(config) if "help" in field.metadata]
    assert len(names) == len(set(names))
