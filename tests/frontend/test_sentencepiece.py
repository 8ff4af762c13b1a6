"""SentencePiece vocabularies from GGUF: merging by score, byte fallback, the space in front of words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from sojourn.errors import BadModelFile
from sojourn.frontend.gguf_spm import merge_by_score, ordered_merges, word_pattern
from sojourn.frontend.rendered_prompt import RenderedPrompt
from sojourn.frontend.tokenizer import load_tokenizer
from tests.frontend.vocabularies import BYTE, DATA, read_gz, sentencepiece_metadata, sentencepiece_tokenizer

WORDS = st.lists(st.text("abc", min_size=2, max_size=5), unique=True, max_size=12)


@given(WORDS, st.randoms(use_true_random=False), st.text("abc", max_size=30))
@settings(max_examples=300)
def test_ordered_merges_do_what_scores_say(words, random, text):
    vocabulary = {token: n for n, token in enumerate(["a", "b", "c", *words])}
    scores = [float(n) for n in range(len(vocabulary))]
    random.shuffle(scores)
    fast = Backend(models.BPE(vocab=vocabulary, merges=ordered_merges(vocabulary, scores)))
    assert fast.encode(text).ids == merge_by_score(text, vocabulary, scores, [])


@given(st.lists(st.text("a_\u2581", min_size=2, max_size=5), unique=True, max_size=8), st.text("a_\u2581", max_size=30))
@settings(max_examples=300)
def test_merging_word_by_word_changes_nothing(words, text):
    vocabulary = {token: n for n, token in enumerate(["a", "_", "\u2581", *words])}
    scores = [-float(n) for n in range(len(vocabulary))]
    fast = Backend(models.BPE(vocab=vocabulary, merges=ordered_merges(vocabulary, scores)))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(word_pattern(words)), "isolated")
    assert fast.encode(text).ids == merge_by_score(text, vocabulary, scores, [])


def test_words_are_not_cut_one_by_one_if_many_tokens_have_spaces_inside():
    assert word_pattern(["a\u2581b", "\u2581a"]) is not None
    assert word_pattern([f"a\u2581{n}" for n in range(100)]) is None


def test_equal_scores_join_the_leftmost_pair():
    metadata = sentencepiece_metadata("a", "b", "ab", "ba", scores=[0.0, 0.0, -1.0, -1.0], add_space_prefix=False)
    tokenizer = load_tokenizer(metadata=metadata)
    assert texts(tokenizer, "aba") == ["ab", "a"]
    assert texts(tokenizer, "bab") == ["ba", "b"]


def test_a_word_of_characters_that_are_no_tokens_is_still_found():
    tokenizer = load_tokenizer(metadata=sentencepiece_metadata("xy", add_space_prefix=False))
    assert texts(tokenizer, "xy") == ["xy"]
    assert tokenizer.encode("yx", add_special_tokens=False) == [3 + ord("y"), 3 + ord("x")]


def test_b11_a_character_without_a_token_becomes_its_bytes():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode("👩", add_special_tokens=False)
    assert ids[-4:] == [3 + byte for byte in "👩".encode()]
    assert tokenizer.decode(ids) == "👩"


def test_a_space_is_put_before_the_text_and_taken_away_again():
    tokenizer = sentencepiece_tokenizer()
    assert tokenizer.token_bytes(tokenizer.encode("the", add_special_tokens=False)[0]) == b" the"
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_a_space_is_put_after_a_special_token_too():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.encode("the</s>the", add_special_tokens=False)
    assert ids == [ids[0], 2, ids[0]]


def test_bos_is_added_unless_the_file_says_no():
    assert sentencepiece_tokenizer().encode("") == [1]
    assert load_tokenizer(metadata=sentencepiece_metadata("a", add_bos_token=False)).encode("") == []


def test_a_control_token_cannot_be_merged_from_text():
    metadata = sentencepiece_metadata("<", "s", ">", "s>", "<s", add_space_prefix=False)
    assert 1 not in load_tokenizer(metadata=metadata).encode("<s>", add_special_tokens=False, parse_special=False)


def test_missing_scores_are_an_error():
    metadata = sentencepiece_metadata("a")
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(BadModelFile, match="scores"):
        load_tokenizer(metadata=metadata)


def test_a_missing_byte_is_an_error():
    metadata = sentencepiece_metadata("a")
    metadata["tokenizer.ggml.tokens"][3 + 10] = "gone"
    assert metadata["tokenizer.ggml.token_type"][3 + 10] == BYTE
    with pytest.raises(BadModelFile, match="0x0A"):
        load_tokenizer(metadata=metadata)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\u2581")))
def test_text_comes_back(text):
    tokenizer = sentencepiece_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


def test_ids_equal_llama_cpp_with_and_without_the_space_prefix():
    golden = read_gz(DATA / "sentencepiece.json.gz")
    for case in golden["cases"]:
        tokenizer = load_tokenizer(metadata={**golden["metadata"], **case["metadata"]})
        assert [tokenizer.encode(text) for text in golden["texts"]] == case["ids"]


def test_a_directory_with_a_sentencepiece_tokenizer_decodes_like_the_library(tmp_path):
    backend = library_tokenizer()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(directory=tmp_path)
    for text in ["the hello", " the", "日本 é 👩", "<0x41>", ""]:
        ids = backend.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == backend.decode(ids)


@pytest.mark.parametrize("scheme", ["prepend", "first"])
def test_b09_a_directory_keeps_the_word_borders_around_literal_control_tokens(scheme, tmp_path):
    backend = library_tokenizer()
    if scheme == "first":  # Mistral's way: only the first word of the prompt gets a space
        backend.normalizer = None
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.add_special_tokens(["<s>", "</s>", "<|new|>"])  # two that the model knows, one that it does not
    backend.add_tokens(["<tag>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(directory=tmp_path)
    text = "<s>the hello</s> the<|new|>the<tag>"
    benign = tokenizer.encode_prompt(RenderedPrompt(text))
    assert benign == backend.encode(text, add_special_tokens=False).ids
    guarded = tokenizer.encode_prompt(RenderedPrompt(text + "<|new|>", [(len(text), len(text) + 7)]))
    assert guarded[: len(benign)] == benign
    assert not tokenizer.special_ids & set(guarded[len(benign) :])
    assert tokenizer.decode(guarded, skip_special_tokens=False).endswith("<|new|>")


def library_tokenizer() -> Backend:
    """What the `tokenizers` library makes of the same vocabulary: the pipeline of Llama 2."""
    metadata = sentencepiece_metadata("the", " the", "th", "t", "h", "e", "l", "o", "日", " ")
    vocabulary = {text: n for n, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the")]
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return backend


def texts(tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]
