"""Events come out whole, wherever the network cuts the bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sojourn.bench.sse import EventParser

STREAM = b': a comment\r\n\r\ndata: {"a": 1}\r\n\r\ndata:two\n\nevent: x\ndata: first\ndata: second\n\ndata: unfinished'
EVENTS = [b'{"a": 1}', b"two", b"first\nsecond"]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts):
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = [event for start, end in pairwise(edges) for event in parser.feed(STREAM[start:end])]
    assert found == EVENTS


def test_an_event_comes_out_when_its_empty_line_arrives():
    parser = EventParser()
    assert parser.feed(b"data: x\n") == []
    assert parser.feed(b"\n") == [b"x"]
