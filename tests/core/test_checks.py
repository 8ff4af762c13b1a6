"""Requests that could never give a token are refused by name, not failed in their first step."""

from __future__ import annotations

import pytest

from sojourn.errors import InvalidRequest
from tests.core.engines import add, make_engine, run


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"allowed_token_ids": (0,), "min_tokens": 1}, "only tokens that end the text"),
        ({"allowed_token_ids": (0, 7), "stop_token_ids": (7,), "min_tokens": 3}, "only tokens that end the text"),
        ({"allowed_token_ids": (0,), "min_tokens": 1, "ignore_eos": True}, "only tokens that end the text"),
        ({"allowed_token_ids": (0, 5), "bad_token_ids": ((5,),), "min_tokens": 1}, "only tokens that end the text"),
        ({"allowed_token_ids": (5, 6), "bad_token_ids": ((5,), (6,))}, "bad_words bans every one"),
    ],
)
def test_a_mask_that_leaves_no_token_is_refused(params: dict[str, object], words: str) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequest, match=words) as refused:
        add(engine, "none", [1, 2], **params)
    assert refused.value.param == "allowed_token_ids"
    assert not engine.has_unfinished()


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": (0,)},  # it may end at once
        {"allowed_token_ids": (0, 9), "min_tokens": 2},
        {"allowed_token_ids": (5, 6), "bad_token_ids": ((5,), (6, 6))},  # one 6 is not banned
    ],
)
def test_a_mask_that_leaves_a_token_is_served(params: dict[str, object]) -> None:
    engine = make_engine()
    request = add(engine, "some", [1, 2], max_tokens=2, **params)
    run(engine)
    assert request.output_ids
    assert set(request.output_ids) <= set(params["allowed_token_ids"])  # type: ignore[call-overload]
