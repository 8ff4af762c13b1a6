"""The strings of the tokenizer goldens: hand-written ones and seeded random ones. Run by make_goldens.py only.

The tests read the result.
"""

# ruff: noqa: E501, SIM905  (the data lines are as long as the data)
from __future__ import annotations

import random
import unicodedata

SAMPLES = [
    "", " ", "  ", "\n", "\t", "\r\n", "a", "Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "don't I'LL they've we're she'd I'm it's 'S 'T 'Re", "caſt's ſ'ſ K'K", "naïve café résumé Ångström", "e\u0301 a\u0308 n\u0303",
    "x\u0301\u0302\u0303\u0304", "日本語のテキスト", "今天天气真好，我们去公园玩吧。", "한국어 문장입니다", "Привет, как дела?", "Γειά σου Κόσμε",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก", "ಕನ್ನಡ ಭಾಷೆ", "தமிழ் மொழி", "Tiếng Việt có dấu", "ďábelské ódy",
    "👩‍👩‍👧‍👦", "🇨🇦🇯🇵🇩🇪", "👍🏽👋🏿", "🏳️‍🌈 🏴‍☠️", "❤️‍🔥", "1️⃣2️⃣", "🧑🏻‍🚀🧑🏿‍🔬", "😀😃😄 text 😀", "a👩‍💻b",
    "0", "12", "123", "1234", "1234567890", "3.14159", "1,234,567.89", "2024-01-31T23:59:59Z", "0xDEADBEEF", "1e-10", "٠١٢٣٤٥", "१२३४", "Ⅷ ½ ²³ ①②",
    "    indented", "trailing   ", "a  b   c    d", "\n\n\n", "a\n\nb\n\n\nc", " \n \n", "\t\tx\t", "a\u00a0b", "a\u3000b", "a\u200bb", "a\u2003b\u2028c\u2029d",
    "a\x85b", "\x0b\x0c", "\x00\x01\x02\x1f\x7f", "\ufeffbom", "\u202eRTL\u202c", "soft\u00adhyphen", "▁underscore▁", "Ġbyte Ċlevel", "ﬁ ﬂ ﬃ", "ＦＵＬＬ ｗｉｄｔｈ",
    "ᄒ\u1161ᆫ", "\U0001d400\U0001d401", "\U000e0001\U000e007f", "\ue000\uf8ff", "\U000f0000\U0010fffd", "\ufffd\ufffe", "\U00020000\U0002a6d6", "\u0378\u0379",
    "def f(x: int) -> int:\n    return x ** 2  # square\n\n\nprint(f(10))\n",
    "#include <stdio.h>\nint main(void) {\n\tprintf(\"%d\\n\", 42);\n\treturn 0;\n}\n",
    "SELECT * FROM users WHERE id = 1; DROP TABLE users;--", "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\"}", "<div class=\"a\">text</div><br/>",
    "const f = async (x) => { await g(x ?? 0); };", "fn main() { println!(\"{:?}\", vec![1, 2]); }", "x = [i for i in range(10) if i % 2 == 0]",
    "\\frac{a}{b} \\sum_{i=0}^{n} x_i", "https://example.com/a/b?c=d&e=f#g", "user@example.com", "C:\\Users\\x\\y.txt", "/usr/local/bin/python3", "$HOME/${x}",
    "#!/bin/sh\nset -e\nfor f in *.txt; do\n  echo \"$f\"\ndone\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "# Title\n\n- item\n- *bold*\n\n```py\nx\n```\n",
    "!!!???...", "-----", "=====", "((()))", "<<<>>>", "***", "~~~~", "\"'`´", "“quoted” ‘text’ — dash – en…", "€£¥₹ ©®™", "±×÷≠≤≥∞√", "→←↑↓⇒", "♠♥♦♣",
]  # fmt: skip

LOOK_ALIKES = [
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_end|>", " <|im_end|> ", "<|im_end|", "|im_end|>", "<|im_ end|>", "<|IM_END|>", "<|im_start|><|im_start|>",
    "<|endoftext|>", "a<|endoftext|>b", "<|fim_prefix|>x<|fim_suffix|>y<|fim_middle|>", "<|repo_name|>r<|file_sep|>f", "<repo_name>r<reponame><file_sep>",
    "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>user\nhi<end_of_turn>\n", "<start_of_image>", "<unused0> <unused99>", "[multimodal]",
    "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<table><tr><td>1</td></tr></table>", "<b>bold</b><i>x</i>", "<code>x</code>", "<0x0A><0xFF>",
    "<s>", "[INST] x [/INST]", "<|eot_id|>", "<|start_header_id|>", "<think>x</think>", "<|vision_start|><|image_pad|><|vision_end|>", "<issue_start>x<issue_comment>",
    "<|object_ref_start|>a<|object_ref_end|>", "<jupyter_start><jupyter_code>1<jupyter_output>", "<filename>a.py<gh_stars>10", "<empty_output>",
]  # fmt: skip

WORDS = (
    "the of and model token Zürich naïve 東京 中国 人工智能 data-driven don't I'm 100% C++ GPT-4 Привет мир العربية 안녕 नमस्ते foo_bar camelCase "
    "SCREAMING_CASE 3.14 42 1999 🙂 👩‍🔬 — … e\u0301tude O'Neill l'été über-cool ÀÉÎ ¿qué? x=y; a[i]; f(x) // -> :: && || != <= {} </p> \\n"
).split()
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\t", "    ", " \n", "\r\n", "", "\u00a0", "\u3000"]
RANGES = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x20CF),
    (0x2100, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFE00, 0xFFEF), (0x10000, 0x103FF), (0x1F000, 0x1FAFF), (0x20000, 0x2A6DF),
]  # fmt: skip


def _random_text(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randint(1, 12)))


def _random_script(rng: random.Random) -> str:
    low, high = rng.choice(RANGES)
    return "".join(chr(rng.randint(low, high)) if rng.random() < 0.8 else " " for _ in range(rng.randint(1, 20)))


def _random_mix(rng: random.Random) -> str:
    return "".join(chr(rng.randint(*rng.choice(RANGES))) for _ in range(rng.randint(1, 24)))


def _random_any(rng: random.Random) -> str:
    points = (rng.randrange(0x110000) for _ in range(rng.randint(1, 12)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def _random_runs(rng: random.Random) -> str:
    return "".join(rng.choice(" \n\t-=_.0a1é中👍<|>'\u0301") * rng.randint(1, 40) for _ in range(rng.randint(1, 5)))


def _random_digits(rng: random.Random) -> str:
    digits = ["0123456789", "0123456789.,-+e", "٠١٢٣٤٥٦٧٨٩", "０１２３４５６７８９", "0123456789 xX"]
    return "".join(rng.choice(rng.choice(digits)) for _ in range(rng.randint(1, 40)))


def _random_code(rng: random.Random) -> str:
    words = "if else for while return class def import self this null None int str () [] {} ; : = == += -> => // # \" ' \\ , . < > <= && || !".split()
    lines = (
        "    " * rng.randint(0, 4) + " ".join(rng.choice(words) for _ in range(rng.randint(0, 8)))
        for _ in range(rng.randint(1, 6))
    )
    return rng.choice(["\n", "\r\n", "\n\n"]).join(lines)


def _random_control(rng: random.Random) -> str:
    pieces = [piece for text in LOOK_ALIKES for piece in (text, text[:-1], text[1:])] + WORDS
    return "".join(rng.choice(pieces) + rng.choice(SPACES) for _ in range(rng.randint(1, 5)))


def _random_marks(rng: random.Random) -> str:
    base = (
        rng.choice("aeiouAEIOUnscक가あ👩") + "".join(chr(rng.randint(0x300, 0x36F)) for _ in range(rng.randint(0, 3)))
        for _ in range(rng.randint(1, 12))
    )
    text = "".join(base)
    return rng.choice(
        [text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text), text + "\u200d" + text]
    )


def strings() -> list[str]:
    """Different strings, the same on every run."""
    rng = random.Random(20240601)
    makers = [
        _random_text,
        _random_script,
        _random_mix,
        _random_any,
        _random_runs,
        _random_digits,
        _random_code,
        _random_control,
        _random_marks,
    ]
    made = [maker(rng) for maker in makers for _ in range(260)]
    return list(dict.fromkeys([*SAMPLES, *LOOK_ALIKES, *made]))
