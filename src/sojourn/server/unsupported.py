"""Fields that clients know and this server does not act on. Each is refused unless it holds a value that asks for
nothing.

A name that is in no list is ignored, so that clients with private fields work. A field leaves the list when its
feature is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sojourn.errors import Unsupported

_BOTH: dict[str, tuple[Any, ...]] = {
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "service_tier": ("auto", "default"),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "kv_transfer_params": ({},),
}

CHAT: dict[str, tuple[Any, ...]] = _BOTH | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "store": (False,),
    "moderation": (),
    "chat_template": (),
    "echo": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "best_of": (1,),
    "suffix": ("",),
    "mm_processor_kwargs": ({},),
}

COMPLETION: dict[str, tuple[Any, ...]] = _BOTH | {
    "suffix": ("",),
    "prompt_embeds": ([],),
    "messages": ([],),
    "tools": ([],),
}

TOKENIZE: dict[str, tuple[Any, ...]] = {"chat_template": (), "tools": ([],), "mm_processor_kwargs": ({},)}

STREAM_OPTIONS: dict[str, tuple[Any, ...]] = {"continuous_usage_stats": (False,)}


def refuse(body: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]], *, prefix: str = "") -> None:
    """Raises Unsupported for the first field of `table` that asks for something. Null asks for nothing."""
    for name in body.keys() & table.keys():
        value = body[name]
        # 0 == False in Python, so the type has to agree as well.
        if not any(value == harmless and type(value) is type(harmless) for harmless in table[name]):
            raise Unsupported(f"{prefix}{name} is not supported by this server.", param=f"{prefix}{name}")
