"""One choice's way from token deltas to text deltas, without engine or event loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.frontend.request_state import ChoiceState, merge
from sojourn.records import FinishReason, SamplingParams, TokenDelta, TokenLogprobs
from tests.frontend.byte_tokenizer import EOS, SPECIAL, byte_ids, byte_tokenizer, word_ids

TOKENIZER = byte_tokenizer()


def run(token_ids, *, per_delta=1, finish=FinishReason.LENGTH, stop_token_id=None, **params):
    """(state, deltas) after the engine gave `token_ids`; it stops giving when the choice has ended in text."""
    state = ChoiceState(0, TOKENIZER, SamplingParams(max_tokens=None, **params))
    deltas = []
    for at in range(0, len(token_ids), per_delta):
        part = token_ids[at : at + per_delta]
        last = at + per_delta >= len(token_ids)
        shown = state.push(
            TokenDelta(
                request_id="r",
                token_ids=part,
                logprobs=[TokenLogprobs(-float(token_id), 1, [], []) for token_id in part]
                if params.get("logprobs") is not None
                else None,
                finish_reason=finish if last else None,
                stop_token_id=stop_token_id if last else None,
            )
        )
        if shown is not None:
            deltas.append(shown)
        if state.finished:
            break
    return state, deltas


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


BETA = ("alpha", " be", "ta", " gam", "ma", " delta")


@pytest.mark.parametrize("per_delta", [1, 2, 6])
def test_b13_stop_string_is_never_leaked(per_delta):
    state, deltas = run(word_ids(*BETA), per_delta=per_delta, stop=("ta gam",))
    assert text_of(deltas) == "alpha be"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "ta gam")
    assert state.finished


def test_b13_stop_inside_a_token_cuts_inside_it():
    _, deltas = run(word_ids(*BETA), stop=("lt",))
    assert text_of(deltas) == "alpha beta gamma de"


def test_b13_stop_equal_to_the_whole_output_gives_no_text():
    _, deltas = run(word_ids("Hi"), stop=("Hi",))
    assert text_of(deltas) == ""
    assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize("per_delta", [1, 6])
def test_usage_and_logprobs_end_at_the_token_that_completes_the_match(per_delta):
    _, deltas = run(word_ids(*BETA), per_delta=per_delta, stop=("ta gam",), logprobs=0)
    merged = merge(deltas)
    assert merged.token_ids == word_ids("alpha", " be", "ta", " gam")
    assert [entry.logprob for entry in merged.logprobs] == [-float(token_id) for token_id in merged.token_ids]


def test_a_stop_string_asks_for_an_abort_only_while_the_engine_goes_on():
    early, _ = run(word_ids(*BETA), stop=("ta gam",))
    assert early.stopped_early
    with_the_last_token, deltas = run(word_ids("alpha", " be"), stop=("be",))
    assert not with_the_last_token.stopped_early
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "be")


def test_nothing_follows_the_finish_delta():
    state, _ = run(word_ids(*BETA), stop=("ta gam",))
    assert state.push(TokenDelta(request_id="r", token_ids=word_ids("ma"))) is None


def test_b14_withheld_tail_is_released_at_the_end():
    _, deltas = run(word_ids("Hi", " Use"), stop=("User:",))
    assert text_of(deltas) == "Hi Use"
    assert deltas[-1].finish_reason == "length"


def test_b15_only_what_could_still_match_is_held_and_no_delta_is_empty():
    _, deltas = run(word_ids(*BETA), stop=("x" * 200,))
    assert [delta.text for delta in deltas] == list(BETA)


def test_b11_a_code_point_is_shown_when_it_is_complete():
    text = "日本語 ďábelské 👩‍👩‍👧‍👦 🇨🇦 e\u0301"
    _, deltas = run(byte_ids(text), finish=FinishReason.LENGTH)
    assert text_of(deltas) == text
    assert all("\ufffd" not in delta.text for delta in deltas)
    assert merge(deltas).token_ids == byte_ids(text)


def test_an_incomplete_code_point_at_the_end_is_one_replacement_character():
    _, deltas = run(byte_ids("a日")[:-1])
    assert text_of(deltas) == "a\ufffd"


def test_end_of_text_is_counted_but_not_shown():
    _, deltas = run([*byte_ids("ab"), EOS], finish=FinishReason.STOP, skip_special_tokens=False)
    assert text_of(deltas) == "ab"
    assert merge(deltas).token_ids == [*byte_ids("ab"), EOS]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", None)


@pytest.mark.parametrize(
    ("stop_id", "include", "skip_special", "text"),
    [
        (byte_ids("!")[0], False, True, "ab"),
        (byte_ids("!")[0], True, True, "ab!"),
        (SPECIAL, False, False, "ab"),
        (SPECIAL, True, False, "ab<special>"),
        (SPECIAL, True, True, "ab"),
    ],
)
def test_b17_stop_token_ids(stop_id, include, skip_special, text):
    _, deltas = run(
        [*byte_ids("ab"), stop_id],
        finish=FinishReason.STOP,
        stop_token_id=stop_id,
        stop_token_ids=(stop_id,),
        include_stop_str_in_output=include,
        skip_special_tokens=skip_special,
    )
    assert text_of(deltas) == text
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop_id)


def test_b17_an_included_stop_string_is_kept_once():
    _, deltas = run(word_ids(*BETA), stop=("ta gam",), include_stop_str_in_output=True)
    assert text_of(deltas) == "alpha beta gam"
    assert deltas[-1].stop_reason == "ta gam"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3, 4, 5, 6])
def test_stop_strings_fire_only_after_min_tokens(min_tokens, include):
    _, deltas = run(byte_ids("ababab"), stop=("ab",), min_tokens=min_tokens, include_stop_str_in_output=include)
    complete = [2, 4, 6]  # tokens after which a stop string is complete
    end = next((count for count in complete if count > min_tokens), None)
    if end is None:
        assert (text_of(deltas), deltas[-1].finish_reason) == ("ababab", "length")
    else:
        assert text_of(deltas) == "ababab"[: end if include else end - 2]
        assert (deltas[-1].finish_reason, len(merge(deltas).token_ids)) == ("stop", end)


def test_a_stop_string_may_begin_before_min_tokens():
    _, deltas = run(byte_ids("xxSTOPyy"), stop=("STOP",), min_tokens=4)
    assert text_of(deltas) == "xx"


def test_b12_special_tokens_show_only_when_asked_for():
    ids = [*byte_ids("a"), SPECIAL, *byte_ids("b")]
    assert text_of(run(ids)[1]) == "ab"
    assert text_of(run(ids, skip_special_tokens=False)[1]) == "a<special>b"


def test_prompt_logprobs_arrive_in_order_with_the_first_text():
    state = ChoiceState(0, TOKENIZER, SamplingParams(prompt_logprobs=0))
    first, second = TokenLogprobs(-1.0, 1, [], []), TokenLogprobs(-2.0, 1, [], [])
    assert state.push(TokenDelta(request_id="r", prompt_logprobs=[None, first])) is None
    shown = state.push(TokenDelta(request_id="r", prompt_logprobs=[second], token_ids=byte_ids("a")))
    assert shown.prompt_logprobs == [None, first, second]
    assert state.push(TokenDelta(request_id="r", token_ids=byte_ids("b"))).prompt_logprobs is None


def test_b32_zero_tokens_end_without_text():
    state = ChoiceState(0, TOKENIZER, SamplingParams(max_tokens=0, prompt_logprobs=0))
    shown = state.push(TokenDelta(request_id="r", prompt_logprobs=[None], finish_reason=FinishReason.LENGTH))
    assert (shown.text, shown.token_ids, shown.prompt_logprobs, shown.finish_reason) == ("", [], [None], "length")


@given(
    text=st.text(alphabet="ab日👩", max_size=12),
    stops=st.lists(st.text(alphabet="ab日", min_size=1, max_size=3), max_size=3),
    min_tokens=st.integers(0, 6),
    per_delta=st.integers(1, 5),
)
def test_text_does_not_depend_on_how_tokens_are_grouped(text, stops, min_tokens, per_delta):
    options = {"stop": tuple(stops), "min_tokens": min_tokens}
    ids = [*byte_ids(text), *byte_ids("!")]
    one_by_one, grouped = run(ids, **options)[1], run(ids, per_delta=per_delta, **options)[1]
    assert merge(one_by_one) == merge(grouped)


@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([None, 0]),
)
def test_tokens_taken_together_give_what_they_give_one_by_one(token_ids, per_delta, logprobs):
    """A choice with a stop string looks at each token; one that nothing can stop takes a step's tokens together."""
    together = run(token_ids, per_delta=per_delta, logprobs=logprobs)[1]
    one_by_one = run(token_ids, per_delta=per_delta, logprobs=logprobs, stop=("\ud800",))[1]
    assert together == one_by_one
