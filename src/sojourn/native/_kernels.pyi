import numpy as np
from numpy.typing import NDArray

def dequantize(format: str, data: NDArray[np.uint8], out: NDArray[np.float32], threads: int) -> None: ...
def formats() -> dict[str, tuple[int, int]]: ...

# Vector operations (module_vector.cpp).
def available_isas() -> list[str]: ...
def rms_norm(
    isa: str,
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float,
    offset: float,
    out: NDArray[np.float32],
) -> None: ...
def rope(
    isa: str, x: NDArray[np.float32], head_dim: int, cos: NDArray[np.float32], sin: NDArray[np.float32]
) -> None: ...
def glu(
    isa: str,
    gate: NDArray[np.float32],
    up: NDArray[np.float32],
    begin: int,
    end: int,
    activation: str,
    out: NDArray[np.float32],
) -> None: ...
def add(isa: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> None: ...
def scale(isa: str, a: NDArray[np.float32], factor: float) -> None: ...
def softcap(isa: str, a: NDArray[np.float32], cap: float) -> None: ...
def merge(isa: str, partials: NDArray[np.float32], out: NDArray[np.float32]) -> None: ...
def kv_block_bytes(num_kv_heads: int, head_dim: int, block_size: int, kv_type: str) -> int: ...

class PagedKV:
    def __init__(
        self,
        isa: str,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        scale: float,
        window: int,
        softcap: float,
        kv_type: str,
        keys: NDArray[np.uint8],
        values: NDArray[np.uint8],
    ) -> None: ...
    def write(
        self, block_table: NDArray[np.int32], first: int, k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> None: ...
    def attend(
        self,
        block_table: NDArray[np.int32],
        positions: NDArray[np.int64],
        q: NDArray[np.float32],
        tile: int,
        out: NDArray[np.float32],
    ) -> None: ...
