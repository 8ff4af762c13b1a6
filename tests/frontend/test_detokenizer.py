"""Streamed text is the text: pushes and flush, joined, equal decode of all ids, cut anywhere."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from sojourn.frontend.detokenizer import IncrementalDetokenizer
from sojourn.frontend.tokenizer import Tokenizer, load_tokenizer
from tests.frontend.vocabularies import MICRO, byte_level_metadata, micro_tokenizer, sentencepiece_tokenizer

GGUF_BYTES = load_tokenizer(metadata=byte_level_metadata("h e", control=("<|a|>", "<|b|>"), user=("<x>",)))
VOCABULARIES = {"byte-level": micro_tokenizer(), "gguf": GGUF_BYTES, "sentencepiece": sentencepiece_tokenizer()}
TEXT = "日本語 ďábelské 👩‍👩‍👧‍👦 🇨🇦 e\u0301"


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True, cuts: tuple[int, ...] = ()) -> list[str]:
    """The text of each push, one id at a time or cut at `cuts`, and of the flush."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    borders = [0, *cuts, len(ids)] if cuts else range(len(ids) + 1)
    texts = [detokenizer.push(ids[begin:end]) for begin, end in itertools.pairwise(borders)]
    return [*texts, detokenizer.flush()]


@pytest.mark.parametrize("kind", VOCABULARIES)
@given(data=st.data())
def test_b11_pushes_and_flush_equal_decode_for_any_ids(kind, data):
    tokenizer = VOCABULARIES[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30))
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4))))
    skip = data.draw(st.booleans())
    expected = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(pieces(tokenizer, ids, skip=skip)) == expected
    assert "".join(pieces(tokenizer, ids, skip=skip, cuts=cuts)) == expected


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_b11_no_replacement_character_in_text_split_over_tokens(kind):
    tokenizer = VOCABULARIES[kind]
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    texts = pieces(tokenizer, ids)
    assert "".join(texts) == TEXT
    assert not any("\ufffd" in text for text in texts)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_b11_text_equals_the_librarys_decode(text):
    library = Backend.from_file(str(MICRO / "tokenizer.json"))
    ids = library.encode(text).ids
    assert "".join(pieces(micro_tokenizer(), ids, skip=False)) == library.decode(ids, skip_special_tokens=False)


@given(st.lists(st.integers(0, 1023), max_size=20))
def test_b11_any_ids_of_a_byte_level_vocabulary_equal_the_librarys_decode(ids):
    library = Backend.from_file(str(MICRO / "tokenizer.json"))
    assert "".join(pieces(micro_tokenizer(), ids, skip=False)) == library.decode(ids, skip_special_tokens=False)


def test_a_code_point_is_released_by_its_last_byte():
    assert pieces(GGUF_BYTES, list("é👍".encode())) == ["", "é", "", "", "", "👍", ""]


def test_an_incomplete_tail_is_one_replacement_character():
    assert pieces(GGUF_BYTES, list("a👍".encode()[:-1])) == ["a", "", "", "", "\ufffd"]


def test_bytes_that_can_not_continue_are_replaced_at_once():
    assert pieces(GGUF_BYTES, [0xE2, 0x82, ord("x")]) == ["", "", "\ufffdx", ""]


def test_b12_special_tokens_show_without_added_spaces():
    ids = [257, 258, 257, ord("x"), 258]
    assert "".join(pieces(GGUF_BYTES, ids, skip=False)) == "<|a|><|b|><|a|>x<|b|>"
    assert pieces(GGUF_BYTES, ids, skip=True) == ["", "", "", "x", "", ""]


def test_b12_user_defined_tokens_are_text():
    assert "".join(pieces(GGUF_BYTES, [259], skip=True)) == "<x>"


class TestSentencePieceSpace:
    def test_the_first_space_is_not_text(self):
        tokenizer = sentencepiece_tokenizer()
        the = tokenizer.encode("the", add_special_tokens=False)
        assert pieces(tokenizer, [*the, *the]) == ["the", " the", ""]

    def test_the_first_space_is_text_when_a_text_goes_on(self):
        tokenizer = sentencepiece_tokenizer()
        detokenizer = IncrementalDetokenizer(tokenizer, continues_text=True)
        assert detokenizer.push(tokenizer.encode("the", add_special_tokens=False)) == " the"

    def test_hidden_tokens_do_not_use_it_up(self):
        tokenizer = sentencepiece_tokenizer()
        assert "".join(pieces(tokenizer, [1, *tokenizer.encode("the", add_special_tokens=False)])) == "the"


def test_cost_per_token_does_not_grow_with_the_output():
    ids = micro_tokenizer().encode(TEXT) * 400
    detokenizer = IncrementalDetokenizer(micro_tokenizer())

    def seconds() -> float:
        begin = time.perf_counter()
        for token_id in ids:
            detokenizer.push([token_id])
        return time.perf_counter() - begin

    first = min(seconds() for _ in range(3))
    for _ in range(20):
        seconds()
    assert min(seconds() for _ in range(3)) < 5 * first
