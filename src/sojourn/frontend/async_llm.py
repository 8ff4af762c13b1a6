"""Owns the engine as the server sees it: text in, text out, requests admitted or refused. Never HTTP, never KV.

Everything a request can be refused for is decided when it is submitted; after that it only waits for the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sojourn.config import FrontendConfig
from sojourn.errors import InvalidRequest, QueueFull, RequestTimeout, Unavailable
from sojourn.frontend.chat_template import ChatTemplate
from sojourn.frontend.engine_client import EngineClient, OnProgress
from sojourn.frontend.reply import Reply, ReplyStream
from sojourn.frontend.request_checks import check_routing, choice_params
from sojourn.frontend.request_state import ChoiceDelta, ChoiceState
from sojourn.frontend.text_pool import TextPool
from sojourn.frontend.tokenizer import Tokenizer
from sojourn.records import EngineInfo, EngineRequest, EngineStats, SamplingParams
from sojourn.records.checks import check_request, prompt_too_long
from sojourn.timeline.records import ChoiceRecord, RequestRecord

__all__ = ["AsyncLLM", "ChoiceDelta", "ReplyStream"]

State = Literal["loading", "ready", "draining", "stuck", "dead"]

PLAUSIBLE_CHARS_PER_TOKEN = 16  # a text below this density is tokenized without asking whether it can fit

_NOT_READY = {
    "loading": ("loading", "The model is still loading."),
    "draining": ("draining", "The server is shutting down."),
    "stuck": ("engine_stuck", "The engine makes no progress."),
    "dead": ("engine_dead", "The engine is not running."),
}


class AsyncLLM:
    """Used on one event loop only. `await start()` before submitting."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
        config: FrontendConfig,
        *,
        model_name: str,
        max_num_seqs: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.served_names = config.served_model_name or (model_name,)
        self._client = client
        self._config = config
        self._max_in_flight = max_num_seqs + config.max_num_queued_reqs
        self._text = TextPool()
        self._draining = False
        self._copies = itertools.count(2)
        self._longest_token: int | None = None  # characters; found when a prompt is first suspiciously long

    @property
    def info(self) -> EngineInfo:
        """Raises Unavailable while the engine loads for the first time."""
        return self._client.info

    @property
    def stats(self) -> EngineStats:
        """As of the last step; all zero while there is no engine."""
        return self._client.stats

    @property
    def state(self) -> State:
        return "draining" if self._draining else self._client.state

    @property
    def progress(self) -> tuple[str, float]:
        """Stage of loading, and the fraction of it that is done."""
        return self._client.progress

    @property
    def engine_pid(self) -> int | None:
        """None when the engine is a thread or not running."""
        return self._client.pid

    @property
    def num_in_flight(self) -> int:
        """Choices that are queued or running, as admission counts them."""
        return self._client.num_in_flight

    @property
    def capacity(self) -> int:
        """The most choices that may be in flight: running and queued together."""
        return self._max_in_flight

    async def start(self, on_progress: OnProgress | None = None) -> EngineInfo:
        """Starts the engine and waits until it can serve. Raises StartupError."""
        return await self._client.start(on_progress)

    async def gave_up(self) -> str:
        """Returns the reason once the engine has died and won't be restarted: the server should exit non-zero."""
        return await self._client.gave_up()

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        must_fit: bool = True,
        record: RequestRecord | None = None,
    ) -> list[int]:
        """Token ids of a raw prompt. Raises ContextLengthExceeded early when no tokenization of it could fit.

        `must_fit` is False for a prompt that will be cut.
        """
        info = self.info

        def work() -> list[int]:
            if must_fit:
                self._check_text(text, info, "prompt")
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

        if record is not None:
            record.begin_text()
            record.end_render(text)
        ids = await self._text.run(work, what="tokenize the prompt", param="prompt")
        if record is not None:
            record.end_text()
        return ids

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        must_fit: bool = True,
        record: RequestRecord | None = None,
    ) -> list[int]:
        """Messages through the chat template to token ids. Raises InvalidRequest with the template's own message.

        `must_fit`: see `tokenize`.
        """
        template, info = self.chat_template, self.info
        if template is None:
            raise InvalidRequest(
                "This model has no chat template. Start the server with --chat-template FILE, or use /v1/completions.",
                param="messages",
            )

        def work() -> list[int]:
            prompt = template.render(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=template_kwargs,
                trust_message_tokens=self._config.trust_message_tokens,
            )
            if record is not None:
                record.end_render(prompt.text)
            if must_fit:
                self._check_text(prompt.text, info, "messages")
            return self.tokenizer.encode_prompt(prompt)

        if record is not None:
            record.begin_text()
        ids = await self._text.run(work, what="render the messages", param="messages")
        if record is not None:
            record.end_text()
        return ids

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
    ) -> ReplyStream:
        """Checks, admits and sends a request; all of its choices or none. `continues_text`: see ChoiceState.

        `request_id` may be in use already: the engine's ids are made unique here. `arrival_ns` is time.monotonic_ns().
        Raises Unavailable, InvalidRequest, ContextLengthExceeded or QueueFull at once. The stream yields lists of at
        most one delta per choice and raises RequestFailed, RequestTimeout or Unavailable.
        """
        began_ns = time.monotonic_ns()
        self._require_ready()
        check_routing(priority, cache_salt)
        check_request(prompt_ids, params, self.info, eos_token_ids=self.tokenizer.eos_token_ids)
        self._admit(params.n)
        requests = [
            EngineRequest(
                request_id=engine_id,
                prompt_ids=prompt_ids,
                params=wanted,
                eos_token_ids=self.tokenizer.eos_token_ids,
                priority=priority,
                cache_salt=cache_salt,
                arrival_ns=arrival_ns,
            )
            for engine_id, wanted in zip(self._engine_ids(request_id, params.n), choice_params(params), strict=True)
        ]
        choices = {
            request.request_id: ChoiceState(index, self.tokenizer, params, continues_text=continues_text)
            for index, request in enumerate(requests)
        }
        records: dict[str, ChoiceRecord] = {}
        if record is not None and self._client.recorder is not None:
            record.submitted_ns = record.submitted_ns or began_ns
            records = self._client.recorder.attach(
                record, list(choices), prompt_tokens=len(prompt_ids), priority=priority
            )
        reply = Reply(request_id, choices, records)
        self._client.add(reply, requests)
        self._limit_time(reply, arrival_ns)
        return ReplyStream(reply, self._client.abort)

    async def abort(self, request_id: str) -> None:
        """Ends every request of this id in any state; its stream just ends. Unknown and finished ids are no-ops."""
        for reply in self._client.replies():
            if reply.request_id == request_id:
                self._client.abort(reply)

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  what happens at its end is more than cancelling
        """Refuses new requests, gives those in flight `timeout` seconds, then fails the rest with Unavailable."""
        self._draining = True
        try:
            await asyncio.wait_for(self._client.wait_idle(), timeout)
        except TimeoutError:
            self._client.fail_all(Unavailable("The server is shutting down.", code="draining"))

    async def close(self) -> None:
        """Stops the engine; what is still in flight fails with Unavailable. Idempotent."""
        self._draining = True
        await self._client.close()
        self._text.close()

    def _require_ready(self) -> None:
        state = self.state
        if state != "ready":
            code, message = _NOT_READY[state]
            raise Unavailable(message, code=code)

    def _admit(self, num_choices: int) -> None:
        if num_choices > self._max_in_flight:
            raise InvalidRequest(f"n is larger than the {self._max_in_flight} choices this server holds.", param="n")
        if self._client.num_in_flight + num_choices > self._max_in_flight:
            raise QueueFull(f"The server holds {self._max_in_flight} requests and takes no more for now.")

    def _engine_ids(self, request_id: str, num_choices: int) -> list[str]:
        base = request_id
        while True:
            ids = [base] if num_choices == 1 else [f"{base}/{index}" for index in range(num_choices)]
            if not any(self._client.may_speak_of(engine_id) for engine_id in ids):
                return ids
            base = f"{request_id}#{next(self._copies)}"

    def _limit_time(self, reply: Reply, arrival_ns: int) -> None:
        limit = self._config.request_timeout
        if limit is None:
            return
        left = limit - (time.monotonic_ns() - arrival_ns) / 1e9
        error = RequestTimeout(f"The request took longer than the {limit:g} s this server allows.")
        reply.timer = asyncio.get_running_loop().call_later(max(0.0, left), self._client.fail, reply, error)

    def _check_text(self, text: str, info: EngineInfo, field: str) -> None:
        """In a text thread. A prompt's tokens are at least its characters divided by the longest token's."""
        if len(text) <= info.max_model_len * PLAUSIBLE_CHARS_PER_TOKEN:
            return
        if self._longest_token is None:
            ids = range(self.tokenizer.vocab_size)
            self._longest_token = max(len(self.tokenizer.token_bytes(token_id)) for token_id in ids)
        least = -(-len(text) // self._longest_token)
        if least > info.max_model_len:
            found = f"has {len(text)} characters, so at least {least} tokens"
            raise prompt_too_long(found, info, prompt_field=field)
