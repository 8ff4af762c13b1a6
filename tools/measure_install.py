"""Measures the base install: a fresh virtual environment, `pip install .`, megabytes of site-packages by package.

Bytecode and pip itself are not counted. Exits with 1 above 150 MB or when torch came along. Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from collections import Counter
from pathlib import Path

LIMIT_MB = 150
ROOT = Path(__file__).resolve().parents[1]
NOT_COUNTED = ("pip", "setuptools", "pkg_resources", "_distutils_hack")  # what venv itself puts there


def install(target: Path) -> Path:
    """Makes the environment and returns its site-packages."""
    venv.create(target, with_pip=True)
    python = target / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", str(ROOT)], check=True)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def sizes(site: Path) -> Counter[str]:
    """Bytes for each top-level entry of site-packages."""
    total: Counter[str] = Counter()
    for path in site.rglob("*"):
        top = path.relative_to(site).parts[0]
        if path.is_file() and path.suffix != ".pyc" and not top.startswith(NOT_COUNTED):
            total[top] += path.stat().st_size
    return total


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        by_package = sizes(install(Path(folder) / "venv"))
    total = sum(by_package.values()) / 1e6
    for name, size in by_package.most_common(15):
        print(f"{size / 1e6:8.1f} MB  {name}")
    print(f"{total:8.1f} MB  in all (limit {LIMIT_MB}), torch: {'yes' if 'torch' in by_package else 'no'}")
    return int(total > LIMIT_MB or "torch" in by_package)


if __name__ == "__main__":
    sys.exit(main())
