"""Frames come out whole and in order, wherever the kernel cut what it carried."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.ipc.messages import AbortRequests, decode_to_engine
from sojourn.ipc.socket_channel import MAX_MESSAGE_BYTES, FrameSplitter, framed

BODIES = st.lists(st.binary(max_size=40) | st.binary(min_size=300, max_size=600), max_size=8)
PLACES = st.lists(st.integers(min_value=0))


def frames_of(bodies):
    return b"".join(struct.pack("!I", len(body)) + body for body in bodies)


def cut(data, places):
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def feed_all(splitter, chunks):
    return [body for chunk in chunks for body in splitter.feed(chunk)]


@given(BODIES, PLACES)
def test_bodies_come_out_as_they_went_in_wherever_the_stream_is_cut(bodies, places):
    assert feed_all(FrameSplitter(), cut(frames_of(bodies), places)) == bodies


@given(BODIES)
def test_bodies_come_out_byte_by_byte(bodies):
    data = frames_of(bodies)
    assert feed_all(FrameSplitter(), [data[at : at + 1] for at in range(len(data))]) == bodies


@given(BODIES, PLACES, st.integers(MAX_MESSAGE_BYTES + 1, 2**32 - 1), st.binary(max_size=99))
def test_after_a_length_that_cannot_be_there_is_one_empty_body_and_never_another(bodies, places, length, rest):
    data = frames_of(bodies) + struct.pack("!I", length) + rest + frames_of([b"looks like a frame"])
    assert feed_all(FrameSplitter(), cut(data, places)) == [*bodies, b""]


def test_a_body_comes_with_its_last_byte_and_not_before():
    frame = frames_of([b"body"])
    splitter = FrameSplitter()
    assert splitter.feed(frame[:-1]) == []
    assert splitter.feed(frame[-1:] + frame + frame[:2]) == [b"body", b"body"]
    assert splitter.feed(frame[2:]) == [b"body"]


@pytest.mark.parametrize("first", range(0x20, 0x100, 0x10))
def test_text_where_a_length_should_stand_cannot_be_one(first):
    assert FrameSplitter().feed(bytes([first, 0, 0, 0])) == [b""]


def test_the_sender_makes_what_the_splitter_takes_apart():
    messages = [AbortRequests(["a"]), AbortRequests([]), AbortRequests(["b"] * 1000)]
    bodies = FrameSplitter().feed(b"".join(map(framed, messages)))
    assert [decode_to_engine(body) for body in bodies] == messages
