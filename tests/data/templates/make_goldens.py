"""Makes goldens.json.gz: what transformers renders for each template of this folder and each conversation below.

    python make_goldens.py DIRECTORY_WITH_THE_GGUF_FILES

Needs transformers and gguf. smollm2.jinja and qwen2.5-coder.jinja are taken out of the model files; the others were
written for this test in the shapes that public templates have. For the templates that use ChatML tokens the ids of
`apply_chat_template(tokenize=True)` with the micro tokenizer are stored too.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoTokenizer

HERE = Path(__file__).parent
MODEL_FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder": "qwen2.5-coder-0.5b-instruct.gguf",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <now> & later, naïvely",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def say(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(**arguments: Any) -> dict[str, Any]:
    return {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": arguments}}


CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [say("user", "Hello!")]},
    {"messages": [say("system", "Be brief."), say("user", "Hello!")]},
    {"messages": [say("user", "Hello!")], "add_generation_prompt": False},
    {"messages": [say("user", " a "), say("assistant", "  b\n"), say("user", "\nc")]},
    {
        "messages": [
            say("system", "你是助手。"),
            say("user", "今天天气 👩‍👩‍👧 e\u0301?"),
            say("assistant", "好的"),
            say("user", "2024"),
        ]
    },
    {"messages": [say("user", "<b>&amp;</b> {{ 1 + 1 }} {% raw %} 'quotes\" \\n")]},
    {"messages": [say("user", "Weather in Zürich?")], "tools": [TOOL]},
    {
        "messages": [
            say("user", "Weather?"),
            say("assistant", None, tool_calls=[call(city="Zürich", days=2)]),
            say("tool", '{"t": 20}', tool_call_id="abcdefghi", name="weather"),
        ],
        "tools": [TOOL],
    },
    {"messages": [say("user", "a"), say("assistant", "<think>\nhm\n</think>\n\nb"), say("user", "c")]},
    {"messages": [say("user", "a"), say("assistant", "b", reasoning_content="hm")], "add_generation_prompt": False},
    {"messages": [say("user", "a")], "kwargs": {"enable_thinking": True}},
    {"messages": [say("user", "a")], "kwargs": {"enable_thinking": False}},
    {"messages": [say("user", "a"), say("user", "b")]},
    {"messages": [say("developer", "x"), say("user", "b")]},
]  # fmt: skip


def extract_model_templates(directory: Path) -> None:
    for name, file in MODEL_FILES.items():
        field = gguf.GGUFReader(directory / file).fields["tokenizer.chat_template"]
        (HERE / f"{name}.jinja").write_text(field.contents(), encoding="utf-8")


def as_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages for a template that takes only lists of parts."""
    return [
        message
        if message["content"] is None
        else {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in messages
    ]


def rendered(tokenizer: Any, template: str, conversation: dict[str, Any]) -> dict[str, Any]:
    options = {
        "chat_template": template,
        "tools": conversation.get("tools"),
        "add_generation_prompt": conversation.get("add_generation_prompt", True),
        **conversation.get("kwargs", {}),
    }
    try:
        text = tokenizer.apply_chat_template(conversation["messages"], tokenize=False, **options)
        ids = tokenizer.apply_chat_template(conversation["messages"], tokenize=True, return_dict=False, **options)
    except Exception as error:  # what a template refuses is part of the golden
        return {"error": type(error).__name__}
    return {"text": text, "ids": ids}


def main(directory: Path) -> None:
    extract_model_templates(directory)
    tokenizer = AutoTokenizer.from_pretrained(HERE.parent / "tokenizer" / "micro")
    results = {
        path.stem: [
            rendered(
                tokenizer,
                path.read_text(encoding="utf-8"),
                {**one, "messages": as_parts(one["messages"])} if path.stem == "parts" else one,
            )
            for one in CONVERSATIONS
        ]
        for path in sorted(HERE.glob("*.jinja"))
    }
    for name, cases in results.items():
        print(name, ["error" in case for case in cases].count(True), "refused of", len(cases))
    data = json.dumps({"conversations": CONVERSATIONS, "results": results}, separators=(",", ":")).encode()
    with gzip.GzipFile(HERE / "goldens.json.gz", "wb", compresslevel=9, mtime=0) as file:
        file.write(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
