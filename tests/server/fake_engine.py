"""A front end without an engine behind it: AsyncLLM's surface, text made to order. Owner of what it was asked and of
what was aborted.

A prompt that holds `say:TEXT|` is answered with TEXT, so each of many concurrent requests can force its own. A token is
a byte.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sojourn.errors import InvalidRequest, Unavailable
from sojourn.records import EngineInfo, EngineStats, SamplingParams, TokenLogprobs
from sojourn.timeline.records import RequestRecord

BOS, EOS = 256, 257
CONTEXT = 8192


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 is <s>, 257 is </s>."""

    special_ids = frozenset({BOS, EOS})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else {BOS: b"<s>", EOS: b"</s>"}[token_id]

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in self.special_ids)]
        return b"".join(self.token_bytes(i) for i in kept).decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeDelta:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int
    cache_salt: str
    continues_text: bool


INFO = EngineInfo(
    model="fake",
    architecture="fake",
    quantization="F32",
    num_parameters=1,
    vocab_size=258,
    max_model_len=CONTEXT,
    max_model_len_reason="test",
    num_kv_blocks=8,
    block_size=32,
    kv_bytes=1,
    kv_dtype="f16",
    weight_bytes=1,
    backend="scripted",
    threads=1,
    isa="none",
    load_seconds=0.0,
)


class FakeEngine:
    """Attributes may be set between requests; `reset()` puts them back."""

    served_names = ("fake-model", "org/fake")
    tokenizer = ByteTokenizer()
    info = INFO
    capacity = 576
    engine_pid = None

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.state: Any = "ready"
        self.stats = EngineStats()
        self.chat_template: object | None = object()
        self.text = "Hello, world!"
        self.delay = 0.0  # seconds before each step
        self.tokens_per_step = 1
        self.fail_at: tuple[int, Exception] | None = None  # before this step
        self.refuse: Callable[[str], Exception | None] = lambda request_id: None
        self.template_error: Exception | None = None
        self.render_delay = 0.0
        self.cached = 0
        self.submitted: list[Submitted] = []
        self.rendered: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.active: set[str] = set()
        self.steps = 0
        self.drained: float | None = None
        self.closed = False

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        must_fit: bool = True,
        record: RequestRecord | None = None,
    ) -> list[int]:
        return ([BOS] if add_special_tokens and text else []) + list(text.encode())

    async def render(self, messages: list[dict[str, Any]], **arguments: Any) -> list[int]:
        await asyncio.sleep(self.render_delay)
        if self.template_error is not None:
            raise self.template_error
        self.rendered.append({"messages": messages, **arguments})
        text = ""
        for message in messages:
            content = message["content"]
            text += content if isinstance(content, str) else "".join(part["text"] for part in content)
        return [BOS, *text.encode()]

    def submit(
        self,
        request_id: str,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        arrival_ns: int,
        continues_text: bool = False,
        record: RequestRecord | None = None,
    ) -> AsyncIterator[list[FakeDelta]]:
        assert arrival_ns > 0
        if self.drained is not None:
            raise Unavailable("drained")
        error = self.refuse(request_id)
        if error is not None:
            raise error
        if request_id in self.active:
            raise InvalidRequest("duplicate id")
        self.submitted.append(
            Submitted(
                request_id=request_id,
                prompt_ids=prompt_ids,
                params=params,
                priority=priority,
                cache_salt=cache_salt,
                continues_text=continues_text,
            )
        )
        self.active.add(request_id)
        room = self.info.max_model_len - len(prompt_ids)
        wanted = room if params.max_tokens is None else min(params.max_tokens, room)
        return self._run(request_id, prompt_ids, msgspec.structs.replace(params, max_tokens=wanted, min_tokens=0))

    async def _run(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams
    ) -> AsyncIterator[list[FakeDelta]]:
        choices = [_Script(self, index, prompt_ids, params) for index in range(params.n)]
        step = 0
        try:
            while any(not choice.finished for choice in choices):
                await asyncio.sleep(self.delay)
                if self.fail_at is not None and step == self.fail_at[0]:
                    self.active.discard(request_id)
                    raise self.fail_at[1]
                step += 1
                self.steps += 1
                deltas = [choice.step() for choice in choices if not choice.finished]
                if all(choice.finished for choice in choices):
                    self.active.discard(request_id)
                yield deltas
        finally:
            await self.abort(request_id)

    async def abort(self, request_id: str) -> None:
        if request_id in self.active:
            self.aborted.append(request_id)  # first: tests in another thread wait for `active` to empty
            self.active.discard(request_id)

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  the seam's name
        self.drained = timeout

    async def close(self) -> None:
        self.closed = True


class _Script:
    """One choice. Text is cut at a stop string, ids at max_tokens."""

    def __init__(self, engine: FakeEngine, index: int, prompt_ids: list[int], params: SamplingParams) -> None:
        self.engine, self.index, self.params = engine, index, params
        self.prompt_ids = prompt_ids
        prompt = engine.tokenizer.decode(prompt_ids)
        text = prompt.partition("say:")[2].partition("|")[0] or engine.text
        self.finish, self.stop_reason = "stop", None
        for stop in params.stop:
            if stop in text:
                text, self.stop_reason = text.partition(stop)[0], stop
        self.ids = list(text.encode())
        if params.ignore_eos:
            self.ids = (self.ids * (1 + (params.max_tokens or CONTEXT) // max(1, len(self.ids))))[: params.max_tokens]
        if params.max_tokens is not None and len(self.ids) >= params.max_tokens:
            self.ids, self.finish, self.stop_reason = self.ids[: params.max_tokens], "length", None
        elif self.stop_reason is None:
            self.ids.append(EOS)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.position = 0
        self.finished = False

    def _logprob(self, token_id: int, top: int) -> TokenLogprobs:
        others = [(token_id + 1) % 256, (token_id + 2) % 256]
        ids = [token_id, *others][:top]
        return TokenLogprobs(-0.5, 1, ids, [-0.5, -2.0, float("-inf")][:top])

    def step(self) -> FakeDelta:
        first = self.position == 0
        ids = self.ids[self.position : self.position + self.engine.tokens_per_step]
        self.position += len(ids)
        self.finished = self.position >= len(self.ids)
        top, prompt_top = self.params.logprobs, self.params.prompt_logprobs
        prompt_logprobs: list[TokenLogprobs | None] | None = None
        if first and prompt_top is not None:
            prompt_logprobs = [None, *(self._logprob(i, prompt_top) for i in self.prompt_ids[1:])]
        return FakeDelta(
            index=self.index,
            text=self.decoder.decode(bytes(i for i in ids if i < EOS), self.finished),
            token_ids=ids,
            logprobs=None if top is None else [self._logprob(i, top) for i in ids],
            prompt_logprobs=prompt_logprobs,
            finish_reason=self.finish if self.finished else None,
            stop_reason=self.stop_reason if self.finished else None,
            num_cached_tokens=self.engine.cached if first else 0,
        )
