"""One generation request on its way from the body to the reply: what chat and completions do alike. Lives as long as
the request."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import Request, Response

from sojourn.records import SamplingParams
from sojourn.records.checks import check_request
from sojourn.server.chunks import Envelope
from sojourn.server.context import served_model
from sojourn.server.generation import Generation, Submission, Totals
from sojourn.server.lifeline import Lifeline
from sojourn.server.protocol import SamplingBody
from sojourn.server.request_ids import RequestIds
from sojourn.server.seam import Engine
from sojourn.server.sse import ChunkEncoder, EventStream


class Call:
    def __init__(
        self, request: Request, engine: Engine, body: SamplingBody, *, id_prefix: str, prompt_field: str
    ) -> None:
        """Raises NotFound for a model that is not served."""
        ids = RequestIds.of(request.scope)
        self.model = served_model(engine, body.model)
        self.reply_id = ids.for_reply(id_prefix)
        self.created = int(time.time())
        self.totals = Totals()
        self.lifeline = Lifeline.of(request.scope)
        self._arrival_ns = ids.arrival_ns
        self.engine = engine
        self._body = body
        self._prompt_field = prompt_field

    def envelope(self, object_name: str) -> Envelope:
        return Envelope(self.reply_id, object_name, self.created, self.model, self._body.include_usage)

    def fit(self, prompt_ids: list[int], params: SamplingParams) -> list[int]:
        """The prompt, cut only if the request asks for it.

        Raises InvalidRequest for an empty prompt or an id outside the vocabulary, ContextLengthExceeded for a prompt
        that is too long.
        """
        keep = self._body.truncate_prompt_tokens
        if keep is not None:
            keep = self.engine.info.max_model_len - 1 if keep == -1 else keep
            self.totals.truncated_tokens += max(0, len(prompt_ids) - keep)
            prompt_ids = prompt_ids[-keep:]
        check_request(prompt_ids, params, self.engine.info, prompt_field=self._prompt_field)
        self.totals.prompt_tokens += len(prompt_ids)
        return prompt_ids

    def submit(self, prompts: Sequence[list[int]], params: SamplingParams, *, continues_text: bool) -> Generation:
        """All prompts or none. The generation ends with the request, however that ends."""
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
                )
            )
        return generation

    async def stream(self, generation: Generation, encoder: ChunkEncoder) -> Response:
        """Waits for the first news, so that a failure before it is still an ordinary error with its status."""
        first = await anext(generation)
        return EventStream(generation, encoder, first, self.lifeline)
