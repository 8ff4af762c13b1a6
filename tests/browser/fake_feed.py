"""A server with the page and a made-up engine behind it: what /v1/events and its companions say of a plausible load."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse

from sojourn.server import routes_page

BUDGET, BLOCK, BLOCKS, SLOTS = 256, 32, 150, 8
Json = dict[str, Any]


class Engine:
    """Plays steps in real time: chunked prefill under a budget, a queue, preemption, prefix hits, evictions."""

    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.origin = time.monotonic()
        self.started_at = time.time()
        self.requests: dict[str, Json] = {}
        self.steps: list[Json] = []
        self.waiting: list[Json] = []
        self.running: list[Json] = []
        self.blocks: list[list[Any]] = [["free", None] for _ in range(BLOCKS)]
        self.cached: list[int] = []
        self.generated = self.preemptions = self.changes = 0
        self.evicted_ids: list[tuple[int, int]] = []
        self.block_log: list[tuple[int, int]] = []
        self.next_arrival = 0.0

    def now(self) -> float:
        return (time.monotonic() - self.origin) * 1000

    # blocks

    def set(self, block: int, state: str, owner: str | None) -> None:
        self.blocks[block] = [state, owner]
        self.changes += 1
        self.block_log.append((self.changes, block))

    def count(self, *states: str) -> int:
        return sum(state in states for state, _ in self.blocks)

    def take(self, owner: str) -> tuple[int, bool] | None:
        for index, (state, _) in enumerate(self.blocks):
            if state == "free":
                self.set(index, "live", owner)
                return index, False
        if self.cached:
            index = self.cached.pop(0)
            self.set(index, "live", owner)
            self.changes += 1
            self.evicted_ids.append((self.changes, index))
            return index, True
        return None

    def grow(self, request: Json, tokens: int) -> int | None:
        evicted = 0
        while len(request["_table"]) * BLOCK < tokens:
            taken = self.take(request["request_id"])
            if taken is None:
                return None
            request["_table"].append(taken[0])
            evicted += taken[1]
        return evicted

    def release(self, request: Json, keep: bool) -> None:
        for block in reversed(request["_table"]):
            if self.blocks[block][0] == "shared":
                self.set(block, "live", self.blocks[block][1])
                continue
            self.set(block, "cached" if keep else "free", self.blocks[block][1] if keep else None)
            if keep:
                self.cached.append(block)
        request["_table"] = []

    # life

    def arrive(self) -> None:
        kind = self.random.random()
        prompt = self.random.randint(300, 1100) if kind < 0.18 else self.random.randint(14, 120)
        output = self.random.randint(40, 260) if kind > 0.1 else self.random.randint(300, 420)
        number = "".join(self.random.choice("0123456789abcdef") for _ in range(32))
        chat = self.random.random() < 0.8
        receive = self.now()
        front = [("receive", 0.4), ("render", 0.3 if chat else 0.0), ("tokenize", 0.2 + prompt / 900), ("send", 0.25)]
        stations, at = [], 0.0
        for name, took in front:
            stations.append({"name": name, "process": "frontend", "start_ms": round(at, 3), "duration_ms": round(took, 3)})
            at += took
        receive -= at
        request: Json = {
            "request_id": f"{'chatcmpl' if chat else 'cmpl'}-{number}", "client_request_id": number, "model": "smollm2:135m",
            "endpoint": "/v1/chat/completions" if chat else "/v1/completions", "state": "queued", "finish_reason": None,
            "received_at": time.time(), "received_ms": receive, "prompt_tokens": prompt, "cached_tokens": 0,
            "completion_tokens": 0, "priority": 0, "stations": stations, "waits": [], "steps": [], "itl_ms": [], "itl_causes": [],
            "preemptions": [], "token_times_ms": [], "tpot_ms": None, "e2e_ms": None,
            "prefix": {"hit_blocks": 0, "hit_tokens": 0, "stopped": "no_match", "from_request": None, "blocks": []},
            "kv_blocks": {"peak": 0, "at_finish": None, "table": []}, "choices": [],
            "_table": [], "_done": 0, "_target": output, "_queued": at, "_reason": "step_running", "_since": at, "_parts": dict(front),
            "_abort": self.random.random() < 0.04,
        }  # fmt: skip
        self.requests[request["request_id"]] = request
        self.waiting.append(request)

    def wait(self, request: Json, reason: str) -> None:
        if request["_reason"] != reason:
            self.end_wait(request)
            request["_reason"], request["_since"] = reason, self.now() - request["received_ms"]

    def end_wait(self, request: Json) -> None:
        took = self.now() - request["received_ms"] - request["_since"]
        request["waits"].append({"reason": request["_reason"], "duration_ms": round(took, 3)})

    def admit(self, admitted: list[str], room: int) -> None:
        while self.waiting:
            request = self.waiting[0]
            need = -(-(request["prompt_tokens"] + request["completion_tokens"]) // BLOCK) + 2
            if len(self.running) >= SLOTS:
                return self.wait(request, "seq_slots")
            if self.count("free", "cached") < need:
                return self.wait(request, "kv_blocks")
            if room <= 0:
                return self.wait(request, "token_budget")
            self.waiting.pop(0)
            self.end_wait(request)
            now = self.now() - request["received_ms"]
            if not request["steps"]:
                queued = now - request["_queued"]
                self.station(request, "queue", request["_queued"], queued, "engine")
                self.station(request, "prefix", now, 0.05, "engine")
                request["_parts"] |= {"queue": queued, "prefix": 0.05}
                self.hit(request)
            request["state"] = "running"
            self.running.append(request)
            admitted.append(request["request_id"])
            room -= min(room, request["prompt_tokens"])
        return None

    def hit(self, request: Json) -> None:
        donors = [other for other in self.running if len(other["_table"]) > 3 and other["prompt_tokens"] > 96]
        if donors and request["prompt_tokens"] > 90 and self.random.random() < 0.6:
            donor = self.random.choice(donors)
            blocks = donor["_table"][: min(len(donor["_table"]) - 1, request["prompt_tokens"] // BLOCK - 1)]
            for block in blocks:
                self.set(block, "shared", self.blocks[block][1])
            request["_table"] = list(blocks)
            request["cached_tokens"] = request["_done"] = len(blocks) * BLOCK
            request["prefix"] |= {"hit_blocks": len(blocks), "hit_tokens": len(blocks) * BLOCK, "from_request": donor["request_id"]}
        request["prefix"]["blocks"] = [
            {"block": block, "state": "hit"} for block in request["_table"]
        ] + [{"block": self.random.randrange(BLOCKS), "state": "computed"} for _ in range(request["prompt_tokens"] // BLOCK - len(request["_table"]))]

    def station(self, request: Json, name: str, start: float, took: float, process: str) -> None:
        request["stations"].append({"name": name, "process": process, "start_ms": round(start, 3), "duration_ms": round(took, 3)})

    def preempt(self, preempted: list[str]) -> None:
        victim = self.running.pop()
        self.release(victim, keep=True)
        victim["preemptions"].append({"at_ms": round(self.now() - victim["received_ms"], 3), "lost_tokens": victim["_done"], "resumed_ms": None})
        victim |= {"_done": 0, "state": "queued", "_reason": "kv_blocks", "_since": self.now() - victim["received_ms"]}
        self.waiting.insert(0, victim)
        preempted.append(victim["request_id"])
        self.preemptions += 1

    async def step(self) -> None:
        if self.now() >= self.next_arrival:
            burst = 6 if self.random.random() < 0.12 else 1
            for _ in range(burst):
                self.arrive()
            self.next_arrival = self.now() + self.random.expovariate(1 / 1100)
        admitted: list[str] = []
        preempted: list[str] = []
        decoding = [each for each in self.running if each["_done"] >= each["prompt_tokens"] + each["completion_tokens"] - 1 and each["completion_tokens"]]
        self.admit(admitted, BUDGET - len(decoding))
        if not self.running:
            await asyncio.sleep(0.02)
            return
        plan, budget, evicted = [], BUDGET, 0
        for request in list(self.running):
            if request not in self.running:
                continue
            goal = request["prompt_tokens"] + request["completion_tokens"]
            tokens = min(goal - request["_done"], budget)
            if tokens <= 0:
                continue
            grown = self.grow(request, request["_done"] + tokens)
            while grown is None and len(self.running) > 1:
                self.preempt(preempted)
                if request not in self.running:
                    break
                grown = self.grow(request, request["_done"] + tokens)
            if request not in self.running:
                continue
            evicted += grown or 0
            kind = "decode" if tokens == 1 and request["completion_tokens"] else "recompute" if request["preemptions"] else "prefill"
            plan.append((request, kind, request["_done"], tokens))
            budget -= tokens
        plan = [each for each in plan if each[0] in self.running]
        total = sum(tokens for *_, tokens in plan)
        start = self.now()
        took = 4.5 + 0.32 * len(plan) + total * 0.55 + self.random.random() * 1.5
        await asyncio.sleep(took / 1000)
        self.account(plan, start, self.now() - start, admitted, preempted, evicted, total)

    def account(self, plan: list[Any], start: float, took: float, admitted: list[str], preempted: list[str], evicted: int, total: int) -> None:
        number = len(self.steps)
        prefillers = [request["request_id"] for request, kind, *_ in plan if kind != "decode"]
        for request, kind, begin, tokens in plan:
            relative = start - request["received_ms"]
            request["steps"].append({
                "step": number, "start_ms": round(relative, 3), "duration_ms": round(took, 3), "kind": kind, "from": begin, "to": begin + tokens - 1,
                "tokens": tokens, "batch_tokens": total, "batch_requests": len(plan),
            })  # fmt: skip
            if request["preemptions"] and request["preemptions"][-1]["resumed_ms"] is None:
                request["preemptions"][-1]["resumed_ms"] = round(relative, 3)
            request["_done"] += tokens
            request["kv_blocks"] |= {"peak": max(request["kv_blocks"]["peak"], len(request["_table"])), "table": list(request["_table"])}
            if request["_done"] >= request["prompt_tokens"] + request["completion_tokens"]:
                self.token(request, number, kind, relative + took, prefillers)
        self.steps.append({
            "step": number, "start_ms": round(start, 3), "duration_ms": round(took, 3),
            "parts": {"schedule": 0.06, "prepare": 0.05, "compute": round(took - 0.9, 3), "sample": 0.7, "update": 0.09},
            "tokens": total, "budget": BUDGET, "admitted": admitted, "preempted": preempted, "evicted_blocks": evicted,
            "requests": [{"id": request["request_id"], "kind": kind, "from": begin, "tokens": tokens} for request, kind, begin, tokens in plan],
            "kv": {"live": self.count("live", "shared"), "cached": self.count("cached"), "free": self.count("free")},
            "queue": len(self.waiting), "running": len(self.running),
        })  # fmt: skip

    def token(self, request: Json, number: int, kind: str, at: float, prefillers: list[str]) -> None:
        times = request["token_times_ms"]
        if times:
            index, gap = len(request["itl_ms"]), at - times[-1]
            request["itl_ms"].append(round(gap, 3))
            others = [each for each in prefillers if each != request["request_id"]]
            cause = "preempted" if kind == "recompute" else "prefill_in_step" if others else "gc" if self.random.random() < 0.01 else "decode"
            request["itl_causes"].append({"index": index, "ms": round(gap, 3), "cause": cause, "step": number, "with": others})
        else:
            self.first_token(request, at)
        times.append(round(at, 3))
        request["completion_tokens"] += 1
        self.generated += 1
        if len(times) > 1:
            request["tpot_ms"] = round((times[-1] - times[0]) / (len(times) - 1), 3)
        if request["completion_tokens"] >= request["_target"] or (request["_abort"] and request["completion_tokens"] > 20):
            self.finish(request, at)

    def first_token(self, request: Json, at: float) -> None:
        parts = request["_parts"]
        steps = request["steps"]
        prefill = sum(step["duration_ms"] for step in steps) - 0.7
        parts |= {"prefill": prefill, "sample": 0.7, "return": 0.3, "detokenize": 0.1, "stream": 0.2, "preempted": 0.0}
        begin = steps[0]["start_ms"]
        self.station(request, "prefill", begin, at - begin - 0.7, "engine")
        self.station(request, "sample", at - 0.7, 0.7, "engine")
        total = at + 0.6
        parts["stall"] = max(0.0, total - sum(parts.values()) - 0.2)
        rounded = {name: round(value, 3) for name, value in parts.items()}
        request["ttft"] = {"total_ms": round(total, 3), "parts": rounded, "unattributed_ms": round(total - sum(rounded.values()), 3)}

    def finish(self, request: Json, at: float) -> None:
        first = request["ttft"]["total_ms"]
        self.station(request, "decode", first, at - first, "engine")
        self.station(request, "finish", at, 0.3, "engine")
        aborted = request["_abort"]
        request |= {"state": "aborted" if aborted else "finished", "e2e_ms": round(at + 0.3, 3)}
        request["finish_reason"] = "abort" if aborted else "length" if request["_target"] % 3 else "stop"
        if aborted:
            request["state_when_left"] = "running"
        parts = request["ttft"]["parts"] | {"decode": round(at - first, 3), "finish": 0.3}
        request["e2e"] = {"total_ms": request["e2e_ms"], "parts": parts, "unattributed_ms": round(request["e2e_ms"] - sum(parts.values()), 3)}
        request["kv_blocks"] |= {"at_finish": len(request["_table"]), "table": []}
        self.release(request, keep=True)
        self.running.remove(request)

    # views

    def queue(self) -> list[Json]:
        return [{"id": each["request_id"], "position": index + 1, "reason": each["_reason"], "priority": 0, "prompt_tokens": each["prompt_tokens"],
                 "waited_ms": round(self.now() - each["received_ms"] - each["_since"], 3)} for index, each in enumerate(self.waiting)]  # fmt: skip

    def kv(self) -> Json:
        return {"live": self.count("live", "shared"), "cached": self.count("cached"), "free": self.count("free")}

    def stats(self) -> Json:
        return {"running": len(self.running), "waiting": {}, "preemptions": self.preemptions, "generation_tokens": self.generated}

    def system(self) -> Json:
        settings = [("model", "smollm2:135m", "default"), ("host", "127.0.0.1", "default"), ("port", 9000, "flag"), ("api_key", None, "default"),
                    ("max_model_len", "auto", "default"), ("max_num_seqs", 8, "flag"), ("max_num_batched_tokens", 256, "flag"),
                    ("num_kv_blocks", 420, "environment"), ("block_size", 32, "default"), ("threads", 2, "config file"),
                    ("enable_prefix_caching", True, "default")]  # fmt: skip
        phases = [("imports", 320), ("port", 4), ("model file", 18), ("tokenizer", 140), ("weights", 410), ("kv cache", 60), ("warm up", 45)]
        startup, at = [], 0.0
        for name, took in phases:
            startup.append({"name": name, "start_ms": at, "duration_ms": float(took)})
            at += took
        return {
            "model": "smollm2:135m", "architecture": "llama", "quantization": "Q4_1", "num_parameters": 134_515_008,
            "context": {"max_model_len": 8192, "reason": "the model's own limit"}, "isa": "avx512_vnni", "threads": 2, "backend": "native",
            "memory": {"weight_bytes": 98_000_000, "kv_bytes": BLOCKS * 737_280, "resident_bytes": 512_000_000},
            "kv": {"num_blocks": BLOCKS, "block_size": BLOCK}, "startup": startup, "version": "0.1.0", "started_at": self.started_at,
            "configuration": [{"name": name, "value": value, "source": source} for name, value, source in settings],
        }  # fmt: skip


LONG = {"steps", "itl_ms", "itl_causes", "token_times_ms"}


def public(record: Json, *, summary: bool) -> Json:
    return {key: value for key, value in record.items() if not key.startswith("_") and not (summary and key in LONG)}


def frame(event: str, data: Json) -> str:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"


def create_app(engine: Engine) -> FastAPI:
    app = FastAPI()
    app.include_router(routes_page.router)

    @app.get("/v1/events")
    async def events(request: Request) -> StreamingResponse:
        async def feed() -> AsyncIterator[str]:
            changes, steps, seen = engine.changes, len(engine.steps), {}
            newest = list(engine.requests.values())[::-1][:200]
            yield frame("snapshot", {
                "now_ms": engine.now(), "system": engine.system(), "requests": [public(each, summary=True) for each in newest],
                "steps": engine.steps[-300:], "queue": engine.queue(),
                "kv": {"num_blocks": BLOCKS, "block_size": BLOCK, **engine.kv(), "blocks": engine.blocks},
            })  # fmt: skip
            while not await request.is_disconnected():
                await asyncio.sleep(0.15)
                changed = []
                for each in engine.requests.values():
                    mark = (each["state"], each["completion_tokens"], len(each["steps"]))
                    if seen.get(each["request_id"]) != mark:
                        seen[each["request_id"]] = mark
                        changed.append(public(each, summary=True))
                blocks = {block for number, block in engine.block_log if number > changes}
                evicted = [block for number, block in engine.evicted_ids if number > changes]
                changes = engine.changes
                yield frame("delta", {
                    "now_ms": engine.now(), "requests": changed, "steps": engine.steps[steps:], "queue": engine.queue(), "stats": engine.stats(),
                    "kv": {**engine.kv(), "changes": [[block, *engine.blocks[block]] for block in blocks], "evicted": evicted},
                })  # fmt: skip
                steps = len(engine.steps)

        return StreamingResponse(feed(), media_type="text/event-stream")

    @app.get("/v1/requests/{request_id}")
    async def one(request_id: str) -> JSONResponse:
        if request_id not in engine.requests:
            raise HTTPException(404)
        return JSONResponse(public(engine.requests[request_id], summary=False))

    return app


async def main(port: int) -> None:
    engine = Engine()
    server = uvicorn.Server(uvicorn.Config(create_app(engine), host="127.0.0.1", port=port, log_level="warning"))
    task = asyncio.create_task(server.serve())
    while not task.done():
        await engine.step()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
