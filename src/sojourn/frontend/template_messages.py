"""Brings chat messages into the shape a template expects. Renders nothing; never changes the caller's messages.

Content parts of type text are joined without a separator, so `"ab"` and the parts `"a"`, `"b"` make the same prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sojourn.errors import InvalidRequest

_TEXT_PARTS = ("text", "input_text", "output_text")
# what chat APIs call a model's thoughts; templates read the first
_REASONING = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What a template expects where templates differ."""

    content_as_parts: bool = False  # content is a list of {"type": "text", "text": ...} rather than a string
    arguments_as_object: bool = True  # a tool call's arguments are an object rather than JSON text


def shaped_messages(messages: Sequence[Mapping[str, Any]], shape: MessageShape) -> list[dict[str, Any]]:
    """Raises InvalidRequest for a message that is no object or has parts other than text."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise InvalidRequest("messages must be a list", param="messages")
    return [_shaped_message(message, n, shape) for n, message in enumerate(messages)]


def _shaped_message(message: Mapping[str, Any], index: int, shape: MessageShape) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"messages[{index}] must be an object", param="messages")
    # Null means absent. Templates test whether a key is there, and would print the word None.
    shaped = {key: value for key, value in message.items() if value is not None}
    if "content" in shaped:
        text = content_text(shaped["content"], index)
        shaped["content"] = [{"type": "text", "text": text}] if shape.content_as_parts else text
    if (thoughts := next((shaped[name] for name in _REASONING if name in shaped), None)) is not None:
        shaped = {"thinking": thoughts, **shaped, "reasoning_content": thoughts}
    if calls := shaped.get("tool_calls"):
        shaped["tool_calls"] = [_shaped_call(call, shape) for call in calls]
    return shaped


def content_text(content: Any, index: int) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"messages[{index}].content must be a string or a list of parts", param="messages")
    return "".join([_part_text(part, index) for part in content])


def _part_text(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
        raise InvalidRequest(
            f"messages[{index}].content: only text parts are supported, not {kind!r}", param="messages"
        )
    text: str = part["text"]
    return text


def _shaped_call(call: Any, shape: MessageShape) -> Any:
    """A tool call whose arguments have the template's form; what is no JSON object stays as it is."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    arguments = function["arguments"]
    if shape.arguments_as_object and isinstance(arguments, str):
        arguments = _parsed_object(arguments)
    elif not shape.arguments_as_object and isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _parsed_object(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
