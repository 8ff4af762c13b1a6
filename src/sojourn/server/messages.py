"""Checks chat messages. Knows roles, text parts and what a text model can't take; never renders and never fetches
anything."""

from __future__ import annotations

from typing import Any

from sojourn.errors import InvalidRequest, Unsupported

_NOT_BUILT = ("tool_calls", "function_call", "audio")  # they would change the prompt; null and [] ask for nothing


def check_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as given, each with a role and with text content. Unknown keys stay: templates may read them.

    Raises InvalidRequest, or Unsupported for parts that are not text, naming their type.
    """
    if not messages:
        raise InvalidRequest("messages must hold at least one message.", param="messages")
    for position, message in enumerate(messages):
        _check_message(message, f"messages[{position}]")
    return messages


def _check_message(message: dict[str, Any], where: str) -> None:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role must be a non-empty string.", param=f"{where}.role")
    for name in _NOT_BUILT:
        if message.get(name):
            raise Unsupported(f"{where}.{name} is not supported by this server.", param=f"{where}.{name}")
    content = message.get("content")
    if isinstance(content, list):
        for position, part in enumerate(content):
            _check_part(part, f"{where}.content[{position}]")
    elif not isinstance(content, str):
        raise InvalidRequest(f"{where}.content must be a string or a list of text parts.", param=f"{where}.content")


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where} must be an object with type and text.", param=where)
    kind = part.get("type")
    if kind != "text":
        shown = kind[:40] if isinstance(kind, str) else "missing"
        raise Unsupported(f"{where}: parts of type {shown} are not supported, only text.", param=f"{where}.type")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{where}.text must be a string.", param=f"{where}.text")
