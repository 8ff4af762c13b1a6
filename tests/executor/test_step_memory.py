"""The memory of the largest step: what the executor counts beforehand against what a process then takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, re, sys
from pathlib import Path
import numpy as np
from sojourn.executor.model import Model
from tests.graph.plans import make_plan

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

rows, context, threads = json.loads(sys.argv[1])
model = Model.from_pretrained("smollm2:135m")
blocks = rows // 16 + 2
backend = model.native_backend(0, 16, max_rows=rows, threads=threads)
backend.allocate_kv(blocks)
table = np.zeros((1, context // 16), np.int32)  # what came before may lie anywhere
table[0, (context - rows) // 16 :] = np.arange(1, rows // 16 + 1)
backend.forward(make_plan([([5], 0)], table))  # pages of code and weights that any step touches
kv = blocks * 16 * model.kv_bytes_per_token("f16")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = peak()
hidden = backend.forward(make_plan([(list(range(100, 100 + rows)), context - rows)], table))
backend.logits(hidden[-4:])
print(json.dumps([backend.step_bytes(4, context), peak() - before, kv]))
"""


@pytest.mark.parametrize(("rows", "context", "threads"), [(512, 1024, 2), (256, 2048, 1)])
def test_b77_the_largest_step_takes_what_was_counted(rows: int, context: int, threads: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([rows, context, threads])],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted, taken, kv = json.loads(done.stdout)
    slack = 3 * 2**20  # the allocator's and Python's own
    assert taken <= counted + kv + slack, "a step takes more than the memory plan leaves for it"
    assert taken >= 0.5 * counted, "the count has lost touch with what a step takes"
