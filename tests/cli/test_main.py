"""The commands as a user meets them: help that comes at once, one line for an error, an exit code to rely on."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from sojourn import __version__

COMMANDS = ("serve", "chat", "generate", "pull", "list", "doctor", "bench", "trace")


def test_the_commands_that_exist_are_listed_and_no_others(sojourn):
    listed = re.findall(r"^  ([a-z]+)  ", sojourn("--help").out, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, "bench serve", "bench offline"])
def test_every_command_explains_itself(sojourn, command):
    ran = sojourn(*command.split(), "--help")
    assert ran.code == 0
    assert "Usage:" in ran.out


def test_serve_help_loads_nothing_slow():
    """What keeps it below half a second (typer itself loads pydantic)."""
    show = (
        "import sys; from sojourn.cli.main import app\n"
        "try: app(['serve', '--help'])\n"
        "except SystemExit: print('LOADED', *sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "--max-num-batched-tokens" in out
    loaded = out.rpartition("LOADED")[2].split()
    assert "sojourn.cli.options" in loaded
    assert not {"numpy", "fastapi", "uvicorn", "jinja2", "yaml", "tokenizers"} & set(loaded)


def test_serve_help_shows_flags_but_not_those_that_are_not_built(sojourn):
    out = sojourn("serve", "--help").out
    assert "--max-num-batched-tokens" in out
    assert "--enable-prefix-caching / --no-enable-prefix-caching" in out
    assert "--tool-call-parser" not in out


def test_version(sojourn):
    assert sojourn("--version").out == f"sojourn {__version__}\n"


def test_a_refused_flag_is_one_line_and_exit_code_1(sojourn):
    ran = sojourn("serve", "--tool-call-parser", "hermes")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "sojourn: --tool-call-parser is not built yet; leave it out.\n"


def test_a_usage_error_is_exit_code_2(sojourn):
    ran = sojourn("serve", "--no-such-flag")
    assert ran.code == 2
    assert "--no-such-flag" in ran.err


def test_a_sampling_value_out_of_range_is_one_line(sojourn):
    ran = sojourn("generate", "-p", "x", "--temperature", "9")
    assert ran.code == 1
    assert ran.err == "sojourn: temperature must be between 0 and 2.\n"


@pytest.mark.parametrize(("args", "word"), [(("smollm2:135m",), "MODEL"), (("--threads", "2"), "--threads")])
def test_chat_with_a_server_takes_no_model_of_its_own(sojourn, args, word):
    ran = sojourn("chat", *args, "--url", "http://127.0.0.1:9")
    assert ran.code == 2
    assert f"leave out {word}" in ran.err
