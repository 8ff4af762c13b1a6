"""Runs loads through OpenVINO GenAI in this process, with the Python of its environment. Imports nothing of ours.

stdin: {"model": GGUF, "threads": n, "loads": {name: {"prompts": [...], "concurrency": n, "max_tokens": n}}}
stdout, last line: {"version", "ready_s", "loads": {name: {"wall_s", "requests": [{"due", "times", "ended",
"prompt_tokens", "output_tokens"}]}}}

Settings are the library's defaults for continuous batching but for the prefix cache, which is off as it is by default,
and the KV cache, which is large enough for every load. Prompts go in raw, end-of-text is ignored.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import openvino_genai

KV_CACHE_GB = 2


def main() -> None:
    request = json.load(sys.stdin)
    start = time.perf_counter()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = KV_CACHE_GB
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        request["model"], scheduler, "CPU", {"INFERENCE_NUM_THREADS": request["threads"]}
    )
    ready_s = time.perf_counter() - start
    # Kernels are compiled when a shape is first met: once alone and once in company, before anything counts.
    run(pipeline, {"prompts": ["A short text to begin with"], "concurrency": 1, "max_tokens": 4})
    results = {}
    for name, load in request["loads"].items():
        warm = {
            **load,
            "prompts": [" ".join(prompt.split()[::-1]) for prompt in load["prompts"][: load["concurrency"]]],
            "max_tokens": 2,
        }
        run(pipeline, warm)
        results[name] = run(pipeline, load)
    print(json.dumps({"version": openvino_genai.get_version(), "ready_s": ready_s, "loads": results}))


def run(pipeline: Any, load: dict[str, Any]) -> dict[str, Any]:
    """Keeps `concurrency` requests in flight until all prompts are answered."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = load["max_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    waiting = list(enumerate(load["prompts"]))[::-1]
    tokenizer = pipeline.get_tokenizer()
    tokens = [tokenizer.encode(prompt).input_ids.shape[1] for prompt in load["prompts"]]
    running: dict[int, tuple[Any, dict[str, Any]]] = {}
    ended: list[dict[str, Any]] = []
    start = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < load["concurrency"]:
            number, prompt = waiting.pop()
            record = {"due": time.perf_counter(), "times": [], "prompt_tokens": tokens[number], "output_tokens": 0}
            running[number] = pipeline.add_request(number, prompt, config), record
        pipeline.step()
        now = time.perf_counter()
        for number, (handle, record) in list(running.items()):
            if handle.can_read():
                record["output_tokens"] += sum(len(output.generated_ids) for output in handle.read().values())
                record["times"].append(now)
            if record["output_tokens"] >= load["max_tokens"]:
                record["ended"] = now
                ended.append(record)
                del running[number]
    return {"wall_s": time.perf_counter() - start, "requests": ended}


if __name__ == "__main__":
    main()
