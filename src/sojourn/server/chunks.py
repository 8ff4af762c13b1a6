"""The chunks of both endpoints, hand-encoded: only text, logprobs and the end change from one to the next. Owner of
one stream's choices.

Per choice: a first chunk, text as soon as there is some, exactly one finish. News of one batch is merged, so a
reader that fell behind gets few large chunks instead of many small ones. No chunk has empty text, unless it is the
first or the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sojourn.errors import RequestFailed
from sojourn.records import TokenLogprobs
from sojourn.server.generation import Batch, Totals
from sojourn.server.logprobs import ChatLogprobs, CompletionLogprobs
from sojourn.server.replies import Usage
from sojourn.server.seam import Delta
from sojourn.server.sse import DONE, encode_json


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of a stream have in common."""

    reply_id: str
    object: str
    created: int
    model: str
    include_usage: bool

    def head(self) -> bytes:
        """Up to and including `"choices":[`."""
        fields = encode_json({"id": self.reply_id, "object": self.object, "created": self.created, "model": self.model})
        return b"data: " + fields[:-1] + b',"choices":['

    def tail(self) -> bytes:
        """From `]` of the choices on. OpenAI's chunks say null where the usage is still to come."""
        return b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"

    def last(self, totals: Totals, timings: Mapping[str, Any] | None) -> bytes:
        """A chunk without choices for what was asked for beside them, then the end."""
        extra = b""
        if self.include_usage:
            extra += b',"usage":' + Usage.of(totals).model_dump_json(exclude_unset=True).encode()
        if timings is not None:
            extra += b',"timings":' + encode_json(timings)
        return self.head() + b"]" + extra + b"}\n\n" + DONE if extra else DONE


@dataclass(slots=True)
class _Pending:
    """What one choice has said and no chunk has carried yet."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached_tokens: int = 0
    started: bool = False
    finished: bool = False  # its last chunk is out
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: Delta, *, keep_logprobs: bool) -> None:
        if delta.text:
            self.text.append(delta.text)
        if keep_logprobs and delta.logprobs:
            self.token_ids += delta.token_ids
            self.logprobs += delta.logprobs
        self.cached_tokens = max(self.cached_tokens, delta.num_cached_tokens)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason

    def is_between(self, delta: Delta) -> bool:
        """Whether `delta` is nothing but text after the first chunk and before the last, as nearly all are."""
        return (
            self.started
            and not self.text
            and delta.finish_reason is None
            and delta.num_cached_tokens <= self.cached_tokens
            and not delta.prompt_logprobs
            and delta.text != ""
        )

    def take_text(self) -> str:
        text = self.text[0] if len(self.text) == 1 else "".join(self.text)
        self.text = []
        return text

    def take_logprobs(self) -> tuple[list[int], list[TokenLogprobs]]:
        taken = self.token_ids, self.logprobs
        self.token_ids, self.logprobs = [], []
        return taken

    def end(self) -> bytes:
        """`"finish_reason":...}`, with the reason's detail if there is one."""
        ending = b'"finish_reason":' + encode_json(self.finish_reason)
        if self.stop_reason is not None:
            ending += b',"stop_reason":' + encode_json(self.stop_reason)
        return ending + b"}"


class ChatChunks:
    """`chat.completion.chunk`. The first chunk of a choice has the role, the last only its finish_reason."""

    def __init__(self, envelope: Envelope, totals: Totals, count: int, logprobs: ChatLogprobs | None) -> None:
        self._envelope = envelope
        self._totals = totals
        self._logprobs = logprobs
        self._choices = [_Pending() for _ in range(count)]
        self._heads = [envelope.head() + b'{"index":%d,"delta":' % index for index in range(count)]
        self._tail = envelope.tail()
        self._text_heads = [head + b'{"content":' for head in self._heads]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self._tail

    def encode(self, batch: Batch) -> bytes:
        if self._logprobs is None and len(batch) == 1 and self._choices[batch[0][0]].is_between(batch[0][1]):
            index, delta = batch[0]
            self._totals.completion_tokens += len(delta.token_ids)
            return self._text_heads[index] + encode_json(delta.text) + self._text_tail
        return self.encode_any(batch)

    def encode_any(self, batch: Batch) -> bytes:
        """`encode` of whatever news there can be."""
        touched: dict[int, _Pending] = {}
        for index, delta in batch:
            touched[index] = choice = self._choices[index]
            self._totals.completion_tokens += len(delta.token_ids)
            choice.add(delta, keep_logprobs=self._logprobs is not None)
        frames: list[bytes] = []
        for index, choice in touched.items():
            self._add_frames(frames, self._heads[index], choice)
        return b"".join(frames)

    def _add_frames(self, frames: list[bytes], head: bytes, choice: _Pending) -> None:
        if not choice.started:
            choice.started = True
            frames += (head, b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}', self._tail)
        if choice.text:
            text = encode_json(choice.take_text())
            frames += (head, b'{"content":', text, b'},"logprobs":', self._take_logprobs(choice))
            frames += (b',"finish_reason":null}', self._tail)
        if choice.finish_reason is not None:
            choice.finished = True
            frames += (head, b'{},"logprobs":', self._take_logprobs(choice), b",", choice.end(), self._tail)

    def _take_logprobs(self, choice: _Pending) -> bytes:
        if self._logprobs is None or not choice.logprobs:
            return b"null"
        taken = choice.take_logprobs()
        content = self._logprobs.content(*taken, choice.finish_reason, choice.stop_reason)
        return encode_json({"content": content, "refusal": None})

    def finish(self, timings: Mapping[str, Any] | None) -> bytes:
        self._totals.cached_tokens = self._choices[0].cached_tokens
        return self._envelope.last(self._totals, timings)


@dataclass(slots=True)
class Echo:
    """A prompt that its reply begins with. `logprobs` fill up while the prompt is computed."""

    text: str
    prompt_ids: list[int]
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)


class CompletionChunks:
    """`text_completion`. With echo and logprobs nothing is shown before the prompt's logprobs are complete."""

    def __init__(
        self,
        envelope: Envelope,
        totals: Totals,
        *,
        choices_per_prompt: int,
        echoes: list[Echo],
        logprobs: list[CompletionLogprobs] | None,
    ) -> None:
        """`echoes`: one per prompt; empty text without echo. `logprobs`: one per choice."""
        self._envelope = envelope
        self._totals = totals
        self._n = choices_per_prompt
        self._echoes = echoes
        self._logprobs = logprobs
        count = len(echoes) * choices_per_prompt
        self._choices = [_Pending() for _ in range(count)]
        self._heads = [envelope.head() + b'{"index":%d,"text":' % index for index in range(count)]
        self._tail = envelope.tail()
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self._tail

    def encode(self, batch: Batch) -> bytes:
        if self._logprobs is None and len(batch) == 1 and self._choices[batch[0][0]].is_between(batch[0][1]):
            index, delta = batch[0]
            self._totals.completion_tokens += len(delta.token_ids)
            return self._heads[index] + encode_json(delta.text) + self._text_tail
        return self.encode_any(batch)

    def encode_any(self, batch: Batch) -> bytes:
        """`encode` of whatever news there can be."""
        touched: dict[int, None] = {}
        for index, delta in batch:
            self._take(index, delta)
            touched[index] = None
            if delta.prompt_logprobs:  # siblings may have waited for the prompt they share
                first = index - index % self._n
                touched.update(dict.fromkeys(range(first, first + self._n)))
        frames: list[bytes] = []
        for index in touched:
            self._add_frame(frames, index)
        return b"".join(frames)

    def _take(self, index: int, delta: Delta) -> None:
        choice = self._choices[index]
        if index % self._n == 0 and delta.prompt_logprobs:
            self._echoes[index // self._n].logprobs += delta.prompt_logprobs
        self._totals.completion_tokens += len(delta.token_ids)
        choice.add(delta, keep_logprobs=self._logprobs is not None)

    def _add_frame(self, frames: list[bytes], index: int) -> None:
        choice = self._choices[index]
        echo = self._echoes[index // self._n]
        news = choice.text or choice.finish_reason is not None or (echo.text and not choice.started)
        if choice.finished or not news or not self._prompt_is_ready(echo):
            return
        first = not choice.started
        choice.started = True
        text = (echo.text if first else "") + choice.take_text()
        frames += (
            self._heads[index],
            encode_json(text),
            b',"logprobs":',
            self._take_logprobs(index, echo, first),
            b",",
        )
        if choice.finish_reason is None:
            frames += (b'"finish_reason":null}', self._tail)
        else:
            choice.finished = True
            frames += (choice.end(), self._tail)

    def _prompt_is_ready(self, echo: Echo) -> bool:
        return self._logprobs is None or not echo.text or len(echo.logprobs) >= len(echo.prompt_ids)

    def _take_logprobs(self, index: int, echo: Echo, first: bool) -> bytes:
        if self._logprobs is None:
            return b"null"
        ids, logprobs = self._choices[index].take_logprobs()
        if first and echo.text:
            return encode_json(self._logprobs[index].lists([*echo.prompt_ids, *ids], [*echo.logprobs, *logprobs]))
        return encode_json(self._logprobs[index].lists(ids, logprobs))

    def finish(self, timings: Mapping[str, Any] | None) -> bytes:
        if not all(choice.finished for choice in self._choices):
            raise RequestFailed("The engine did not give the logprobs of the whole prompt.")
        self._totals.cached_tokens = sum(choice.cached_tokens for choice in self._choices[:: self._n])
        return self._envelope.last(self._totals, timings)
