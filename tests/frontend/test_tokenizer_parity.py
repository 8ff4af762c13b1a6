"""Ids equal llama.cpp's: three real vocabularies on 2,476 strings each, and every pre-tokenizer of GGUF files."""

from __future__ import annotations

import pytest

from sojourn.frontend.tokenizer import Tokenizer, load_tokenizer
from sojourn.weights.checkpoint import open_checkpoint
from sojourn.weights.fetch import resolve
from tests.frontend.vocabularies import DATA, micro_metadata, read_gz

MODELS = {"smollm2": "smollm2:135m", "qwen2.5-coder": "qwen2.5-coder:0.5b", "gemma3": "gemma3:270m"}
STRINGS = read_gz(DATA / "strings.json.gz")
PRE_TOKENIZERS = read_gz(DATA / "pretokenizers.json.gz")


def tokenizer_of(name: str) -> Tokenizer:
    return load_tokenizer(metadata=open_checkpoint(resolve(MODELS[name])).metadata)


def check_vocabulary(name: str) -> None:
    """Every string both ways: control tokens in it parsed, and as plain text."""
    tokenizer = tokenizer_of(name)
    golden = read_gz(DATA / f"{name}.json.gz")
    assert len(STRINGS) >= 2000
    wrong = []
    for n, text in enumerate(STRINGS):
        parsed = golden["parsed"][n]
        plain = golden["plain"].get(str(n), parsed)
        if tokenizer.encode(text, add_special_tokens=False) != parsed:
            wrong.append((n, "parsed"))
        if tokenizer.encode(text, add_special_tokens=False, parse_special=False) != plain:
            wrong.append((n, "plain"))
    assert not wrong, f"{len(wrong)} strings differ, the first is {wrong[0]}: {STRINGS[wrong[0][0]]!r}"


def test_b81_smollm2_ids_equal_llama_cpp():
    check_vocabulary("smollm2")


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder", "gemma3"])
def test_b81_ids_of_the_larger_vocabularies_equal_llama_cpp(name):
    check_vocabulary(name)


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder", "gemma3"])
def test_text_of_the_larger_vocabularies_comes_back(name):
    tokenizer = tokenizer_of(name)
    texts = [text for text in STRINGS if "\u2581" not in text]  # SentencePiece reads this character as a space
    back = [
        tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) for text in texts
    ]
    assert back == texts


@pytest.mark.models
def test_end_ids_of_the_larger_vocabularies():
    qwen, gemma = tokenizer_of("qwen2.5-coder"), tokenizer_of("gemma3")
    # <|im_end|>, <|endoftext|> and what separates files and fill-in-the-middle parts
    assert qwen.eos_token_ids == (151645, 151643, 151662, 151663, 151664)
    assert gemma.eos_token_ids == (1, 106)  # <eos>, <end_of_turn>; not </s>, which is an HTML tag to Gemma
    assert gemma.encode("</s>", add_special_tokens=False) == [212]
    assert gemma.encode("hi") == [2, *gemma.encode("hi", add_special_tokens=False)]


def test_smollm2_knows_its_ends_and_its_names():
    tokenizer = tokenizer_of("smollm2")
    assert tokenizer.eos_token_ids == (2, 0, 4)  # <|im_end|>, <|endoftext|>, <reponame>
    assert (tokenizer.bos_token_id, tokenizer.add_bos) == (1, False)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.named_tokens["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize("pre", PRE_TOKENIZERS["families"])
def test_b81_pre_tokenizer_cuts_text_as_llama_cpp_does(pre):
    golden = PRE_TOKENIZERS["families"][pre]
    tokenizer = load_tokenizer(metadata={**micro_metadata(), "tokenizer.ggml.pre": pre})
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in PRE_TOKENIZERS["texts"]]
    assert ids == golden["ids"]
    assert tokenizer.add_bos == golden["add_bos"]
