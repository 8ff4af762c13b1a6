"""`sojourn chat`: the conversation and the commands in it. Where replies come from is behind one protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from sojourn.cli.library_pools import limit_library_pools
from sojourn.cli.options import Settings
from sojourn.cli.remote import RemoteChat
from sojourn.errors import SojournError
from sojourn.records import SamplingParams

Messages = list[dict[str, Any]]
HELP = "Type a message. /clear starts over, /exit (or Ctrl-D) leaves, Ctrl-C stops a reply."


class Replies(Protocol):
    name: str

    def reply(self, messages: Messages) -> Iterator[str]:
        """Pieces of the answer as they come. Closing the iterator stops the work. Raises SojournError."""


def chat_command(
    settings: Settings, *, url: str | None, api_key: str | None, system: str | None, params: SamplingParams
) -> None:
    """Raises StartupError when there is nobody to talk to."""
    if url is not None:
        converse(RemoteChat(url, api_key, params), system)
        return
    limit_library_pools()
    from sojourn.cli.local import local_chat  # here: it imports NumPy, whose pools must be limited first

    with local_chat(settings, params) as replies:
        converse(replies, system)


def converse(replies: Replies, system: str | None) -> None:
    """Reads lines until /exit or the end of input; a failed turn is reported and forgotten."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  here: importing it is what gives input() line editing and history

    beginning: Messages = [{"role": "system", "content": system}] if system else []
    messages = list(beginning)
    print(f"{replies.name}. {HELP}")
    while (line := _read_line()) is not None:
        if line == "/clear":
            messages = list(beginning)
            print("(cleared)")
        elif line.startswith("/"):
            print(HELP)
        elif line:
            messages.append({"role": "user", "content": line})
            text = _print_reply(replies.reply(messages))
            if text is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": text})


def _read_line() -> str | None:
    """The next line, or None when the user leaves."""
    try:
        line = input("> ").strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    return None if line == "/exit" else line


def _print_reply(pieces: Iterator[str]) -> str | None:
    """Prints the answer as it comes and returns it; what Ctrl-C left of it counts. None when it failed."""
    text = ""
    try:
        for piece in pieces:
            text += piece
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)", end="")
    except SojournError as error:
        print(f"(failed: {error.message})")
        return None
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
    print()
    return text
