"""What this machine lets us use: threads, memory, instruction sets. Only reads files; imports nothing of ours.

Every function takes `root` so that a test can lay out another machine as a folder. cgroup versions 1 and 2 are both
read, and every parent group counts, since a limit holds for the whole tree below it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
# The features our kernels may dispatch on, as /proc/cpuinfo spells them, in ascending order of what they bring.
FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def usable_threads(root: Path = ROOT, affinity: frozenset[int] | None = None) -> tuple[int, str]:
    """Threads that can compute at once without being throttled or sharing a core, and why it is that many.

    The smallest of: CPUs we may run on, physical cores among them, the cgroup's CPU quota rounded down. At least 1.
    """
    cpus = affinity if affinity is not None else _allowed_cpus()
    limits = [(len(cpus), "CPUs this process may run on"), (_physical_cores(root, cpus), "physical cores")]
    quota = _cpu_quota(root)
    if quota is not None:
        limits.append((int(quota), f"cgroup quota of {quota:g} CPUs"))
    count, reason = min(limits, key=lambda limit: limit[0])
    return max(count, 1), reason


def memory_limit_bytes(root: Path = ROOT) -> int:
    """Bytes we may still take: what the machine has available, or what the tightest cgroup above us leaves, if less.

    A group's page cache does not count as used where the kernel can drop it (`inactive_file`).
    """
    available = _meminfo(root, "MemAvailable")
    for group in _groups(root, "memory"):
        for limit_file, usage_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(group / limit_file)
            if limit is not None:
                used = (_number(group / usage_file) or 0) - _stat(group / "memory.stat", cache_key)
                available = min(available, max(limit - max(used, 0), 0))
    return available


def memory_total_bytes(root: Path = ROOT) -> int:
    """The machine's memory, or the tightest cgroup limit above us, if less."""
    total = _meminfo(root, "MemTotal")
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            total = min(total, _number(group / name) or total)
    return total


def resident_bytes(pid: int, root: Path = ROOT) -> int:
    """Memory of a process that is in RAM; 0 if there is no such process any more."""
    return _status(root / "proc" / str(pid) / "status", "VmRSS")


def cpu_flags(root: Path = ROOT) -> frozenset[str]:
    """Everything /proc/cpuinfo says that this CPU has; empty where there is no such file."""
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def cpu_features(root: Path = ROOT) -> tuple[str, ...]:
    """The instruction sets of FEATURES that this CPU has."""
    found = cpu_flags(root)
    return tuple(feature for feature in FEATURES if feature in found)


def cpu_name(root: Path = ROOT) -> str:
    """The CPU's own name, or "unknown CPU"."""
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return "unknown CPU"


def _allowed_cpus() -> frozenset[int]:
    """The CPUs the scheduler may put us on; systems without such a thing allow all."""
    if sys.platform == "linux":
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _physical_cores(root: Path, cpus: frozenset[int]) -> int:
    """Distinct cores among `cpus`: hyper-threads of one core share the units that the kernels keep busy."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _lines(topology / "core_cpus_list") or _lines(topology / "thread_siblings_list")
        cores.add(siblings[0] if siblings else f"cpu{cpu}")
    return len(cores)


def _cpu_quota(root: Path) -> float | None:
    """CPUs that the tightest group above us may use, or None without a limit."""
    quotas = []
    for group in _groups(root, "cpu"):
        words = " ".join(_lines(group / "cpu.max")).split()  # version 2: "200000 100000" or "max 100000"
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:  # version 1: -1 means no limit
            quotas.append(quota / period)
    return min(quotas, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of our cgroup and all its parents, up to the mount point, for one controller in both versions.

    Inside a container /proc/self/cgroup may name a path of the host; folders that do not exist there are passed over,
    and the mount point itself is then the container's own group.
    """
    base = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            mounts = [base, base / "unified"]
        elif controller in controllers.split(","):
            mounts = [base / controllers, base / controller]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                group = mount.joinpath(*parts[:depth])
                if group.is_dir():
                    yield group


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The integer in a one-line file; None where the file is missing or says "max"."""
    lines = _lines(path)
    try:
        return int(lines[0])
    except (IndexError, ValueError):
        return None


def _stat(path: Path, key: str) -> int:
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return 0


def _status(path: Path, key: str) -> int:
    """A line like `VmRSS:  1234 kB`, in bytes."""
    found = next((line.split() for line in _lines(path) if line.startswith(key + ":")), None)
    return int(found[1]) * 1024 if found else 0


def _meminfo(root: Path, key: str) -> int:
    """Bytes of one /proc/meminfo entry; 0 where it is missing."""
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    return 0
