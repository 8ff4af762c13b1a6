"""Chat messages to one prompt, by the model's own Jinja template. Owns no model state.

Blocking and pure: call it off the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from sojourn.errors import InvalidRequest, StartupError
from sojourn.frontend.message_guard import MessageGuard, strings_in
from sojourn.frontend.rendered_prompt import RenderedPrompt
from sojourn.frontend.template_environment import TemplateEnvironment, TemplateRejectedError, render_within
from sojourn.frontend.template_messages import MessageShape, content_text, shaped_messages
from sojourn.frontend.template_sources import directory_sources, metadata_sources, read_template
from sojourn.frontend.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "RenderedPrompt", "load_chat_template"]

# What the server decides; a request's chat_template_kwargs can't.
_RESERVED = frozenset(
    {"messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}
    | {"raise_exception", "strftime_now", "namespace", "range", "dict", "cycler", "joiner"}
)
_MAX_MESSAGE = 500  # characters of a template's message that reach the client
_ECHO = 12  # content this long is cut out of error messages
_PROBE = "probe-4711"
_PROBE_SECONDS = 1.0
_TRUSTING_GUARD = MessageGuard(())


class ChatTemplate:
    """A compiled template and what it expects of messages. Immutable; several threads may render at once."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Collection[str] = (),
        visible_tokens: Collection[str] = (),
        named_tokens: Mapping[str, str] | None = None,
        tool_source: str | None = None,
        time_limit: float = 5.0,
    ) -> None:
        """Compiles and probes the template. Raises StartupError, with the line number, if it does not compile.

        `special_tokens`: the texts that message content may not use. `visible_tokens`: the other added tokens; content
        may not use those that the template builds a plain chat of. `named_tokens`: more variables, such as pad_token.
        `tool_source`: another template for requests with tools. `time_limit`: seconds that one rendering may take.
        """
        environment = TemplateEnvironment()
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token, **(named_tokens or {})}
        self._time_limit = time_limit
        self._plain = _compiled(environment, source)
        self._with_tools = _compiled(environment, tool_source) if tool_source is not None else self._plain
        self._plain_shape = self._probed_shape(self._plain)
        self._tool_shape = self._plain_shape if tool_source is None else self._probed_shape(self._with_tools)
        self._guard = MessageGuard([*special_tokens, *self._structural(visible_tokens)])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        trust_message_tokens: bool = False,
    ) -> RenderedPrompt:
        """The prompt. Whatever goes wrong is an InvalidRequest, with the template's words and without the messages'.

        `continue_final_message`: the prompt ends with the exact text of the last message, the assistant's.
        `trust_message_tokens`: control tokens spelled in messages act as such.
        """
        template, shape = (self._with_tools, self._tool_shape) if tools else (self._plain, self._plain_shape)
        guard = _TRUSTING_GUARD if trust_message_tokens else self._guard
        try:
            chat = shaped_messages(messages, shape)
            extra = self._checked_kwargs(template_kwargs or {})
            stand_ins = guard.stand_ins([chat, tools or [], extra], source=self.source)
            prefill = None
            if continue_final_message:
                prefill = stand_ins.hide(_prefill(chat, add_generation_prompt))
                _set_content(chat[-1], stand_ins.marker, shape)
            variables = {
                **self._tokens,
                "documents": None,
                **stand_ins.hide(extra),
                "messages": stand_ins.hide(chat),
                "tools": stand_ins.hide(list(tools)) if tools else None,
                "add_generation_prompt": add_generation_prompt,
            }
        except RecursionError as error:
            raise InvalidRequest("the messages are nested too deeply", param="messages") from error
        try:
            text = render_within(template, variables, seconds=self._time_limit)
        except Exception as error:
            raise InvalidRequest(_explained(error, variables), param="messages") from error
        return stand_ins.restore(text if prefill is None else _continued(text, prefill, stand_ins.marker))

    def _checked_kwargs(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in kwargs:
            if name in _RESERVED or name in self._tokens:
                raise InvalidRequest(f"{name} can't be set by the request", param=f"chat_template_kwargs.{name}")
        return kwargs

    def _structural(self, tokens: Collection[str]) -> list[str]:
        """Those of `tokens` that delimit turns: some models' turn markers are not declared as control tokens."""
        turns = [_user("a"), {"role": "assistant", "content": "b"}, _user("c")]
        text = self._probed(self._plain, shaped_messages(turns, self._plain_shape))
        return [token for token in tokens if token in text and not token.isspace()]

    def _probed(self, template: Template, messages: Sequence[Mapping[str, Any]]) -> str:
        """What the template makes of `messages`; nothing if it fails on them."""
        chat = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return render_within(template, {**self._tokens, **chat}, seconds=_PROBE_SECONDS)
        except Exception:  # any failure means that this form of messages isn't the template's
            return ""

    def _probed_shape(self, template: Template) -> MessageShape:
        """Tries both forms on a small chat. The usual form is taken where both work or neither does."""

        def with_arguments(arguments: Any) -> str:
            call = {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": arguments}}
            return self._probed(template, [_user(_PROBE), {"role": "assistant", "content": "", "tool_calls": [call]}])

        parts = [{"type": "text", "text": _PROBE}]
        # An object that was printed rather than encoded shows Python's single quotes.
        object_works = _PROBE in (text := with_arguments({"key": _PROBE + "!"})) and f"'{_PROBE}!'" not in text
        return MessageShape(
            content_as_parts=_PROBE not in self._probed(template, [_user(_PROBE)])
            and _PROBE in self._probed(template, [_user(parts)]),
            arguments_as_object=object_works or f"{_PROBE}!" not in with_arguments(json.dumps({"key": _PROBE + "!"})),
        )


def load_chat_template(
    *, directory: Path | None, metadata: Mapping[str, Any] | None, override: Path | None, tokenizer: Tokenizer
) -> ChatTemplate | None:
    """The operator's template or else the model's own; None if there is none, for guessing one would be wrong.

    Raises StartupError for a file that can't be read or a template that doesn't compile.
    """
    if override is not None:
        sources = {"default": read_template(override)}
    elif directory is not None:
        sources = directory_sources(directory)
    else:
        sources = metadata_sources(metadata or {})
    if "default" not in sources:
        return None
    named = tokenizer.named_tokens
    return ChatTemplate(
        sources["default"],
        bos_token=named.get("bos_token", ""),
        eos_token=named.get("eos_token", ""),
        visible_tokens=tokenizer.visible_added_tokens,
        special_tokens=[tokenizer.token_text(token_id) for token_id in sorted(tokenizer.special_ids)],
        named_tokens=named,
        tool_source=sources.get("tool_use"),
    )


def _compiled(environment: TemplateEnvironment, source: str) -> Template:
    try:
        return environment.compile_chat_template(source)
    except TemplateSyntaxError as error:
        raise StartupError(f"chat template, line {error.lineno}: {error.message}") from error


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _prefill(chat: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
    """The text that the reply goes on from."""
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt to be false", param="continue_final_message"
        )
    if not chat or chat[-1].get("role") != "assistant" or "content" not in chat[-1]:
        message = "continue_final_message needs an assistant message with content at the end"
        raise InvalidRequest(message, param="continue_final_message")
    return content_text(chat[-1]["content"], len(chat) - 1)


def _set_content(message: dict[str, Any], text: str, shape: MessageShape) -> None:
    message["content"] = [{"type": "text", "text": text}] if shape.content_as_parts else text


def _continued(text: str, prefill: str, marker: str) -> str:
    """The prompt up to where the template put the last message, then that message exactly as given."""
    at = text.rfind(marker)
    if at < 0:
        message = "this chat template does not show the last message, so it can't be continued"
        raise InvalidRequest(message, param="continue_final_message")
    return text[:at] + prefill


def _explained(error: Exception, variables: Mapping[str, Any]) -> str:
    """What went wrong, for the client: the template's own words, without those of the request."""
    if isinstance(error, TemplateRejectedError):
        message = error.message or ""
    elif isinstance(error, (TemplateError, TypeError)):
        message = f"the chat template failed: {error}"
    else:  # other exceptions may quote the values they failed on
        message = f"the chat template failed: {type(error).__name__}"
    for text in sorted(strings_in(variables), key=len, reverse=True):
        if len(text) >= _ECHO and not text.isidentifier():  # names of fields may stay
            message = message.replace(text, "[...]")
    return message[:_MAX_MESSAGE]
