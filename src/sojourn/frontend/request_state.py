"""Owns the text of one choice: token deltas in, text deltas out, stop strings found. No asyncio, no engine, no HTTP.

The server's `AsyncLLM` and the offline `LLM` both drive it. What ends a choice in text only (a stop string) the engine
can't know, so the driver has to abort the choice there when `stopped_early` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sojourn.frontend.detokenizer import IncrementalDetokenizer
from sojourn.frontend.stop_strings import StopStrings
from sojourn.frontend.tokenizer import Tokenizer
from sojourn.records import FinishReason, SamplingParams, TokenDelta, TokenLogprobs


class ChoiceDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New text of one choice, and the tokens it was made of. Tokens wait for their text, so it is rarely empty."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None  # one per token id, if asked for
    prompt_logprobs: list[TokenLogprobs | None] | None  # a slice, in order; position 0 has none
    finish_reason: str | None  # "stop" | "length"; None while running
    stop_reason: str | int | None  # the stop string or stop token id that ended it
    num_cached_tokens: int


class ChoiceState:
    """One choice from its first token to its last. `continues_text`: from the prompt's text on, as completions do.

    Raises nothing of its own; a delta that reports an error or an abort is the driver's to handle and never comes here.
    """

    def __init__(
        self, index: int, tokenizer: Tokenizer, params: SamplingParams, *, continues_text: bool = False
    ) -> None:
        self.index = index
        self.finished = False
        self.stopped_early = False  # ended by a stop string while the engine goes on
        self._params = params
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, continues_text=continues_text
        )
        self._filter = _StopFilter(params) if params.stop else None
        self._num_tokens = 0
        self._num_cached = 0
        self._token_ids: list[int] = []  # not handed out yet, like the two lists below
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs | None] = []

    def push(self, delta: TokenDelta) -> ChoiceDelta | None:
        """What may be shown now; None while everything is held back. Nothing follows a delta with a finish reason."""
        if self.finished:
            return None
        self._num_cached = max(self._num_cached, delta.num_cached_tokens)
        if delta.prompt_logprobs:
            self._prompt_logprobs += delta.prompt_logprobs
        if self._filter is not None or delta.finish_reason is not None:
            return self._push_each(delta)
        self._num_tokens += len(delta.token_ids)
        self._token_ids += delta.token_ids
        if delta.logprobs is not None:
            self._logprobs += delta.logprobs
        text = self._detokenizer.push(delta.token_ids)
        return self._hand_out(text, None, None) if text else None

    def _push_each(self, delta: TokenDelta) -> ChoiceDelta | None:
        """Token by token, since the text may end after any of them."""
        hidden = self._hides_last(delta)
        text = ""
        for position, token_id in enumerate(delta.token_ids):
            self._take(token_id, None if delta.logprobs is None else delta.logprobs[position])
            if not (hidden and position == len(delta.token_ids) - 1):
                text += self._release(self._detokenizer.push([token_id]))
            if self._matched is not None:  # what the same step added after it never happened
                self.stopped_early = delta.finish_reason is None
                return self._hand_out(text, "stop", self._matched)
        if delta.finish_reason is None:
            return self._hand_out(text, None, None) if text else None
        return self._finish(text, delta)

    @property
    def num_tokens(self) -> int:
        """Of the reply so far."""
        return self._num_tokens

    @property
    def _matched(self) -> str | None:
        return None if self._filter is None else self._filter.matched

    def _hides_last(self, delta: TokenDelta) -> bool:
        """Whether the last token ended it and must not be shown: end-of-text, or a stop id unless asked for."""
        if delta.finish_reason is not FinishReason.STOP:
            return False
        return delta.stop_token_id is None or not self._params.include_stop_str_in_output

    def _take(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        self._num_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)

    def _release(self, text: str) -> str:
        if self._filter is None:
            return text
        return self._filter.push(text, may_stop=self._num_tokens > self._params.min_tokens)

    def _finish(self, text: str, delta: TokenDelta) -> ChoiceDelta:
        text += self._release(self._detokenizer.flush())
        if self._matched is not None:
            return self._hand_out(text, "stop", self._matched)
        if self._filter is not None:
            text += self._filter.flush()
        return self._hand_out(text, str(delta.finish_reason), delta.stop_token_id)

    def _hand_out(self, text: str, finish_reason: str | None, stop_reason: str | int | None) -> ChoiceDelta:
        self.finished = finish_reason is not None
        delta = ChoiceDelta(
            index=self.index,
            text=text,
            token_ids=self._token_ids,
            logprobs=None if self._params.logprobs is None else self._logprobs,
            prompt_logprobs=self._prompt_logprobs or None,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_cached_tokens=self._num_cached,
        )
        self._token_ids, self._logprobs, self._prompt_logprobs = [], [], []
        return delta


class _StopFilter:
    """Stop strings with vLLM's `min_tokens` rule: a match that completes too early is ordinary text.

    A stop string that begins before min_tokens exist and completes after them does end the choice.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._stops = params.stop
        self._include = params.include_stop_str_in_output
        self._search = StopStrings(self._stops, include_in_output=self._include)
        self._held = ""  # pushed, not released
        self.matched: str | None = None

    def push(self, text: str, *, may_stop: bool) -> str:
        out = ""
        while text:
            released = self._search.push(text)
            candidate = self._held + text
            matched = self._search.matched
            if matched is None:
                self._held = candidate[len(released) :]
                return out + released
            if may_stop:
                self.matched = matched
                return out + released
            end = len(released) + (0 if self._include else len(matched))
            out += candidate[:end]
            text, self._held = candidate[end:], ""
            self._search = StopStrings(self._stops, include_in_output=self._include)
        return out

    def flush(self) -> str:
        return self._search.flush()


def merge_by_choice(deltas: Sequence[ChoiceDelta]) -> list[ChoiceDelta]:
    """One delta for each choice that has any."""
    by_choice: dict[int, list[ChoiceDelta]] = {}
    for delta in deltas:
        by_choice.setdefault(delta.index, []).append(delta)
    return [merge(each) for each in by_choice.values()]


def merge(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """Consecutive deltas of one choice as one. A consumer that fell behind catches up in a single piece."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    prompt_logprobs = [entry for delta in deltas for entry in delta.prompt_logprobs or ()]
    return ChoiceDelta(
        index=last.index,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=None if last.logprobs is None else [entry for delta in deltas for entry in delta.logprobs or ()],
        prompt_logprobs=prompt_logprobs or None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        num_cached_tokens=last.num_cached_tokens,
    )
