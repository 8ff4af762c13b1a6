"""What every test shares: BLAS with one thread, as under `sojourn serve`. NumPy reads it when first imported."""

from __future__ import annotations

from sojourn.cli.library_pools import limit_library_pools

limit_library_pools()
