"""Keeps the thread pools of libraries out of our thread budget. Must run before they are first imported.

BLAS gets one thread. A second one gained 20% in decoding on an idle 2-core machine, but its threads wait for each
other in a spin loop: as soon as anything else wanted a core, a prefill took 5 to 12 times as long. One thread also
means that results don't depend on how many there are.
"""

from __future__ import annotations

import os

# The tokenizer's pool is Rayon's: it encodes one text at a time, in threads of our own.
POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def limit_library_pools() -> None:
    """Sets the environment of this process and of the engine process it starts; what the user has set stays."""
    for name in POOLS:
        os.environ.setdefault(name, "1")
