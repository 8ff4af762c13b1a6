"""The options of every component, each with a default and one line of help. Resolved once; nothing writes back.

The command line makes its flags from these fields (`max_num_seqs` becomes `--max-num-seqs`), so an option is described
here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sojourn.errors import StartupError

DEFAULT_STEP_TOKENS = 512
KV_CACHE_DTYPES = ("auto", "f16", "f32", "int8")


def option(default: Any, help: str, *, at_least: float | None = None) -> Any:
    """A field with its one-line description. Lists become tuples, flags that may be repeated."""
    return field(default=default, metadata={"help": help, "at_least": at_least})


def _check_bounds(config: Any) -> None:
    """Raises StartupError for a number below its option's bound: it would hang the engine or be taken for a default."""
    for each in fields(config):
        least, value = each.metadata.get("at_least"), getattr(config, each.name)
        if least is not None and value is not None and not value >= least:
            raise StartupError(f"--{each.name.replace('_', '-')} {value} is too small: give at least {least}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    max_num_seqs: int = option(64, "Requests computed at the same time.", at_least=1)
    max_num_batched_tokens: int | None = option(
        None,
        "Tokens computed in one step, by decodes and prefill chunks. Default: 512, and fewer beside running streams.",
        at_least=1,
    )
    max_step_stretch: float = option(
        5.0, "How many times longer than their own a step may keep running streams, with the default above.", at_least=1
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs", "First come first served, or by the request's `priority` (lower first)."
    )

    def __post_init__(self) -> None:
        _check_bounds(self)

    @property
    def step_tokens(self) -> int:
        """The most tokens that one step may compute."""
        return DEFAULT_STEP_TOKENS if self.max_num_batched_tokens is None else self.max_num_batched_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    block_size: int = option(32, "Tokens in one KV block.", at_least=1)
    kv_cache_memory: str = option("auto", "Memory for KV blocks: auto, 2GiB, or a share of what is free (30%).")
    num_kv_blocks: int | None = option(None, "Exact number of KV blocks; overrides --kv-cache-memory.", at_least=1)
    kv_cache_dtype: str = option(
        "auto", "What K and V are stored in: f16, f32, or int8 in half the memory. Default: the backend's own."
    )
    enable_prefix_caching: bool = option(True, "Reuse the KV blocks of prompts that begin alike.")

    def __post_init__(self) -> None:
        _check_bounds(self)
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            instead = " fp8 is not supported; int8 takes as little memory." if "fp8" in self.kv_cache_dtype else ""
            raise StartupError(
                f"--kv-cache-dtype {self.kv_cache_dtype!r} is none of {', '.join(KV_CACHE_DTYPES)}.{instead}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that process B needs to load a model and run it."""

    model: str = "smollm2:135m"
    max_model_len: int | None = option(
        None, "Longest prompt plus output. Default: what model and memory allow.", at_least=2
    )
    threads: int | None = option(None, "Threads. Default: the least of quota, affinity and physical cores.", at_least=1)
    backend: Literal["auto", "native", "reference", "scripted"] = option("auto", "What executes the model.")
    logprobs_mode: Literal["raw", "processed"] = option(
        "raw", "Logprobs of the model's own logits, or after bias, penalties and masks."
    )
    script: str | None = None  # path of the script for the scripted backend of the tests
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)

    def __post_init__(self) -> None:
        _check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendConfig:
    """All that process A's text side needs."""

    served_model_name: tuple[str, ...] = option(
        (), "Name that requests use for the model; may be repeated. Default: the model as given."
    )
    chat_template: str | None = option(None, "File with a chat template to use instead of the model's own.")
    trust_message_tokens: bool = option(False, "Let special-token text inside messages act as special tokens.")
    max_num_queued_reqs: int = option(512, "Requests that may wait; one more is refused with 429.", at_least=0)
    request_timeout: float | None = option(
        None, "Seconds after which a request fails with 504. Default: never.", at_least=0.001
    )

    def __post_init__(self) -> None:
        _check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on; 0 takes a free one and prints it.")
    api_key: tuple[str, ...] = option((), "Key that clients must present; may be repeated. Default: no key needed.")
    shutdown_timeout: float = option(30.0, "Seconds that running requests get to finish after SIGTERM.", at_least=0)
    no_restart: bool = option(False, "Exit when the engine process dies instead of restarting it.")
    timings: bool = option(False, "Add the time account to every reply, as if each had asked for it.")
    record_text: bool = option(False, "Keep prompts and outputs in the records of requests.")
    in_process: bool = option(False, "Run the engine in a thread of the server process.")
    metrics_prefix: Literal["sojourn", "vllm"] = option("sojourn", "Prefix of the Prometheus metrics.")
    otlp_traces_endpoint: str | None = option(
        None, "Send a span per request to this OpenTelemetry collector, e.g. http://127.0.0.1:4318. Default: nowhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "Least severe log lines to print.")

    def __post_init__(self) -> None:
        _check_bounds(self)
        if any(key != key.strip() or not key for key in self.api_key):
            raise StartupError("--api-key must not be empty, and must not begin or end with a space.")
