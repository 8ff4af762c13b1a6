"""Where the kernels' threads may run: on CPUs this process may use, one each, and unpinned rather than not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np

from sojourn.executor.model import Model
from tests.graph.plans import make_plan

CODE = """
import json, os, sys, time
cpus, threads = json.loads(sys.argv[1])
os.sched_setaffinity(0, cpus)
from sojourn.native import Executor
before = set(os.listdir("/proc/self/task"))
executor = Executor("portable", threads, 1)
deadline = time.monotonic() + 20
while True:  # a thread pins itself as its first act
    new = sorted(set(os.listdir("/proc/self/task")) - before)
    masks = [sorted(os.sched_getaffinity(int(task))) for task in new]
    pinned = sum(len(mask) == 1 for mask in masks)
    if (len(new) == threads - 1 and pinned >= min(threads, len(cpus)) - 1) or time.monotonic() > deadline:
        break
    time.sleep(0.01)
print(json.dumps(masks))
"""


def masks_of_workers(cpus: list[int], threads: int) -> list[list[int]]:
    """The CPUs that each new thread of a pool may run on, in a process that may run on `cpus`."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([cpus, threads])],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    masks: list[list[int]] = json.loads(done.stdout)
    return masks


def test_b75_each_worker_gets_a_cpu_of_its_own_inside_the_cpuset() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    masks = masks_of_workers(allowed, len(allowed))
    assert sorted(masks) == [[cpu] for cpu in allowed[1:]]  # the caller is worker 0 and keeps the first


def test_b75_a_process_on_the_last_cpu_stays_there() -> None:
    last = max(os.sched_getaffinity(0))
    assert masks_of_workers([last], 2) == [[last]]


def test_b75_more_threads_than_cpus_are_left_unpinned_and_work() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    masks = masks_of_workers(allowed, len(allowed) + 2)
    assert len(masks) == len(allowed) + 1
    assert sorted(mask for mask in masks if len(mask) == 1 < len(allowed)) == [
        [c] for c in allowed[1:] if len(allowed) > 1
    ]
    assert sum(mask == allowed for mask in masks) >= 2


def test_b75_the_caller_is_on_the_first_cpu_during_a_step_and_free_again_afterwards() -> None:
    caller, allowed = threading.get_native_id(), os.sched_getaffinity(0)
    backend = Model.from_pretrained("smollm2:135m").native_backend(16, 32, max_rows=512, threads=2)
    seen: list[set[int]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.append(os.sched_getaffinity(caller))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        backend.forward(make_plan([(list(range(500)), 0)], np.arange(16)[None, :]))
    finally:
        ended.set()
        watcher.join()
    assert {min(allowed)} in seen
    assert os.sched_getaffinity(0) == allowed
