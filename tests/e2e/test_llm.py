"""The engine without a server: generate, chat, and stepping by hand as the seed's scenario does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn import LLM, SamplingParams
from sojourn.config import CacheConfig
from sojourn.errors import ContextLengthExceeded, InvalidRequest

ROOT = Path(__file__).parents[2]
MICRO = ROOT / "tests" / "data" / "micro" / "llama-chat"
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(str(MICRO), cache=CacheConfig(num_kv_blocks=128), threads=1)


def test_prompts_are_completed_in_their_order_as_text_or_ids(llm: LLM) -> None:
    texts = ["A river", "The lake", "A"]
    together = llm.generate(texts, GREEDY)
    assert [out.prompt_ids for out in together] == [llm.tokenizer.encode(text) for text in texts]
    for text, out in zip(texts, together, strict=True):
        (single,) = llm.generate(text, GREEDY)
        (by_ids,) = llm.generate([llm.tokenizer.encode(text)], GREEDY)
        assert single.outputs == by_ids.outputs == out.outputs
        assert out.outputs[0].text == llm.tokenizer.decode(out.outputs[0].token_ids)
        assert out.outputs[0].finish_reason == "length"


def test_each_prompt_may_have_its_own_params(llm: LLM) -> None:
    short, long = llm.generate(
        ["A", "A"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5, ignore_eos=True)]
    )
    assert len(short.outputs[0].token_ids) <= 2
    assert len(long.outputs[0].token_ids) == 5
    with pytest.raises(InvalidRequest, match="2 prompts but 1"):
        llm.generate(["A", "B"], [GREEDY])


def test_choices_logprobs_and_stops(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, n=3, seed=1, temperature=1.5, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    (out,) = llm.generate("A river", params)
    assert len({choice.text for choice in out.outputs}) == 3
    assert all(len(choice.logprobs or ()) == 20 for choice in out.outputs)
    assert out.prompt_logprobs is not None
    assert len(out.prompt_logprobs) == len(out.prompt_ids)
    (plain,) = llm.generate("A river", GREEDY)
    stop = plain.outputs[0].text[3:6]
    (stopped,) = llm.generate("A river", SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, stop=(stop,)))
    assert stopped.outputs[0].text == plain.outputs[0].text.split(stop)[0]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", stop)
    assert not llm.engine.has_unfinished()


def test_a_completion_keeps_the_space_in_front_and_a_chat_reply_does_not(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.tokenizer, "strip_leading_space", True)  # as a SentencePiece vocabulary has it
    spaced = next(i for i in range(llm.engine.core.info.vocab_size) if llm.tokenizer.token_bytes(i).startswith(b" "))
    forced = SamplingParams(max_tokens=1, temperature=0.0, logit_bias={spaced: 100.0})
    word = llm.tokenizer.token_bytes(spaced).decode()
    assert llm.generate("A river", forced)[0].outputs[0].text == word
    assert llm.chat([{"role": "user", "content": "A river"}], forced)[0].outputs[0].text == word[1:]


@pytest.mark.parametrize(("field", "value"), [("n", 2), ("stop", ("x",))])
def test_the_engine_by_hand_refuses_what_only_text_can_do(llm: LLM, field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        llm.engine.add_request([1, 2, 3], SamplingParams(**{field: value}))
    assert caught.value.param == field
    assert not llm.engine.has_unfinished()


def test_b04_a_chat_gives_the_prompt_ids_of_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Tell me about rivers."}]
    one, *several = llm.chat(messages, GREEDY), *llm.chat([messages, messages], GREEDY)
    assert [out.outputs[0].text for out in several] == [one[0].outputs[0].text] * 2
    assert "Tell me about rivers." in llm.tokenizer.decode(one[0].prompt_ids)


def test_b44_penalties_do_not_depend_on_the_cache(llm: LLM) -> None:
    prompt = list(range(300, 400))
    free = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    penalised = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True, repetition_penalty=1.3)
    (cold,) = llm.generate([prompt], penalised)
    (warm,) = llm.generate([prompt], penalised)
    (plain,) = llm.generate([prompt], free)
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 96)
    assert cold.outputs == warm.outputs
    assert cold.outputs != plain.outputs


def test_a_refused_prompt_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceeded):
        llm.generate([[1, 2, 3], [7] * 5000], GREEDY)
    assert not llm.engine.has_unfinished()
    assert llm.generate("A", GREEDY)[0].outputs[0].token_ids


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_tracing_example_prints_the_seeds_table(lang: str) -> None:
    """Acceptance 4: with three requests decoding, 141 tokens under a budget of 64 are computed as 61, 61 and 19."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "trace_requests.py"), "--model", str(MICRO), "--lang", lang],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    ids_run, chat_run = done.stdout.split("\n\n")
    numbers = [tuple(map(int, match)) for match in re.findall(r"prefill\D+(\d+)\D+(\d+)", ids_run)]
    assert numbers == [(0, 60), (61, 121), (122, 140)]
    assert [int(step) for step in re.findall(r"(\d+) ?步|step +(\d+)", ids_run) for step in step if step] == list(
        range(3, 11)
    )
    assert len(re.findall(r"prefill", chat_run)) >= 1
    for run in (ids_run, chat_run):
        assert len(re.findall(r"\d+ ms +\d+ ms$", run, re.MULTILINE)) == 4
