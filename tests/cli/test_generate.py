"""`generate`, `chat`, `pull`, `list` and `doctor` with real models from the cache."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from sojourn.native import isas

PROMPT = ("-p", "The capital of France is", "-n", "6")


def test_generate_prints_the_continuation_and_nothing_else_on_stdout(sojourn):
    ran = sojourn("generate", *PROMPT, "--kv-cache-memory", "100MB")
    assert ran.code == 0
    assert "Paris" in ran.out
    assert ran.out.endswith("\n")


def test_the_same_seed_gives_the_same_text(sojourn):
    args = (*PROMPT, "--kv-cache-memory", "100MB", "--temperature", "1", "--seed", "7")
    assert sojourn("generate", *args).out == sojourn("generate", *args).out != ""


def test_chat_in_this_process_remembers_and_leaves_cleanly(command):
    typed = subprocess.run(
        [*command, "chat", "-n", "4", "--temperature", "0", "--kv-cache-memory", "100MB"],
        check=False,
        capture_output=True,
        text=True,
        input="Hi\nAnd?\n",
        timeout=90,
    )
    assert typed.returncode == 0
    assert typed.stdout.count("> ") == 3
    assert "Traceback" not in typed.stderr


def test_pull_prints_the_path_alone_when_asked(sojourn):
    path = Path(sojourn("pull", "smollm2:135m", "--print-path").out.rstrip("\n"))
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.is_file()


def test_list_shows_every_short_name_and_where_it_is(sojourn):
    out = sojourn("list").out
    assert re.search(r"smollm2:135m \(default\) +98 MB +/\S+\.gguf", out)
    assert "qwen2.5-coder:0.5b" in out
    assert "gemma3:270m" in out


def test_doctor_reports_what_a_model_would_run_on(sojourn):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ran = sojourn("doctor", "--port", str(port))
    assert ran.code == 0
    for line in (
        rf"(ok|note) +kernels +{isas()[0]}: \w+",
        r"ok +threads +\d+ \(",
        r"(ok|note) +read bandwidth +\d+\.\d GB/s with .*; the slowest was \d+% below",
        r"ok +model +smollm2:135m: llama Q4_1",
        r"ok +KV cache +a token takes 23\.0 KB in f16 or 12\.2 KB in int8",
    ):
        assert re.search(line, ran.out), ran.out


def test_doctor_fails_on_a_taken_port_and_a_broken_model(sojourn, tmp_path):
    broken = tmp_path / "x.gguf"
    broken.write_text("hello")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = sojourn("doctor", str(broken), "--port", str(taken.getsockname()[1]))
    assert ran.code == 1
    assert len(re.findall(r"^FAIL", ran.out, re.MULTILINE)) == 2


@pytest.mark.models
@pytest.mark.parametrize(("model", "word"), [("qwen2.5-coder:0.5b", "Paris"), ("gemma3:270m", "capital")])
def test_generate_with_the_larger_models(sojourn, model, word):
    ran = sojourn("generate", model, *PROMPT, "--kv-cache-memory", "200MB", timeout=240)
    assert ran.code == 0
    assert word in ran.out


@pytest.mark.models
def test_a_base_model_without_a_template_says_how_to_use_it(sojourn):
    ran = sojourn("chat", "gemma3:270m", "--kv-cache-memory", "200MB", timeout=240)
    assert ran.code == 1
    assert "sojourn generate" in ran.err.splitlines()[-1]
