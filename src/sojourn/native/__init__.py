"""The C++ kernels behind typed wrappers; nothing above this package touches the extension module itself."""

from sojourn.native._kernels import Executor, LogprobRows, Sampler, SamplingRequest, ThreadPool, isas
from sojourn.native.kernels import dequantize, formats

__all__ = [
    "Executor",
    "LogprobRows",
    "Sampler",
    "SamplingRequest",
    "ThreadPool",
    "dequantize",
    "formats",
    "isas",
]
