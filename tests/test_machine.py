"""Threads and memory on machines laid out as folders: quotas, cpusets, hyper-threads, both cgroup versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn import machine

GIB = 2**30


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cores(count: int, threads_per_core: int = 1) -> dict[str, str]:
    """Topology files of `count` cores; CPU i and i + count are the two threads of core i."""
    return {
        f"sys/devices/system/cpu/cpu{core + thread * count}/topology/core_cpus_list": ",".join(
            str(core + sibling * count) for sibling in range(threads_per_core)
        )
        for core in range(count)
        for thread in range(threads_per_core)
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "290000 100000"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        ({"proc/self/cgroup": "0::/host/path/not/visible\n", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({}, 8),
    ],
    ids=[
        "v2",
        "no limit",
        "rounded down",
        "at least one",
        "parent of v2",
        "parent of v1",
        "path of the host",
        "no cgroup",
    ],
)
def test_b74_thread_count_obeys_the_cgroup_quota(tmp_path, files, expected):
    root = lay_out(tmp_path, cores(8) | files)
    count, reason = machine.usable_threads(root, affinity=frozenset(range(8)))
    assert count == expected
    assert ("quota" in reason) == (expected < 8)


def test_b74_hyper_threads_of_one_core_count_once(tmp_path):
    root = lay_out(tmp_path, cores(4, threads_per_core=2))
    assert machine.usable_threads(root, affinity=frozenset(range(8))) == (4, "physical cores")


def test_b74_affinity_limits_the_cores_that_count(tmp_path):
    root = lay_out(tmp_path, cores(4, threads_per_core=2))
    assert machine.usable_threads(root, affinity=frozenset({1, 5}))[0] == 1
    assert machine.usable_threads(root, affinity=frozenset({0, 1, 2})) == (3, "CPUs this process may run on")


def test_b74_the_affinity_of_this_process_is_honoured():
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{cpu}}})"
    code = f"{pin}; from sojourn import machine; print(machine.usable_threads()[0])"
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "1"
    )


def test_memory_is_what_the_tightest_group_leaves(tmp_path):
    root = lay_out(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n",
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": str(2 * GIB),
            "sys/fs/cgroup/a/memory.current": str(GIB),
            "sys/fs/cgroup/a/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
        },
    )
    assert machine.memory_limit_bytes(root) == 2 * GIB - GIB // 2
    assert machine.memory_total_bytes(root) == 2 * GIB


def test_memory_of_a_version_1_group_and_its_parents(tmp_path):
    root = lay_out(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\n",
            "proc/self/cgroup": "4:memory:/a/b\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": str(2**63 - 4096),
        },
    )
    assert machine.memory_limit_bytes(root) == 3 * GIB


def test_memory_without_a_limit_is_what_the_machine_has_available(tmp_path):
    root = lay_out(tmp_path, {"proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n"})
    assert machine.memory_limit_bytes(root) == 2**20


def test_cpu_features_are_those_the_kernels_know(tmp_path):
    root = lay_out(tmp_path, {"proc/cpuinfo": "model name\t: Test CPU\nflags\t\t: fpu avx512f sse2 avx2 fma\n"})
    assert machine.cpu_features(root) == ("avx2", "fma", "avx512f")
    assert machine.cpu_name(root) == "Test CPU"
