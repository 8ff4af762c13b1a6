"""The words of the terminal table, in English and Chinese. Station names, step kinds and reasons stay as the record
has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Texts:
    prompt: str
    choice: str
    step: str
    chunk: str
    recompute: str
    decode: str
    batch: str
    first_token: str
    no_token: str
    preempted: str
    resumed: str
    unattributed: str
    tpot: str
    no_tpot: str
    gaps: str
    end: str
    so_far: str
    waits: str
    no_waits: str
    left: str
    colon: str
    comma: str


TEXTS: dict[Language, Texts] = {
    "en": Texts(
        prompt="prompt {prompt} tokens, {cached} of them cached; {generated} generated",
        choice="choice {index}: {tokens} tokens, {reason}",
        step="step {step}",
        chunk="prefill tokens {first}-{last}",
        recompute="recompute tokens {first}-{last}",
        decode="decode 1 token",
        batch="{tokens} tokens of {requests} requests",
        first_token="first token at +{ms} ms",
        no_token="no token yet",
        preempted="preempted at +{ms} ms, {lost} tokens to compute again",
        resumed="resumed at +{ms} ms",
        unattributed="unattributed",
        tpot="TPOT {ms} ms on average over {count} tokens",
        no_tpot="TPOT: needs at least two tokens",
        gaps="slower than a plain decode step",
        end="end to end {ms} ms",
        so_far="{ms} ms so far",
        waits="waited",
        no_waits="waited for nothing",
        left="; {state} when the client left",
        colon=": ",
        comma=", ",
    ),
    "zh": Texts(
        prompt="提示词 {prompt} 个 token，其中 {cached} 个来自缓存；生成 {generated} 个",
        choice="第 {index} 个回答：{tokens} 个 token，{reason}",
        step="第 {step} 步",
        chunk="prefill 第 {first}～{last} 个 token",
        recompute="重新计算第 {first}～{last} 个 token",
        decode="decode 1 个 token",
        batch="{requests} 个请求共 {tokens} 个 token",
        first_token="第一个 token 出现在 +{ms} ms",
        no_token="还没有 token",
        preempted="+{ms} ms 被抢占，{lost} 个 token 需要重新计算",
        resumed="+{ms} ms 恢复",
        unattributed="未归属",
        tpot="平均 TPOT {ms} ms，共 {count} 个 token",
        no_tpot="TPOT：至少要有两个 token",
        gaps="比普通 decode 慢的间隔",
        end="端到端 {ms} ms",
        so_far="到目前为止 {ms} ms",
        waits="等待",
        no_waits="没有等待",
        left="；客户端离开时处于 {state}",
        colon="：",
        comma="，",
    ),
}
