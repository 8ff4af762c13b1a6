"""One generation request on its way from the body to the reply: what chat and completions do alike. Lives as long as
the request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response

from sojourn.errors import InvalidRequest
from sojourn.records import SamplingParams
from sojourn.records.checks import check_request
from sojourn.server.chunks import Envelope
from sojourn.server.context import ServerContext, served_model
from sojourn.server.generation import Generation, Submission, Totals
from sojourn.server.lifeline import Lifeline
from sojourn.server.protocol import SamplingBody
from sojourn.server.replies import ChatCompletion, Completion, reply
from sojourn.server.request_ids import RequestIds
from sojourn.server.sse import ChunkEncoder, EventStream
from sojourn.timeline.timings import server_timing, timings_document

MAX_PROMPT_LOGPROBS = 2**20  # entries in one reply: each choice carries all of its prompt's


class Call:
    def __init__(
        self, request: Request, server: ServerContext, body: SamplingBody, *, id_prefix: str, prompt_field: str
    ) -> None:
        """Raises Unavailable without an engine, NotFound for a model that is not served, InvalidRequest for timings
        where no records are kept."""
        engine = server.gate.engine()
        ids = RequestIds.of(request.scope)
        self.model = served_model(engine, body.model)
        self.reply_id = ids.for_reply(id_prefix)
        self.record = ids.record
        if self.record is not None:
            self.record.parsed_ns = time.monotonic_ns()
            self.record.model, self.record.streamed = self.model, body.stream
        self.created = int(time.time())
        self.totals = Totals()
        self._wants_timings = body.timings or server.config.timings
        if body.timings and self.record is None:
            raise InvalidRequest("This server keeps no records (SOJOURN_RECORDS=0).", param="timings")
        self.lifeline = Lifeline.of(request.scope)
        self._arrival_ns = ids.arrival_ns
        self.engine = engine
        self._body = body
        self._prompt_field = prompt_field
        self._num_prompt_logprobs = 0

    def envelope(self, object_name: str) -> Envelope:
        return Envelope(self.reply_id, object_name, self.created, self.model, self._body.include_usage)

    def fit(self, prompt_ids: list[int], params: SamplingParams) -> list[int]:
        """The prompt, cut only if the request asks for it.

        Raises InvalidRequest for an empty prompt or an id outside the vocabulary, ContextLengthExceeded for a prompt
        that is too long, InvalidRequest for more prompt logprobs than a reply may hold.
        """
        keep = self._body.truncate_prompt_tokens
        if keep is not None:
            keep = self.engine.info.max_model_len - 1 if keep == -1 else keep
            self.totals.truncated_tokens += max(0, len(prompt_ids) - keep)
            prompt_ids = prompt_ids[-keep:]
        check_request(prompt_ids, params, self.engine.info, prompt_field=self._prompt_field)
        self.totals.prompt_tokens += len(prompt_ids)
        self._bound_prompt_logprobs(len(prompt_ids), params)
        return prompt_ids

    def _bound_prompt_logprobs(self, length: int, params: SamplingParams) -> None:
        if params.prompt_logprobs is None:
            return
        self._num_prompt_logprobs += params.n * length * (1 + params.prompt_logprobs)
        if self._num_prompt_logprobs > MAX_PROMPT_LOGPROBS:
            field = "n" if params.n > 1 else "prompt_logprobs"
            raise InvalidRequest(
                f"The reply would hold more than {MAX_PROMPT_LOGPROBS} logprobs of prompt tokens: ask for fewer "
                "choices, prompts or alternatives.",
                param=field,
            )

    def submit(self, prompts: Sequence[list[int]], params: SamplingParams, *, continues_text: bool) -> Generation:
        """All prompts or none. The generation ends with the request, however that ends.

        Raises InvalidRequest for more choices than the server ever holds, QueueFull for more than it can take now.
        """
        count = len(prompts) * params.n
        if count > self.engine.capacity:
            rule = f"prompts times n is {count}, more than the {self.engine.capacity} choices this server holds."
            raise InvalidRequest(rule, param=self._prompt_field if params.n == 1 else "n")
        if self.record is not None:
            self.record.params = params
        generation = Generation(self.engine)
        self.lifeline.cleanup.push_async_callback(generation.close)
        for position, prompt_ids in enumerate(prompts):
            generation.submit(
                Submission(
                    request_id=self.reply_id if len(prompts) == 1 else f"{self.reply_id}-{position}",
                    prompt_ids=prompt_ids,
                    params=params,
                    priority=self._body.priority,
                    cache_salt=self._body.cache_salt or "",
                    arrival_ns=self._arrival_ns,
                    continues_text=continues_text,
                ),
                self.record,
            )
        return generation

    async def stream(self, generation: Generation, encoder: ChunkEncoder) -> Response:
        """Waits for the first news, so that a failure before it is still an ordinary error with its status."""
        first = await anext(generation)
        return EventStream(generation, encoder, first, self.lifeline, record=self.record, timings=self.timings)

    def timings(self) -> dict[str, Any] | None:
        """The account so far, if the reply is to have it."""
        if self.record is None or not self._wants_timings:
            return None
        return timings_document(self.record, time.monotonic_ns())

    def reply(self, body: ChatCompletion | Completion) -> Response:
        """In one piece, with the account as a header, and in the body if wanted."""
        timings = self.timings()
        if timings is not None:
            body.timings = timings
        response = reply(body)
        if self.record is not None:
            response.headers["server-timing"] = server_timing(self.record, time.monotonic_ns())
        return response
