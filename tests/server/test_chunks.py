"""The short way to encode text in mid-stream beside the general one, and both beside the whole object encoded at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.records import SamplingParams, TokenLogprobs
from sojourn.server.chunks import ChatChunks, CompletionChunks, Echo, Envelope
from sojourn.server.generation import Totals
from sojourn.server.logprobs import ChatLogprobs, CompletionLogprobs
from sojourn.server.sse import encode_json
from tests.server.fake_engine import ByteTokenizer, FakeDelta

MODEL = 'a "model" / \N{SNOWMAN}'
TEXTS = st.text(
    alphabet=st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from('"\\/\b\n\x00\x7f\u2028😀'))
)


@st.composite
def deltas(draw: st.DrawFn, logprobs: bool) -> list[FakeDelta]:
    """One choice from its first delta to its last. Any of them may lack text or bring late news of the cache."""
    made = []
    count = draw(st.integers(1, 6))
    for position in range(count):
        ids = draw(st.lists(st.integers(0, 255), min_size=1, max_size=3))
        made.append(
            FakeDelta(
                index=0,
                text=draw(TEXTS),
                token_ids=ids,
                logprobs=[TokenLogprobs(-0.5, 1, [], [])] * len(ids) if logprobs else None,
                prompt_logprobs=None,
                finish_reason=draw(st.sampled_from(["stop", "length"])) if position == count - 1 else None,
                stop_reason=None,
                num_cached_tokens=draw(st.integers(0, 2)),
            )
        )
    return made


def encoder(kind: str, *, usage: bool, logprobs: bool) -> tuple[Any, Totals]:
    totals = Totals(prompt_tokens=3)
    name = "chat.completion.chunk" if kind == "chat" else "text_completion"
    envelope = Envelope("id-1", name, 1_700_000_000, MODEL, usage)
    if kind == "chat":
        shape = ChatLogprobs(ByteTokenizer(), SamplingParams(), top=0) if logprobs else None
        return ChatChunks(envelope, totals, 1, shape), totals
    shapes = [CompletionLogprobs(ByteTokenizer(), top=0, hide_special=True)] if logprobs else None
    echoes = [Echo("", [1, 2, 3])]
    return CompletionChunks(envelope, totals, choices_per_prompt=1, echoes=echoes, logprobs=shapes), totals


@pytest.mark.parametrize("kind", ["chat", "completions"])
@given(st.data(), st.booleans(), st.booleans())
def test_both_ways_give_the_same_bytes(kind: str, data: st.DataObject, usage: bool, logprobs: bool) -> None:
    (fast, fast_totals), (slow, slow_totals) = (encoder(kind, usage=usage, logprobs=logprobs) for _ in range(2))
    for delta in data.draw(deltas(logprobs)):
        batch = [(0, delta)]
        assert fast.encode(batch) == slow.encode_any(batch)
    assert fast.finish() == slow.finish()
    assert fast_totals == slow_totals


@pytest.mark.parametrize("kind", ["chat", "completions"])
@given(TEXTS.filter(bool), st.booleans())
def test_text_in_mid_stream_is_the_whole_object_encoded(kind: str, text: str, usage: bool) -> None:
    made, _ = encoder(kind, usage=usage, logprobs=False)
    delta = FakeDelta(index=0, text=text, token_ids=[1])
    made.encode([(0, delta)])  # the first chunk is another
    content = {"delta": {"content": text}} if kind == "chat" else {"text": text}
    expected = {
        "id": "id-1",
        "object": "chat.completion.chunk" if kind == "chat" else "text_completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": None}],
        **({"usage": None} if usage else {}),
    }
    assert made.encode([(0, delta)]) == b"data: " + encode_json(expected) + b"\n\n"
