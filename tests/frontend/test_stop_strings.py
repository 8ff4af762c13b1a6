"""Stop strings: the first match to complete ends the text, and only what may still match is held back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.frontend.stop_strings import StopStrings

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)
PUSHES = st.lists(st.text("abc", max_size=4), max_size=12)


def run(stops: list[str], pushes: list[str], *, include: bool = False) -> tuple[list[str], str | None]:
    """What each push and the flush release, and the stop string that matched."""
    search = StopStrings(stops, include_in_output=include)
    released = [search.push(text) for text in pushes]
    return [*released, search.flush()], search.matched


def naive(stops: list[str], text: str, *, include: bool) -> tuple[str, str | None]:
    """Character by character: at the first place where a stop string ends, the longest one that ends there."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(STOPS, PUSHES, st.booleans())
def test_b13_text_and_match_equal_the_naive_search_however_it_is_cut(stops, pushes, include):
    released, matched = run(stops, pushes, include=include)
    assert ("".join(released), matched) == naive(stops, "".join(pushes), include=include)


@given(STOPS, PUSHES)
def test_b15_only_a_proper_prefix_of_a_stop_string_is_held(stops, pushes):
    search = StopStrings(stops)
    text = released = ""
    for push in pushes:
        text += push
        released += search.push(push)
        if search.matched is not None:
            return
        held = text[len(released) :]
        longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest


@given(STOPS, PUSHES)
def test_b13_nothing_released_is_ever_taken_back(stops, pushes):
    search = StopStrings(stops)
    released = "".join(search.push(push) for push in pushes)
    final, _ = naive(stops, "".join(pushes), include=False)
    assert final.startswith(released)


def test_b13_stop_string_is_never_leaked():
    released, matched = run(["ta gam"], ["alpha", " be", "ta", " gam", "ma", " delta"])
    assert released == ["alpha", " be", "", "", "", "", ""]
    assert matched == "ta gam"


def test_b13_a_stop_inside_one_push_cuts_inside_it():
    assert run(["gam"], ["alpha gamma delta"])[0] == ["alpha ", ""]


def test_b13_a_stop_that_is_the_whole_output_leaves_nothing():
    assert run(["alpha"], ["al", "pha"])[0] == ["", "", ""]


def test_b14_held_text_is_released_at_the_end():
    assert run(["User:"], ["Hi", " Use"]) == (["Hi", " ", "Use"], None)


def test_b14_nothing_follows_a_match():
    assert run(["five"], ["one five", " six"]) == (["one ", "", ""], "five")


def test_b15_text_that_can_not_match_passes_at_once():
    stop = "x" * 200
    assert run([stop], ["alpha", " beta"])[0] == ["alpha", " beta", ""]
    assert run([stop], ["a", "x", "b"])[0] == ["a", "", "xb", ""]


def test_b17_include_keeps_the_stop_string_once():
    released, matched = run(["gam"], ["alpha g", "am", "ma"], include=True)
    assert "".join(released) == "alpha gam"
    assert matched == "gam"


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stop_strings_everything_passes(stops):
    assert run(stops, ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_the_first_match_to_complete_wins():
    assert run(["abc", "b"], ["abc"]) == (["a", ""], "b")
    assert run(["b", "ab"], ["xab"]) == (["x", ""], "ab")
