"""The engine without a server: `LLMEngine` steps by hand, `LLM` generates and chats. Owns no threads and no sockets."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from sojourn.config import DEFAULT_STEP_TOKENS, CacheConfig, EngineConfig, SchedulerConfig
from sojourn.core.build import build_from_model
from sojourn.core.request import Request
from sojourn.core.scheduler import Scheduler
from sojourn.core.step_log import StepLog
from sojourn.errors import InvalidRequest
from sojourn.executor.model import Model
from sojourn.frontend.chat_template import load_chat_template
from sojourn.frontend.request_checks import choice_params
from sojourn.frontend.request_state import ChoiceDelta, ChoiceState
from sojourn.frontend.tokenizer import load_tokenizer
from sojourn.records import EngineRequest, SamplingParams, TokenDelta, TokenLogprobs

Message = Mapping[str, Any]


class LLMEngine:
    """An engine to step by hand, with prompts as token ids.

    model = Model.from_pretrained("smollm2:135m")
    engine = LLMEngine(model, eos_token_id=2, max_num_batched_tokens=64)
    request = engine.add_request([1, 2, 3], SamplingParams(max_tokens=8))
    while engine.has_unfinished():
        engine.step()
    print(request.output_ids)
    """

    def __init__(
        self,
        model: Model,
        *,
        eos_token_id: int | Sequence[int] | None = None,
        max_num_batched_tokens: int = DEFAULT_STEP_TOKENS,
        max_num_seqs: int = SchedulerConfig().max_num_seqs,
        max_model_len: int | None = None,
        cache: CacheConfig | None = None,
        threads: int | None = None,
        backend: Literal["auto", "native", "reference"] = "auto",
    ) -> None:
        config = EngineConfig(
            model=str(model.checkpoint.path),
            max_model_len=max_model_len,
            threads=threads,
            backend=backend,
            scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens),
            cache=cache or CacheConfig(),
        )
        self.core = build_from_model(model, config)
        self._eos = (eos_token_id,) if isinstance(eos_token_id, int) else tuple(eos_token_id or ())
        self._names = itertools.count()

    @property
    def scheduler(self) -> Scheduler:
        return self.core.scheduler

    @property
    def step_log(self) -> StepLog:
        return self.core.step_log

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams | None = None) -> Request:
        """Queue a prompt; its request_id is a running number. Raises ContextLengthExceeded or InvalidRequest.

        A request is one choice, in token ids: `n` and `stop` are refused, they are LLM's.
        """
        params = params or SamplingParams()
        if params.n > 1 or params.stop:
            field = "n" if params.n > 1 else "stop"
            raise InvalidRequest(
                f"LLMEngine has neither choices nor text; use LLM.generate() for {field}.", param=field
            )
        return self.core.add_request(
            EngineRequest(
                request_id=str(next(self._names)),
                prompt_ids=list(prompt_ids),
                params=params,
                eos_token_ids=self._eos,
                arrival_ns=time.monotonic_ns(),
            )
        )

    def abort(self, request_ids: Iterable[str]) -> None:
        self.core.abort(request_ids)

    def has_unfinished(self) -> bool:
        return self.core.has_unfinished()

    def step(self) -> list[TokenDelta]:
        return self.core.step()


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a finished request."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None  # "stop" | "length" | "error"
    stop_reason: str | int | None = None
    error: str | None = None

    def extend(self, delta: ChoiceDelta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *delta.logprobs]
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """A finished request: its prompt and its n choices."""

    request_id: str
    prompt_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0


class LLM:
    """Offline generation with the same scheduler, cache and sampler as the server.

    llm = LLM("smollm2:135m")
    print(llm.chat([{"role": "user", "content": "Hello"}])[0].outputs[0].text)
    """

    def __init__(self, model: str = EngineConfig().model, *, chat_template: str | None = None, **engine: Any) -> None:
        """`chat_template` is a file. `engine` are arguments of LLMEngine; `eos_token_id` is the tokenizer's."""
        opened = Model.from_pretrained(model)
        checkpoint = opened.checkpoint
        self.tokenizer = load_tokenizer(directory=checkpoint.directory, metadata=checkpoint.metadata)
        self.chat_template = load_chat_template(
            directory=checkpoint.directory,
            metadata=checkpoint.metadata,
            override=None if chat_template is None else Path(chat_template),
            tokenizer=self.tokenizer,
        )
        self.engine = LLMEngine(opened, eos_token_id=self.tokenizer.eos_token_ids, **engine)

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete one or more raw prompts, as text or token ids. Outputs come in the order of the prompts.

        Raises InvalidRequest or ContextLengthExceeded before anything is computed.
        """
        several: Sequence[str | Sequence[int]] = [prompts] if isinstance(prompts, str) else prompts
        ids = [self.tokenizer.encode(p) if isinstance(p, str) else list(p) for p in several]
        return self._run(ids, params, continues_text=True)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several at once, through the model's chat template."""
        if self.chat_template is None:
            raise InvalidRequest("This model has no chat template; give one, or use generate().", param="messages")
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[Message]]", [messages] if single else messages)
        rendered = [self.chat_template.render(each, template_kwargs=template_kwargs) for each in conversations]
        return self._run([self.tokenizer.encode_prompt(prompt) for prompt in rendered], params, continues_text=False)

    def _run(
        self,
        prompts: list[list[int]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        continues_text: bool,
    ) -> list[RequestOutput]:
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(prompts):
            raise InvalidRequest(f"{len(prompts)} prompts but {len(each)} sampling params.", param="params")
        results: list[RequestOutput] = []
        choices: dict[str, tuple[ChoiceState, RequestOutput]] = {}
        try:
            for prompt_ids, wanted in zip(prompts, each, strict=True):
                result = RequestOutput("", prompt_ids, [CompletionOutput(index) for index in range(wanted.n)])
                results.append(result)
                for index, engine_params in enumerate(choice_params(wanted)):
                    request = self.engine.add_request(prompt_ids, engine_params)
                    result.request_id = result.request_id or request.request_id
                    state = ChoiceState(index, self.tokenizer, wanted, continues_text=continues_text)
                    choices[request.request_id] = state, result
            while choices:
                for delta in self.engine.step():
                    self._take(delta, choices)
        finally:  # a refused prompt, or an interrupt: what was already added must not run later
            self.engine.abort(choices)
        return results

    def _take(self, delta: TokenDelta, choices: dict[str, tuple[ChoiceState, RequestOutput]]) -> None:
        state, result = choices[delta.request_id]
        output = result.outputs[state.index]
        if delta.error is not None:
            output.finish_reason, output.error = "error", delta.error
            del choices[delta.request_id]
            return
        shown = state.push(delta)
        if shown is not None:
            output.extend(shown)
            result.num_cached_tokens = max(result.num_cached_tokens, shown.num_cached_tokens)
            if shown.prompt_logprobs is not None:
                result.prompt_logprobs = shown.prompt_logprobs
        if state.stopped_early:
            self.engine.abort([delta.request_id])
        if state.finished:
            del choices[delta.request_id]
