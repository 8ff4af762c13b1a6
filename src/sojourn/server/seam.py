"""What HTTP needs of the front end, as protocols. Holds no logic; `frontend.async_llm.AsyncLLM` and the tests' fake
both fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from sojourn.records import EngineInfo, EngineStats, SamplingParams, TokenLogprobs
from sojourn.timeline.records import RequestRecord

State = Literal["loading", "ready", "draining", "stuck", "dead"]


class Vocabulary(Protocol):
    """The tokenizer, as far as replies need it."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def token_text(self, token_id: int) -> str: ...


class Delta(Protocol):
    """News of one choice. `index` counts the choices of one prompt."""

    @property
    def index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[TokenLogprobs] | None: ...
    @property
    def prompt_logprobs(self) -> list[TokenLogprobs | None] | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_reason(self) -> str | int | None: ...
    @property
    def num_cached_tokens(self) -> int: ...


class Engine(Protocol):
    """The front end. Everything but `state` and `stats` may be used only once the state has left "loading"."""

    @property
    def state(self) -> State: ...
    @property
    def stats(self) -> EngineStats: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def tokenizer(self) -> Vocabulary: ...
    @property
    def chat_template(self) -> object | None: ...
    @property
    def served_names(self) -> tuple[str, ...]: ...
    @property
    def capacity(self) -> int:
        """The most choices it holds at once; a request with more would be refused for ever."""
        ...

    @property
    def engine_pid(self) -> int | None:
        """None when the engine is a thread or not running."""
        ...

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        must_fit: bool = True,
        record: RequestRecord | None = None,
    ) -> list[int]: ...

    async def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        must_fit: bool = True,
        record: RequestRecord | None = None,
    ) -> list[int]: ...

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
    ) -> AsyncIterator[Sequence[Delta]]: ...

    async def abort(self, request_id: str) -> None: ...
    async def drain(self, timeout: float) -> None: ...  # noqa: ASYNC109  the engine fails what is left when it is over
    async def close(self) -> None: ...
