"""The C++ kernels behind typed wrappers; nothing above this package touches the extension module itself."""

from sojourn.native.build_needs import refuse_foreign_build

refuse_foreign_build()

from sojourn.native._kernels import (  # noqa: E402  (after the check)
    Executor,
    LogprobRows,
    Sampler,
    SamplingRequest,
    ThreadPool,
    isas,
    missing_isas,
)
from sojourn.native.kernels import dequantize, formats  # noqa: E402

__all__ = [
    "Executor",
    "LogprobRows",
    "Sampler",
    "SamplingRequest",
    "ThreadPool",
    "dequantize",
    "formats",
    "isas",
    "missing_isas",
]
