"""The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`: facts only, as data. Builds no tokenizer.

The names, the patterns and their defaults are facts of the GGUF ecosystem (llama.cpp's vocabulary loader) and of the models' own tokenizer.json.
Patterns apply one after another: each splits the pieces of the one before into its matches and what lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass

# Spelled out: (?i:...) would also take U+017F, the long s, for an s, which llama.cpp does not.
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_NO_DIGITS_IN_WORDS = (r"\p{N}", _GPT2)

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_REST}"
_GPT4O = rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_REST}"

_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_HAN_AND_HANGUL = "[一-龥\u0800-一가-\ud7ff]+"
# Cased letters as DeepSeek lists them, which are not quite the cased letters of any Unicode property.
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_LLM = (r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", _HAN_AND_HANGUL, r"\p{N}+")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL, r"\p{N}")
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is cut before merging, and what a file of this family means when it doesn't say otherwise."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a whole piece that is a token needs no merges
    add_bos: bool = False


def _families() -> dict[str, PreTokenizer]:
    groups: list[tuple[str, PreTokenizer]] = [
        ("default", PreTokenizer(_DEFAULT)),
        ("gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat mellum modern-bert exaone4 a.x-4.0", PreTokenizer((_GPT2,))),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer(_NO_DIGITS_IN_WORDS)),
        (
            "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
            PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
        ),
        ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
        ("chatglm-bpe dbrx smaug-bpe", PreTokenizer((_LLAMA3,))),
        ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", PreTokenizer((_QWEN2,))),
        ("qwen35", PreTokenizer((_QWEN35,))),
        ("minicpm5", PreTokenizer((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), ignore_merges=True)),
        ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
        ("deepseek-coder", PreTokenizer(_DEEPSEEK_CODER)),
        ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer(_DEEPSEEK_V3)),
        ("falcon", PreTokenizer(_FALCON)),
        ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
        ("poro-chat bloom gpt3-finnish", PreTokenizer((_BLOOM,))),
        ("viking", PreTokenizer((_BLOOM, r"\p{N}"))),
        ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((_BAILING,))),
        ("seed-coder", PreTokenizer((_SEED_CODER,))),
    ]
    return {name: family for names, family in groups for name in names.split()}


PRE_TOKENIZERS = _families()
