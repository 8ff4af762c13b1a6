"""Options out of range are refused where they are made, whoever makes them."""

from __future__ import annotations

import pytest

from sojourn.config import CacheConfig, EngineConfig, FrontendConfig, SchedulerConfig, ServerConfig
from sojourn.errors import StartupError

TOO_SMALL = [
    (SchedulerConfig, "max_num_seqs", 0),
    (SchedulerConfig, "max_num_batched_tokens", 0),
    (CacheConfig, "block_size", 0),
    (CacheConfig, "num_kv_blocks", 0),
    (EngineConfig, "max_model_len", 0),
    (EngineConfig, "threads", 0),
    (FrontendConfig, "max_num_queued_reqs", -1),
    (FrontendConfig, "request_timeout", 0.0),
    (ServerConfig, "shutdown_timeout", -1.0),
    (ServerConfig, "shutdown_timeout", float("nan")),
]


@pytest.mark.parametrize(("config", "name", "value"), TOO_SMALL)
def test_a_number_below_its_bound_is_refused_by_the_name_of_its_flag(config, name, value):
    with pytest.raises(StartupError, match=f"--{name.replace('_', '-')} "):
        config(**{name: value})


@pytest.mark.parametrize("key", ["", " ", "secret "])
def test_b85_an_api_key_that_nothing_or_nobody_could_match_is_refused(key):
    with pytest.raises(StartupError, match="--api-key"):
        ServerConfig(api_key=("good", key))


def test_none_keeps_the_default_behaviour():
    assert EngineConfig(max_model_len=None, threads=None).threads is None
    assert CacheConfig(num_kv_blocks=None).num_kv_blocks is None
