"""What a tokenizer does around merging: special tokens, BOS, decoding, and files that are wrong."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.errors import BadModelFile, ModelNotFound, UnsupportedModel
from sojourn.frontend.rendered_prompt import RenderedPrompt
from sojourn.frontend.tokenizer import load_tokenizer
from tests.frontend.vocabularies import (
    MICRO,
    byte_level_metadata,
    micro_metadata,
    micro_tokenizer,
    sentencepiece_metadata,
    sentencepiece_tokenizer,
)

CHATML = byte_level_metadata("h e", "he l", control=("<|im_start|>", "<|im_end|>"), user=("<tool>",))
IM_START, IM_END, TOOL = 258, 259, 260
GGUF_MICRO = load_tokenizer(metadata=micro_metadata())


def test_control_tokens_in_a_raw_prompt_are_tokens():
    assert load_tokenizer(metadata=CHATML).encode("<|im_start|>hel") == [IM_START, 257]


def test_control_tokens_stay_text_when_not_parsed():
    ids = load_tokenizer(metadata=CHATML).encode("<|im_start|>", parse_special=False)
    assert ids == list(b"<|im_start|>")


def test_user_defined_tokens_are_always_tokens():
    assert load_tokenizer(metadata=CHATML).encode("<tool>", parse_special=False) == [TOOL]


def test_the_longest_token_wins_where_tokens_overlap():
    tokenizer = load_tokenizer(metadata=byte_level_metadata(control=("abc", "bcde")))
    assert tokenizer.encode("abcde") == [ord("a"), 257]
    assert tokenizer.encode("abcd") == [256, ord("d")]


@pytest.mark.parametrize("load", [micro_tokenizer, lambda: load_tokenizer(metadata=micro_metadata())])
class TestBothSources:
    """The micro tokenizer from tokenizer.json and from GGUF metadata."""

    def test_b09_a_literal_span_is_never_parsed(self, load):
        tokenizer = load()
        text = "<|im_start|>user\n<|im_end|>x<|im_end|>\n"
        begin = text.index("<|im_end|>")
        ids = tokenizer.encode_prompt(RenderedPrompt(text, [(begin, begin + len("<|im_end|>"))]))
        assert [token_id for token_id in ids if token_id in tokenizer.special_ids] == [1, 2]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text

    def test_b09_a_span_leaves_the_rest_as_it_was(self, load):
        tokenizer = load()
        text = "<|im_start|>user\nwho's there? <think> 12345<|im_end|>"
        benign = tokenizer.encode_prompt(RenderedPrompt(text))
        guarded = tokenizer.encode_prompt(RenderedPrompt(text + "<|im_end|>", [(len(text), len(text) + 10)]))
        assert guarded[: len(benign)] == benign

    def test_special_tokens_are_hidden_or_shown_without_spaces(self, load):
        tokenizer = load()
        ids = tokenizer.encode("<|im_start|>a<|im_end|><think>")
        assert tokenizer.decode(ids) == "a<think>"
        assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>a<|im_end|><think>"

    def test_ends_and_names(self, load):
        tokenizer = load()
        assert tokenizer.vocab_size == 1024
        assert tokenizer.eos_token_ids[0] == 2
        assert tokenizer.special_ids == {0, 1, 2}
        assert tokenizer.named_tokens["eos_token"] == "<|im_end|>"


@given(st.text())
def test_json_and_gguf_give_the_same_ids(text):
    assert GGUF_MICRO.encode(text) == micro_tokenizer().encode(text)


@given(st.text(st.characters(codec="utf-8")))
def test_text_comes_back(text):
    tokenizer = micro_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special_tokens=False) == text


@given(st.lists(st.integers(0, 1023)))
def test_b19_joined_token_bytes_are_the_text(ids):
    tokenizer = micro_tokenizer()
    data = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
    assert data.decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=False)


def test_b19_half_a_code_point_keeps_its_byte():
    tokenizer = load_tokenizer(metadata=byte_level_metadata())
    assert [tokenizer.token_bytes(byte) for byte in "é".encode()] == [b"\xc3", b"\xa9"]
    assert tokenizer.token_text(0xC3) == "\ufffd"


def test_ids_beyond_the_vocabulary_are_empty():
    tokenizer = micro_tokenizer()
    assert tokenizer.token_bytes(5000) == b""
    assert tokenizer.decode([5000, *tokenizer.encode("a"), 5001]) == "a"


def test_unused_rows_have_no_text():
    metadata = byte_level_metadata("a b")
    metadata["tokenizer.ggml.tokens"].append("[PAD257]")
    metadata["tokenizer.ggml.token_type"].append(5)
    tokenizer = load_tokenizer(metadata=metadata)
    assert tokenizer.decode([256, 257]) == "ab"
    assert 257 not in tokenizer.encode("[PAD257]")


@pytest.mark.parametrize("load", [micro_tokenizer, sentencepiece_tokenizer])
def test_a_lone_surrogate_becomes_a_replacement_character(load):
    tokenizer = load()
    text = "a\ud800b"
    assert tokenizer.encode(text) == tokenizer.encode("a\ufffdb")
    assert tokenizer.encode_prompt(RenderedPrompt(text, [(0, 1)]))[-1:] == tokenizer.encode("b")[-1:]


WITH_BOS = {**CHATML, "tokenizer.ggml.bos_token_id": IM_START, "tokenizer.ggml.eos_token_id": IM_END}


class TestBos:
    def test_b04_a_raw_prompt_gets_one_bos(self):
        tokenizer = load_tokenizer(metadata={**WITH_BOS, "tokenizer.ggml.add_bos_token": True})
        assert tokenizer.encode("x") == [IM_START, ord("x")]
        assert tokenizer.encode("x", add_special_tokens=False) == [ord("x")]

    def test_b04_a_prompt_that_has_its_bos_gets_no_second(self):
        tokenizer = load_tokenizer(metadata={**WITH_BOS, "tokenizer.ggml.add_bos_token": True})
        assert tokenizer.encode("<|im_start|>x") == [IM_START, ord("x")]
        assert tokenizer.encode_prompt(RenderedPrompt("<|im_start|>x")) == [IM_START, ord("x")]

    def test_b04_a_chat_whose_template_writes_none_gets_the_one_the_file_asks_for(self):
        tokenizer = load_tokenizer(metadata={**WITH_BOS, "tokenizer.ggml.add_bos_token": True})
        assert tokenizer.encode_prompt(RenderedPrompt("x")) == [IM_START, ord("x")]

    def test_b81_add_bos_token_false_is_obeyed(self):
        tokenizer = load_tokenizer(metadata={**WITH_BOS, "tokenizer.ggml.add_bos_token": False})
        assert tokenizer.encode("x") == [ord("x")]
        assert not tokenizer.add_bos

    def test_b81_add_eos_token_is_obeyed(self):
        tokenizer = load_tokenizer(metadata={**WITH_BOS, "tokenizer.ggml.add_eos_token": True})
        assert tokenizer.encode("x") == [ord("x"), IM_END]

    def test_a_directory_follows_its_post_processor(self, tmp_path):
        directory = changed_micro(tmp_path, post_processor=_bos_post_processor())
        tokenizer = load_tokenizer(directory=directory)
        assert tokenizer.encode("x") == [0, *micro_tokenizer().encode("x")]
        assert tokenizer.encode("<|endoftext|>x") == tokenizer.encode("x")
        assert tokenizer.encode_prompt(RenderedPrompt("x")) == micro_tokenizer().encode("x")

    def test_a_llama_directory_may_switch_bos_off(self, tmp_path):
        config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|endoftext|>", "add_bos_token": False}
        directory = changed_micro(tmp_path, config, post_processor=_bos_post_processor())
        assert load_tokenizer(directory=directory).encode("x") == micro_tokenizer().encode("x")


class TestEndOfGeneration:
    def test_a_file_that_names_no_ids_gets_the_old_defaults_only_if_they_are_control_tokens(self):
        tokenizer = load_tokenizer(metadata=byte_level_metadata("h e"))
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (None, ())
        sentencepiece = load_tokenizer(metadata=sentencepiece_metadata("a"))
        assert (sentencepiece.bos_token_id, sentencepiece.eos_token_ids) == (1, (2,))

    def test_well_known_names_end_generation(self):
        metadata = byte_level_metadata(control=("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>"))
        tokenizer = load_tokenizer(metadata={**metadata, "tokenizer.ggml.eos_token_id": 258})
        assert tokenizer.eos_token_ids == (258, 257, 259, 260)

    def test_a_markup_tag_does_not_end_generation(self):
        metadata = byte_level_metadata(control=("<|im_end|>",), user=("</s>",))
        tokenizer = load_tokenizer(metadata={**metadata, "tokenizer.ggml.eos_token_id": 256})
        assert tokenizer.eos_token_ids == (256,)
        assert 257 not in tokenizer.special_ids

    def test_where_messages_have_parts_the_end_of_a_part_does_not_end_generation(self):
        metadata = byte_level_metadata(control=("<|end|>", "<|return|>", "<|call|>"))
        tokenizer = load_tokenizer(metadata={**metadata, "tokenizer.ggml.eos_token_id": 257})
        assert tokenizer.eos_token_ids == (257, 258)

    def test_b18_a_directory_takes_every_id_of_generation_config(self, tmp_path):
        directory = changed_micro(tmp_path)
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
        assert load_tokenizer(directory=directory).eos_token_ids == (2, 0)


class TestRefusals:
    def test_b81_an_unknown_pre_tokenizer_is_an_error_that_names_it(self):
        with pytest.raises(UnsupportedModel, match="'martian-bpe'"):
            load_tokenizer(metadata={**CHATML, "tokenizer.ggml.pre": "martian-bpe"})

    def test_b81_a_missing_pre_tokenizer_is_the_default_with_a_warning(self, caplog):
        metadata = {key: value for key, value in micro_metadata().items() if key != "tokenizer.ggml.pre"}
        with caplog.at_level(logging.WARNING):
            tokenizer = load_tokenizer(metadata=metadata)
        assert "tokenizer.ggml.pre" in caplog.text
        default = load_tokenizer(metadata={**metadata, "tokenizer.ggml.pre": "default"})
        assert tokenizer.encode("it's 12345 x") == default.encode("it's 12345 x")

    @pytest.mark.parametrize("model", ["t5", "bert", "rwkv"])
    def test_another_tokenizer_model_is_refused_by_name(self, model):
        with pytest.raises(UnsupportedModel, match=repr(model)):
            load_tokenizer(metadata={**CHATML, "tokenizer.ggml.model": model})

    @pytest.mark.parametrize("key", ["model", "tokens", "merges"])
    def test_b81_missing_parts_are_errors(self, key):
        metadata = {name: value for name, value in CHATML.items() if name != f"tokenizer.ggml.{key}"}
        with pytest.raises(BadModelFile, match=f"tokenizer.ggml.{key}"):
            load_tokenizer(metadata=metadata)

    def test_a_merge_of_unknown_tokens_is_an_error(self):
        with pytest.raises(BadModelFile, match="merges"):
            load_tokenizer(metadata={**CHATML, "tokenizer.ggml.merges": ["q z"]})

    def test_a_merge_that_is_no_pair_is_an_error(self):
        with pytest.raises(BadModelFile, match="pair"):
            load_tokenizer(metadata={**CHATML, "tokenizer.ggml.merges": ["hel"]})

    def test_a_repeated_token_is_an_error(self):
        tokens = [*CHATML["tokenizer.ggml.tokens"], "<tool>"]
        with pytest.raises(BadModelFile, match="repeats"):
            load_tokenizer(metadata={**CHATML, "tokenizer.ggml.tokens": tokens})

    @pytest.mark.parametrize("key", ["token_type", "scores"])
    def test_arrays_that_are_too_short_are_errors(self, key):
        with pytest.raises(BadModelFile, match=f"{key} has 3 entries"):
            load_tokenizer(metadata={**sentencepiece_metadata("a"), f"tokenizer.ggml.{key}": [1, 1, 1]})

    def test_a_special_id_outside_the_vocabulary_is_an_error(self):
        with pytest.raises(BadModelFile, match="eos_token_id is 999"):
            load_tokenizer(metadata={**CHATML, "tokenizer.ggml.eos_token_id": 999})

    def test_a_directory_without_tokenizer_json(self, tmp_path):
        with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
            load_tokenizer(directory=tmp_path)

    def test_a_broken_tokenizer_json(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text("{")
        with pytest.raises(BadModelFile, match=r"tokenizer\.json"):
            load_tokenizer(directory=tmp_path)

    def test_a_decoder_of_another_kind_is_refused_by_name(self, tmp_path):
        decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
        with pytest.raises(UnsupportedModel, match="WordPiece"):
            load_tokenizer(directory=changed_micro(tmp_path, decoder=decoder))


def changed_micro(directory, config=None, **changes):
    """A copy of the micro tokenizer's directory with parts of tokenizer.json exchanged."""
    shutil.copytree(MICRO, directory, dirs_exist_ok=True)
    data = json.loads((MICRO / "tokenizer.json").read_text(encoding="utf-8"))
    (directory / "tokenizer.json").write_text(json.dumps({**data, **changes}), encoding="utf-8")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def _bos_post_processor():
    bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    token = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    pair = [bos, text, {"Sequence": {"id": "B", "type_id": 0}}]
    special = {"<|endoftext|>": token}
    return {"type": "TemplateProcessing", "single": [bos, text], "pair": pair, "special_tokens": special}
