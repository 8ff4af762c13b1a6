"""The C++ kernels behind typed wrappers; nothing above this package touches the extension module itself."""

from sojourn.native._kernels import Executor, isas
from sojourn.native.kernels import dequantize, formats

__all__ = ["Executor", "dequantize", "formats", "isas"]
