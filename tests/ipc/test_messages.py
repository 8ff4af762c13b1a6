"""The wire format: everything survives the trip, and nothing but our own messages is accepted."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import msgspec
import pytest

import sojourn
from sojourn.ipc.messages import (
    AbortRequests,
    AddRequests,
    Failed,
    Loading,
    Outputs,
    Ready,
    Refused,
    Stop,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from sojourn.records import EngineRequest, EngineStats, FinishReason, SamplingParams, TokenDelta, TokenLogprobs
from sojourn.records.life import Admitted, Arrival, Ended, EngineReport, Preempted, PrefixStop, Wait, WaitingReason
from tests.ipc.fake_engine import INFO

REPORT = EngineReport(
    waits=[Wait(3, 2**60, WaitingReason.SEQ_SLOTS)],
    preempted=[Preempted(2, 2**60, 8, 9)],
    admitted=[Admitted(3, 5, 6, 4, PrefixStop.NO_MATCH, None, [7])],
    ended=[Ended(1, 7, "stop", 2, [8, 9])],
    pauses=[(1, 2)],
    blocks=b"blocks",
    step=b"step",
)
PARAMS = SamplingParams(
    max_tokens=None, logit_bias={7: -100.0}, seed=2**64 - 1, stop=("停",), bad_token_ids=((1, 2), (3,)), logprobs=2
)
REQUEST = EngineRequest(request_id="r/0", prompt_ids=[1, 2**31 - 1], params=PARAMS, priority=-5, cache_salt="s")
LOGPROBS = TokenLogprobs(-0.5, 1, [4, 5], [-0.5, float("-inf")])
DELTA = TokenDelta(
    request_id="r/0",
    token_ids=[4],
    logprobs=[LOGPROBS],
    prompt_logprobs=[None, LOGPROBS],
    finish_reason=FinishReason.STOP,
)


@pytest.mark.parametrize("message", [AddRequests([REQUEST]), AbortRequests(["a", "b"]), Stop()])
def test_messages_to_the_engine_survive_the_trip(message):
    assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        Loading("weights", 0.25),
        Ready(INFO),
        Outputs(
            deltas=[DELTA], stats=EngineStats(waiting_by_reason={"kv_blocks": 2}), arrivals=[Arrival("r/0", 1, 2, 0)]
        ),
        Outputs(stats=EngineStats(), report=REPORT),
        Refused(request_id="r/0", code="invalid_value", message="no", param="prompt"),
        Failed("engine_failed", "why"),
    ],
)
def test_messages_from_the_engine_survive_the_trip(message):
    assert decode_from_engine(encode(message)) == message


def test_an_engine_takes_no_message_that_only_an_engine_sends():
    with pytest.raises(msgspec.ValidationError):
        decode_to_engine(encode(Failed("engine_failed", "why")))


def test_b84_a_pickle_is_refused_unopened():
    opened = []

    class Bomb:
        def __reduce__(self):
            return opened.append, (1,)

    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(pickle.dumps(Bomb()))
    assert opened == []


def test_b84_no_source_file_unpickles_anything():
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    for path in Path(sojourn.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) and "pyobj" in node.attr else []
            assert not [name for name in names if name.split(".")[0] in banned or "pyobj" in name], path
