"""The conversation in the terminal: what is sent, what is kept, what /clear, Ctrl-C and a failed turn do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sojourn.cli.chat import converse
from sojourn.errors import SojournError


class Echo:
    """Answers with the last message; remembers what it was given. A message may ask for a failure."""

    name = "echo"

    def __init__(self) -> None:
        self.seen: list[list[tuple[str, str]]] = []
        self.closed = 0

    def reply(self, messages) -> Iterator[str]:
        self.seen.append([(message["role"], message["content"]) for message in messages])
        text = messages[-1]["content"]
        try:
            if text == "fail":
                raise SojournError("engine lost")
            yield text[:2]
            if text == "interrupt":
                raise KeyboardInterrupt
            yield text[2:]
        finally:
            self.closed += 1


@pytest.fixture
def talk(monkeypatch, capsys):
    def run(*lines: str, system: str | None = None) -> tuple[Echo, str]:
        answers = iter(lines)

        def read(prompt: str) -> str:
            try:
                return next(answers)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr("builtins.input", read)
        echo = Echo()
        converse(echo, system)
        return echo, capsys.readouterr().out

    return run


def test_replies_are_printed_and_become_part_of_the_conversation(talk):
    echo, out = talk("hello", "again")
    assert "hello\n" in out
    assert echo.seen[1] == [("user", "hello"), ("assistant", "hello"), ("user", "again")]


def test_clear_forgets_everything_but_the_system_message(talk):
    echo, _ = talk("one", "/clear", "two", system="be brief")
    assert echo.seen[1] == [("system", "be brief"), ("user", "two")]


def test_exit_and_end_of_input_leave(talk):
    echo, _ = talk("one", "/exit", "two")
    assert len(echo.seen) == 1


def test_an_unknown_command_and_an_empty_line_are_not_sent(talk):
    echo, out = talk("/help", "")
    assert echo.seen == []
    assert out.count("/exit") == 2


def test_ctrl_c_stops_a_reply_and_keeps_what_came(talk):
    echo, out = talk("interrupt", "next")
    assert "in (stopped)" in out
    assert echo.seen[1][1] == ("assistant", "in")
    assert echo.closed == 2


def test_a_failed_turn_is_reported_and_forgotten(talk):
    echo, out = talk("fail", "next")
    assert "(failed: engine lost)" in out
    assert echo.seen[1] == [("user", "next")]
