#!/usr/bin/env python3
"""Follow requests through the engine, step by step.

Three short requests come first. Once they decode, a long one of 141 tokens arrives under a budget of 64 tokens a step:
its prefill is cut into chunks that use what the decodes leave, and the short ones get a token in every step.

    python examples/trace_requests.py [--model smollm2:135m] [--lang en|zh]

The first run gives the prompts as token ids, so the chunks are the same on every model: positions 0-60, 61-121 and
122-140. The second does the same with Chinese chat prompts, in whatever chunks they give.
"""

from __future__ import annotations

import argparse
import time

from sojourn import LLM, SamplingParams
from sojourn.core.request import Request
from sojourn.core.scheduler import SchedulerOutput
from sojourn.llm import LLMEngine

Events = dict[str, list[tuple[int, float, int, int]]]  # request id -> (step, time, computed before, tokens)

TEXTS = {
    "en": {
        "long": "long request: a prompt of {n} tokens",
        "prefill": "prefill of tokens {first} to {last}",
        "decode": "decode of 1 token",
        "step": "  step {step:2d}  +{ms:6.0f} ms  {kind}",
        "first": "  the first token comes at +{ms:.0f} ms",
        "head": "request      TTFT     mean TPOT",
        "row": "{kind:5s} {id:>3s} {ttft:7.0f} ms {tpot:7.0f} ms",
        "short_name": "short",
        "long_name": "long",
        "ids": "Prompts as token ids",
        "chat": "The same with chat prompts",
    },
    "zh": {
        "long": "长请求：提示词 {n} 个 token",
        "prefill": "prefill 第 {first}～{last} 个 token",
        "decode": "decode 1 个 token",
        "step": "  第 {step:2d} 步  +{ms:6.0f} ms  {kind}",
        "first": "  第一个 token 出现在 +{ms:.0f} ms",
        "head": "请求      TTFT     平均 TPOT",
        "row": "{kind} {id:>3s} {ttft:7.0f} ms {tpot:7.0f} ms",
        "short_name": "短",
        "long_name": "长",
        "ids": "用 token 编号作提示词",
        "chat": "换成对话提示词，其余不变",
    },
}


def trace(engine: LLMEngine, shorts: list[list[int]], long: list[int]) -> tuple[Events, list[Request], Request]:
    """Run the scenario with a schedule() that writes down what each request was given."""
    events: Events = {}
    schedule = engine.scheduler.schedule

    def traced_schedule() -> SchedulerOutput:
        out = schedule()
        for request, n in out.scheduled:
            event = (len(engine.step_log), time.perf_counter(), request.num_computed, n)
            events.setdefault(request.request_id, []).append(event)
        return out

    engine.scheduler.schedule = traced_schedule  # type: ignore[method-assign]
    wanted = {"temperature": 0.0, "ignore_eos": True}
    short_requests = [engine.add_request(ids, SamplingParams(max_tokens=12, **wanted)) for ids in shorts]
    for _ in range(3):
        engine.step()
    long_request = engine.add_request(long, SamplingParams(max_tokens=6, **wanted))
    while engine.has_unfinished():
        engine.step()
    engine.scheduler.schedule = schedule  # type: ignore[method-assign]
    return events, short_requests, long_request


def report(events: Events, shorts: list[Request], long: Request, text: dict[str, str]) -> None:
    start, n_prompt = long.arrival_time, len(long.prompt_ids)
    print(text["long"].format(n=n_prompt))
    for step, at, computed, n in events[long.request_id]:
        kind = text["prefill"].format(first=computed, last=computed + n - 1) if computed < n_prompt else text["decode"]
        print(text["step"].format(step=step, ms=(at - start) * 1000, kind=kind))
    print(text["first"].format(ms=(long.token_times[0] - start) * 1000))
    print(text["head"])
    for request in [*shorts, long]:
        times = request.token_times
        print(
            text["row"].format(
                kind=text["long_name"] if request is long else text["short_name"],
                id=request.request_id,
                ttft=(times[0] - request.arrival_time) * 1000,
                tpot=(times[-1] - times[0]) / (len(times) - 1) * 1000,
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--lang", choices=sorted(TEXTS), default="en")
    args = parser.parse_args()
    text = TEXTS[args.lang]
    llm = LLM(args.model, max_num_batched_tokens=64)

    print(f"# {text['ids']}")
    ids = [list(range(100 * i, 100 * i + 12)) for i in (1, 2, 3)]
    report(*trace(llm.engine, ids, list(range(500, 641))), text)

    print(f"\n# {text['chat']}")

    def chat(question: str) -> list[int]:
        assert llm.chat_template is not None, f"{args.model} has no chat template"
        return llm.tokenizer.encode_prompt(llm.chat_template.render([{"role": "user", "content": question}]))

    shorts = [chat(question) for question in ("你好", "今天星期几？", "讲个笑话")]
    long = chat("请总结：" + "调度器决定每一步计算哪些请求。" * 14)
    report(*trace(llm.engine, shorts, long), text)


if __name__ == "__main__":
    main()
