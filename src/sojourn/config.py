"""The options of every component, each with a default and one line of help. Resolved once; nothing writes back.

The command line makes its flags from these fields (`max_num_seqs` becomes `--max-num-seqs`), so an option is described
here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def option(default: Any, help: str) -> Any:
    """A field with its one-line description. Lists become tuples, flags that may be repeated."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    max_num_seqs: int = option(64, "Requests computed at the same time.")
    max_num_batched_tokens: int = option(512, "Tokens computed in one step, by decodes and prefill chunks.")
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "First come first served, or by the request's `priority` (lower first)."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    block_size: int = option(32, "Tokens in one KV block.")
    kv_cache_memory: str = option("auto", "Memory for KV blocks: auto, 2GiB, or a share of what is free (30%).")
    num_kv_blocks: int | None = option(None, "Exact number of KV blocks; overrides --kv-cache-memory.")
    kv_cache_dtype: str = option("auto", "Element type of the KV cache.")
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of prompts that begin alike.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that process B needs to load a model and run it."""

    model: str = "smollm2:135m"
    max_model_len: int | None = option(None, "Longest prompt plus output. Default: what model and memory allow.")
    threads: int | None = option(None, "Threads. Default: the least of quota, affinity and physical cores.")
    backend: Literal["auto", "native", "reference", "scripted"] = option("auto", "What executes the model.")
    logprobs_mode: Literal["raw", "processed"] = option(
        "raw", "Logprobs of the model's own logits, or after bias, penalties and masks."
    )
    script: str | None = None  # path of the script for the scripted backend of the tests
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """All that process A's text side needs."""

    served_model_name: tuple[str, ...] = option(
        (), "Name that requests use for the model; may be repeated. Default: the model as given."
    )
    chat_template: str | None = option(None, "File with a chat template to use instead of the model's own.")
    trust_message_tokens: bool = option(False, "Let special-token text inside messages act as special tokens.")
    max_num_queued_reqs: int = option(512, "Requests that may wait; one more is refused with 429.")
    request_timeout: float | None = option(None, "Seconds after which a request fails with 504. Default: never.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on; 0 takes a free one and prints it.")
    api_key: tuple[str, ...] = option((), "Key that clients must present; may be repeated. Default: no key needed.")
    shutdown_timeout: float = option(30.0, "Seconds that running requests get to finish after SIGTERM.")
    no_restart: bool = option(False, "Exit when the engine process dies instead of restarting it.")
    in_process: bool = option(False, "Run the engine in a thread of the server process.")
    metrics_prefix: Literal["sojourn", "vllm"] = option("sojourn", "Prefix of the Prometheus metrics.")
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Least severe log lines to print.")
