"""Sojourn beside its peers in one run: the ratio table of the acceptance, medians over the repeats.

    make peers        # once, 15 minutes: builds llama-server and environments for the others under build/peers
    make compare      # this file with what `make peers` built; ARGS="..." adds options

One engine is loaded at a time, in turn within each repeat, so that a drift of the machine meets all of them. Every
server gets the same prompts from the same load generator; in each repeat and row they are others, so that no cache
of an earlier row helps. Peers run with their best settings: llama-server with as many slots as a row needs and KV
streams of their own (`-np 16 --no-kv-unified`, or `-np 1`), OpenVINO GenAI in process with continuous batching and
without HTTP.
`--quick` shrinks everything: it shows that all runs, its figures mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import engines
from benchmarks.mixed import Mixed, measure_mixed
from benchmarks.rows import LONG_PROMPTS, ROWS, SMOLLM2, Row
from sojourn import machine
from sojourn.bench.http_load import Load, run_load, summarize
from sojourn.bench.outcome import Outcome
from sojourn.bench.spread import median
from sojourn.bench.tables import table
from sojourn.cli.library_pools import limit_library_pools

LIMIT_S = 1800.0
IDLE_LOAD = 0.5
CONTEXT = {1: 4096, 16: 1024}  # tokens of each slot of llama-server, by the number of slots: no more than rows use
MEMORY_BLOCKS = 64  # KV blocks of the server whose memory is read, filled by one request
MEMORY_WORDS = 1900
CEILING_SHARE, READY_S, MEMORY_FACTOR = 0.70, 2.0, 1.3  # what the acceptance asks for beside the ratios
GAP_STEPS, MIXED_SHARE = 6.0, 0.75
OUTSIDE_MS, OUTSIDE_SHARE = 0.2, 0.03


class Results:
    """Figures by (engine, row), one for each repeat."""

    def __init__(self) -> None:
        self.figures: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.notes: dict[str, list[Any]] = defaultdict(list)

    def add(self, engine: str, row: str, figure: float) -> None:
        self.figures[engine, row].append(figure)
        print(f"  {engine:9} {row:32} {figure:10.1f}", flush=True)

    def get(self, engine: str, row: str) -> float | None:
        found = self.figures.get((engine, row))
        return median(found) if found else None


def main() -> None:
    args = parse()
    for path in (args.llama_server, args.openvino_python):
        if path is not None and not path.exists():
            sys.exit(f"{path} is not there: `make peers` builds it under build/peers")
    limit_library_pools()
    from sojourn.cli.doctor import read_bandwidth  # here: NumPy reads the pools' limits when it is imported

    rows = [row.small() if args.quick else row for row in ROWS if row.model in args.model]
    files = {model: pulled(model) for model in dict.fromkeys([*args.model, SMOLLM2])}
    results = Results()
    load = engines.load_average()
    print(
        f"machine   {machine.cpu_name()}, {args.threads} threads, load average {load:.1f}, commit {engines.commit()}",
        flush=True,
    )
    if load > IDLE_LOAD:
        print("NOT IDLE  something else runs: ratios lean against the engines whose threads wait for each other")
    for repeat in range(args.repeats):
        print(f"repeat {repeat + 1} of {args.repeats}", flush=True)
        results.notes["bandwidth"].append(read_bandwidth(args.threads))
        seeded = [dataclasses.replace(row, load=seed(row.load, repeat, index)) for index, row in enumerate(rows)]
        for model in args.model:
            own = [row for row in seeded if row.model == model]
            uvloop.run(run_sojourn(args, results, model, own, repeat))
            if args.llama_server is not None:
                run_llama(args, results, files[model], own)
        if args.openvino_python is not None:
            run_openvino(args, results, files[SMOLLM2], [row for row in seeded if row.openvino is not None])
        if SMOLLM2 in args.model:
            alone(args, results, files[SMOLLM2])
    print()
    report(args, results, rows, files)
    if args.json is not None:
        figures = {f"{engine} {row}": values for (engine, row), values in results.figures.items()}
        args.json.write_text(json.dumps({"figures": figures, "notes": results.notes}, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, help="binary; without it llama.cpp is left out")
    parser.add_argument(
        "--openvino-python", type=Path, help="Python with openvino-genai; without it OpenVINO is left out"
    )
    parser.add_argument("--model", nargs="+", default=list(dict.fromkeys(row.model for row in ROWS)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=machine.usable_threads()[0])
    parser.add_argument("--sojourn-args", default="", help='more arguments of `sojourn serve`, e.g. "--backend native"')
    parser.add_argument("--json", type=Path, help="write every figure of every repeat here")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def pulled(model: str) -> Path:
    command = [sys.executable, "-m", "sojourn.cli", "pull", model, "--print-path"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


def seed(load: Load, repeat: int, index: int) -> Load:
    return dataclasses.replace(load, seed=1 + 100 * repeat + index)


async def run_sojourn(args: argparse.Namespace, results: Results, model: str, rows: list[Row], repeat: int) -> None:
    with engines.sojourn(model, ["--threads", str(args.threads), *args.sojourn_args.split()]) as running:
        await drive(results, "sojourn", running, rows)
        if model != SMOLLM2:
            return
        results.add("sojourn", "ready s", running.ready_s)
        prompts = seed(LONG_PROMPTS, repeat, 90)
        if args.quick:
            prompts = dataclasses.replace(prompts, requests=2, prompt_words=100)
        stream = next(iter(Load(requests=1, seed=prompts.seed + 1).prompts()))
        mixed = await measure_mixed(
            running.endpoint, model, prompts, alone_tokens=20 if args.quick else 200, stream=stream
        )
        results.notes["mixed"].append(dataclasses.asdict(mixed))
        print(f"  sojourn   mixed {mixed}", flush=True)


def run_llama(args: argparse.Namespace, results: Results, model: Path, rows: list[Row]) -> None:
    for slots in sorted({row.slots for row in rows}):
        server = engines.llama_server(
            args.llama_server, model, threads=args.threads, slots=slots, context=CONTEXT[slots]
        )
        with server as running:
            uvloop.run(drive(results, "llama", running, [row for row in rows if row.slots == slots]))
            if slots == 1:
                results.notes[f"llama ready s, {model.name}"].append(running.ready_s)
                results.notes[f"llama bytes, {model.name}"].append(running.memory())


async def drive(results: Results, engine: str, running: engines.Running, rows: list[Row]) -> None:
    await run_load(running.endpoint, running.model, Load(requests=1, prompt_words=20, max_tokens=4, seed=999))
    for row in rows:
        found = await run_load(running.endpoint, running.model, row.load, limit_s=LIMIT_S)
        if found.failed:
            sys.exit(f"{engine}, {row.key}: {found.failed} requests failed: {found.errors[0]}")
        results.notes[f"tokens {row.key}"].append([engine, found.prompt_tokens, found.output_tokens])
        results.add(engine, row.key, row.figure(found))


def run_openvino(args: argparse.Namespace, results: Results, model: Path, rows: list[Row]) -> None:
    if not rows:
        return
    loads = {
        row.key: {
            "prompts": row.load.prompts(),
            "concurrency": row.load.concurrency,
            "max_tokens": row.load.max_tokens,
        }
        for row in rows
    }
    answer = engines.openvino(args.openvino_python, {"model": str(model), "threads": args.threads, "loads": loads})
    results.notes["openvino ready s"].append(answer["ready_s"])
    results.notes["openvino version"].append(answer["version"])
    for row in rows:
        measured = answer["loads"][row.key]
        found = summarize([Outcome(**each) for each in measured["requests"]], measured["wall_s"])
        results.notes[f"tokens {row.key}"].append(["openvino", found.prompt_tokens, found.output_tokens])
        results.add("openvino", row.key, row.figure(found))


def alone(args: argparse.Namespace, results: Results, model: Path) -> None:
    """What needs no load or no server: the parts of a step, and the memory of a server whose KV is full."""
    with tempfile.NamedTemporaryFile(suffix=".json") as written:
        command = [sys.executable, "-m", "sojourn.cli", "bench", "offline", str(model), "--json", written.name]
        command += ["--streams", "1", "--streams", "16", "--repeats", "1", "--threads", str(args.threads)]
        command += ["-n", "6", "--prefill-tokens", "50"] if args.quick else []
        subprocess.run([*command, *offline_args(args)], check=True, stdout=subprocess.DEVNULL)
        offline = json.loads(Path(written.name).read_text())
    results.notes["offline"].append(offline)
    info = offline["info"]
    kv_bytes = info["kv_bytes"] // info["num_kv_blocks"] * MEMORY_BLOCKS
    options = ["--threads", str(args.threads), "--num-kv-blocks", str(MEMORY_BLOCKS), *args.sojourn_args.split()]
    with engines.sojourn(str(model), options) as running:
        words = 100 if args.quick else MEMORY_WORDS
        fill = Load(requests=1, prompt_words=words, prompt_spread=0, max_tokens=8)
        uvloop.run(run_load(running.endpoint, str(model), fill, limit_s=LIMIT_S))
        results.notes["memory"].append({"resident": running.memory(), "file": model.stat().st_size, "kv": kv_bytes})


def offline_args(args: argparse.Namespace) -> list[str]:
    """Those of --sojourn-args that `bench offline` takes too."""
    words = args.sojourn_args.split()
    known = ("--backend", "--kv-cache-dtype", "--max-num-batched-tokens", "--kv-cache-memory")
    return [word for flag, value in pairwise(words) if flag in known for word in (flag, value)]


def report(args: argparse.Namespace, results: Results, rows: list[Row], files: dict[str, Path]) -> None:
    bandwidth = median(results.notes["bandwidth"])
    print(f"machine   {machine.cpu_name()}, {args.threads} threads read {bandwidth / 1e9:.1f} GB/s")
    if args.quick:
        print("QUICK     shrunken work: these figures show that everything runs and nothing else")
    print(f"models    {', '.join(f'{model}: {files[model].name}' for model in args.model)}")
    print(f"repeats   {args.repeats}, medians; ratios above 1 mean that Sojourn is better")
    if results.notes["offline"]:
        info = results.notes["offline"][0]["info"]
        print(f"sojourn   {info['backend']}, {info['isa']}")
        print(f"peers     llama-server, {first(results.notes['openvino version'])}")
    print()
    print(
        table(
            [("work", "unit", "Sojourn", "llama", "ratio", "needs", "OpenVINO", "ratio", "needs", "")]
            + [ratio_cells(results, row) for row in rows]
        )
    )
    if results.notes["offline"]:
        print()
        print(table([("Sojourn alone", "measured", "needs", ""), *alone_cells(results, bandwidth)]))


def first(values: list[Any]) -> str:
    return f"OpenVINO GenAI {values[0]}" if values else "OpenVINO not run"


def ratio_cells(results: Results, row: Row) -> tuple[str, ...]:
    ours = results.get("sojourn", row.key)
    assert ours is not None  # every row ran
    cells, met = [], []
    for engine, needs in (("llama", row.llama), ("openvino", row.openvino)):
        theirs = results.get(engine, row.key)
        ratio = None if theirs is None else row.ratio(ours, theirs)
        cells += [figure(theirs), "" if ratio is None else f"{ratio:.2f}x", "" if needs is None else f"{needs:g}x"]
        met += [] if ratio is None or needs is None else [ratio >= needs]
    model = "" if row.model == SMOLLM2 else f"{row.model.split(':')[0]}: "
    return (model + row.title, row.unit, figure(ours), *cells, verdict(met))


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def verdict(met: list[bool]) -> str:
    return "" if not met else "met" if all(met) else "MISSED"


def alone_cells(results: Results, bandwidth: float) -> list[tuple[str, ...]]:
    """Rows (what, measured, needed, verdict) of what is asked of Sojourn itself."""
    one, sixteen = (middle_decode(results, index) for index in (0, 1))
    ceiling = bandwidth / one["bytes_per_step"]
    speed = results.get("sojourn", f"one:{SMOLLM2}")
    assert speed is not None
    mixed = {name: median([each[name] for each in results.notes["mixed"]]) for name in fields(Mixed)}
    steps, share = mixed["gap_p99_ms"] / mixed["alone_ms"], mixed["mixed_tok_s"] / mixed["unmixed_tok_s"]
    memory = {name: median([each[name] for each in results.notes["memory"]]) for name in ("resident", "file", "kv")}
    factor = (memory["resident"] - memory["kv"]) / memory["file"]
    ready = results.get("sojourn", "ready s")
    assert ready is not None
    outside = sixteen["other_s"] / sixteen["step_s"]
    return [
        (
            f"1 stream over HTTP, of {ceiling:.0f} tok/s that {one['bytes_per_step'] / 1e6:.1f} MB a step allow",
            f"{speed / ceiling:.0%}", f"{CEILING_SHARE:.0%}", verdict([speed / ceiling >= CEILING_SHARE]),
        ),
        (
            f"p99 gap of a stream amid long prompts, in steps of {mixed['alone_ms']:.1f} ms",
            f"{steps:.1f}", f"{GAP_STEPS:.1f}", verdict([steps <= GAP_STEPS]),
        ),
        (
            f"the prompts' rate, of {mixed['unmixed_tok_s']:.0f} tok/s without the stream",
            f"{share:.0%}", f"{MIXED_SHARE:.0%}", verdict([share >= MIXED_SHARE]),
        ),
        (
            "outside kernels, 1 stream, ms a step",
            f"{1e3 * one['other_s']:.3f}", f"{OUTSIDE_MS}", verdict([1e3 * one["other_s"] <= OUTSIDE_MS]),
        ),
        (
            f"outside kernels, 16 streams, of steps of {1e3 * sixteen['step_s']:.1f} ms",
            f"{outside:.1%}", f"{OUTSIDE_SHARE:.0%}", verdict([outside <= OUTSIDE_SHARE]),
        ),
        (
            "sampling, ms a step at 1 and 16 streams",
            f"{1e3 * one['sample_s']:.3f}, {1e3 * sixteen['sample_s']:.3f}", "", "",
        ),
        ("ready, s", f"{ready:.2f}", f"{READY_S}", verdict([ready <= READY_S])),
        (
            f"resident {memory['resident'] / 1e6:.0f} MB less {memory['kv'] / 1e6:.0f} MB of KV, of the file's "
            f"{memory['file'] / 1e6:.0f} MB",
            f"{factor:.2f}x", f"{MEMORY_FACTOR}x", verdict([factor <= MEMORY_FACTOR]),
        ),
    ]  # fmt: skip


def fields(record: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]


def middle_decode(results: Results, index: int) -> dict[str, float]:
    """Medians over the repeats of one row of `bench offline`."""
    rows = [each["decode"][index] for each in results.notes["offline"]]
    return {name: median([row[name] for row in rows]) for name in rows[0]}


if __name__ == "__main__":
    main()
