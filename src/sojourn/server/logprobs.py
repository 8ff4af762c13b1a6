"""TokenLogprobs in the shape of each endpoint. Pure functions of a vocabulary and the engine's numbers.

-inf becomes -9999.0, as JSON has no infinity. A token that is not whole UTF-8 is written `bytes:\\xe6\\x97`, as
OpenAI does, so that two different ones never look alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sojourn.records import SamplingParams, TokenLogprobs
from sojourn.server.seam import Vocabulary

FLOOR = -9999.0


def hides_last_token(finish_reason: str | None, stop_reason: str | int | None, params: SamplingParams) -> bool:
    """Whether the last token ended the choice and is not in its text: end-of-text, or a stop id unless asked for."""
    if finish_reason != "stop" or isinstance(stop_reason, str):
        return False
    return stop_reason is None or not params.include_stop_str_in_output


def finite(logprob: float) -> float:
    return max(logprob, FLOOR)


def token_name(vocabulary: Vocabulary, token_id: int) -> str:
    raw = vocabulary.token_bytes(token_id)
    try:
        return raw.decode() or vocabulary.token_text(token_id)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class ChatLogprobs:
    """`choices[].logprobs` of chat. Joining the `bytes` of a reply gives its text: tokens that the text hides have
    null."""

    def __init__(self, vocabulary: Vocabulary, params: SamplingParams, *, top: int) -> None:
        self._vocabulary = vocabulary
        self._params = params
        self._top = top

    def content(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        finish_reason: str | None,
        stop_reason: str | int | None,
    ) -> list[dict[str, Any]]:
        """`finish_reason` and `stop_reason` are None unless the last of these tokens is the choice's last."""
        entries = [self._entry(token_id, entry) for token_id, entry in zip(ids, logprobs, strict=True)]
        if entries and hides_last_token(finish_reason, stop_reason, self._params):
            entries[-1]["bytes"] = None
        return entries

    def _entry(self, token_id: int, entry: TokenLogprobs) -> dict[str, Any]:
        top = zip(entry.top_ids[: self._top], entry.top_logprobs, strict=False)
        return {**self._token(token_id, entry.logprob), "top_logprobs": [self._token(*pair) for pair in top]}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        hidden = self._params.skip_special_tokens and token_id in self._vocabulary.special_ids
        raw = None if hidden else list(self._vocabulary.token_bytes(token_id))
        return {"token": token_name(self._vocabulary, token_id), "logprob": finite(logprob), "bytes": raw}


class CompletionLogprobs:
    """`choices[].logprobs` of completions: four parallel lists. Keeps the running `text_offset` of one choice, in
    characters."""

    def __init__(self, vocabulary: Vocabulary, *, top: int, hide_special: bool) -> None:
        self._vocabulary = vocabulary
        self._top = top
        self._hide_special = hide_special
        self._characters = 0

    def lists(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> dict[str, list[Any]]:
        """Of the next tokens. None stands for the first prompt token, which nothing predicts."""
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry in zip(ids, logprobs, strict=True):
            result["tokens"].append(token_name(self._vocabulary, token_id))
            result["token_logprobs"].append(None if entry is None else finite(entry.logprob))
            result["top_logprobs"].append(None if entry is None else self._alternatives(token_id, entry))
            result["text_offset"].append(self._advance(token_id))
        return result

    def _alternatives(self, token_id: int, entry: TokenLogprobs) -> dict[str, float]:
        """The most likely first; the chosen token always has its entry."""
        best: dict[str, float] = {}
        for other, logprob in zip(entry.top_ids[: self._top], entry.top_logprobs, strict=False):
            best.setdefault(token_name(self._vocabulary, other), finite(logprob))
        best.setdefault(token_name(self._vocabulary, token_id), finite(entry.logprob))
        return best

    def _advance(self, token_id: int) -> int:
        """Where this token's text begins: a token that continues a character begins where the character does."""
        if self._hide_special and token_id in self._vocabulary.special_ids:
            return self._characters
        raw = self._vocabulary.token_bytes(token_id)
        continues = bool(raw) and _is_continuation(raw[0]) and self._characters > 0
        offset = self._characters - continues
        self._characters += sum(not _is_continuation(byte) for byte in raw)
        return offset


def prompt_logprobs(
    vocabulary: Vocabulary, ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None], *, top: int
) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each prompt token a map from token id (as text) to its logprob, rank and text; null for the
    first."""
    result: list[dict[str, Any] | None] = []
    for token_id, entry in zip(ids, logprobs, strict=True):
        if entry is None:
            result.append(None)
            continue
        found = {str(token_id): (entry.logprob, entry.rank, token_id)}
        for rank, (other, logprob) in enumerate(zip(entry.top_ids[:top], entry.top_logprobs, strict=False), 1):
            found.setdefault(str(other), (logprob, rank, other))
        result.append(
            {
                key: {"logprob": finite(logprob), "rank": rank, "decoded_token": token_name(vocabulary, other)}
                for key, (logprob, rank, other) in found.items()
            }
        )
    return result


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80
