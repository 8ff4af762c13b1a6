"""Added tokens are found in text in llama.cpp's order, fast path and slow path alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sojourn.frontend.token_splitter import TokenSplitter, mask_spans

TEXTS = st.text("ab<>\n", max_size=30)
TOKENS = st.lists(st.text("ab<>\n", min_size=1, max_size=4), unique_by=len, max_size=4)


def naive_find(text: str, tokens: list[str]) -> list[tuple[int, int]]:
    """Longest token first, each wherever it still fits, from the left."""
    taken = [False] * len(text)
    found = []
    for token in sorted(tokens, key=len, reverse=True):
        at = 0
        while at + len(token) <= len(text):
            end = at + len(token)
            if text[at:end] == token and not any(taken[at:end]):
                taken[at:end] = [True] * len(token)
                found.append((at, end))
                at = end
            else:
                at += 1
    return sorted(found)


@given(TEXTS, TOKENS)
def test_the_same_tokens_as_the_naive_search(text, tokens):
    splitter = TokenSplitter({token: n for n, token in enumerate(tokens)})
    found = list(splitter.find(text))
    assert [(begin, end) for begin, end, _ in found] == naive_find(text, tokens)
    assert all(tokens[n] == text[begin:end] for begin, end, n in found)


@given(st.integers(0, 100))
def test_runs_are_cut_from_the_left(length):
    splitter = TokenSplitter({"\n" * n: n for n in range(2, 32)})
    assert [n for _, _, n in splitter.find("\n" * length)] == [31] * (length // 31) + [length % 31] * (length % 31 > 1)


def test_thousands_of_tokens_do_not_slow_the_search():
    splitter = TokenSplitter({f"<unused{n}>": n for n in range(6000)})
    text = "<unused5999> " * 2000 + "<unused" * 2000
    assert len(list(splitter.find(text))) == 2000


def test_tokens_that_begin_alike_for_long_are_found():
    splitter = TokenSplitter({"<" + "=" * n: n for n in range(1200)})
    assert [n for _, _, n in splitter.find("<" + "=" * 1100 + " <==")] == [1100, 2]


@given(TEXTS, st.integers(0, 10), st.integers(0, 10))
def test_masking_keeps_every_place(text, begin, length):
    end = min(begin + length, len(text))
    begin = min(begin, end)
    masked = mask_spans(text, [(begin, end)])
    assert len(masked) == len(text)
    assert masked[:begin] + masked[end:] == text[:begin] + text[end:]
    assert set(masked[begin:end]) <= {"\0"}
