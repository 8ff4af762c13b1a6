import numpy as np
from numpy.typing import NDArray

def dequantize(format: str, data: NDArray[np.uint8], out: NDArray[np.float32], threads: int) -> None: ...
def formats() -> dict[str, tuple[int, int]]: ...

# The executor (module_executor.cpp).
def isas() -> list[str]:
    """Instruction sets this machine has kernels for, best first."""

def missing_isas() -> dict[str, list[str]]:
    """Instruction sets there are kernels for but not the processor: name -> features it lacks, best first."""

needs: str  # see build_needs.py

class Executor:
    """A model as a list of ops, built once in execution order and replayed for any batch (see sojourn/executor.h).

    Building methods return ids of what they add; a method that gets ids that don't fit raises IndexError.
    """

    def __init__(self, isa: str, threads: int, max_rows: int) -> None: ...
    def add_buffer(self, width: int, /) -> int: ...
    def add_matrix(self, format: str, data: NDArray[np.uint8], n: int, k: int) -> int: ...
    def add_vector(self, values: NDArray[np.float32], /) -> int: ...
    def add_rotation(self, inverse_frequencies: NDArray[np.float64], scale: float, /) -> int: ...
    def add_kv_layer(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        scale: float,
        window: int,
        softcap: float,
        kv_type: str,
        num_blocks: int,
        key_center: NDArray[np.float32],
    ) -> int: ...
    def embed(self, out: int, format: str, data: NDArray[np.uint8], rows: int, k: int, scale: float) -> None: ...
    def rms_norm(self, x: int, out: int, weight: int, group: int, eps: float, offset: float, /) -> None: ...
    def quantize(self, x: int, /) -> None: ...
    def matmul(self, x: int, matrices: list[int], outs: list[int], biases: list[int], residual: int, /) -> None: ...
    def rope(self, x: int, head_dim: int, rotation: int, /) -> None: ...
    def attention(self, q: int, k: int, v: int, out: int, kv_layer: int, /) -> None: ...
    def glu(self, gate: int, up: int, out: int, activation: str, /) -> None: ...
    def experts(
        self,
        x: int,
        scores: int,
        out: int,
        gate: list[int],
        up: list[int],
        down: list[int],
        top_k: int,
        normalize: bool,
        activation: str,
    ) -> None: ...
    def add(self, a: int, b: int, out: int, /) -> None: ...
    def scale(self, x: int, factor: float, /) -> None: ...
    def softcap(self, x: int, cap: float, /) -> None: ...
    def begin_head(self, hidden: int, /) -> None: ...
    def padded_width(self, buffer: int, /) -> int: ...
    def forward(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        cu_seqlens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        result: int,
        hidden: NDArray[np.float32],
    ) -> None: ...
    def head(self, hidden: NDArray[np.float32], result: int, logits: NDArray[np.float32]) -> None: ...
    def head_argmax(
        self, hidden: NDArray[np.float32], result: int, ids: NDArray[np.int32], maxima: NDArray[np.float32]
    ) -> None: ...
    @property
    def pool(self) -> ThreadPool:
        """Its workers, idle between calls."""
    def allocate_kv(self, num_blocks: int) -> None:
        """Gives every layer K and V of so many blocks, their contents undefined."""

    def step_bytes(self, context: int, head_rows: int) -> int:
        """What the largest step takes beside weights, K and V: `max_rows` tokens, the last of `context`, and the logits
        of `head_rows`."""

    @property
    def matrix_bytes(self) -> int: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...

# The sampler (module_sampler.cpp).
class ThreadPool:
    def __init__(self, threads: int) -> None: ...

class SamplingRequest:
    """What one request asks of the sampler; see sojourn/sampler.h."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    logprobs: bool
    top_logprobs: int
    seed: int
    restricted: bool
    allowed_ids: list[int]
    end_ids: list[int]
    bias_ids: list[int]
    biases: list[float]
    banned: list[list[int]]
    prompt_ids: list[int]
    output_ids: list[int]
    @property
    def edits_logits(self) -> bool: ...

class LogprobRows:
    """Arrays that the sampler fills, one entry or row per row of logits."""

    def __init__(
        self,
        valid: NDArray[np.bool_],
        totals: NDArray[np.float64],
        highest: NDArray[np.float32],
        logits: NDArray[np.float32],
        ranks: NDArray[np.int64],
        top_ids: NDArray[np.int32],
        top_logits: NDArray[np.float32],
    ) -> None: ...

class Sampler:
    """IndexError: a slot or token id that doesn't exist, a slot without a request or with two rows."""

    def __init__(self, isa: str, vocab_size: int, slots: int, raw: bool) -> None: ...
    def admit(self, slot: int, request: SamplingRequest) -> None: ...
    def sample(
        self,
        pool: ThreadPool,
        logits: NDArray[np.float32],
        slots: NDArray[np.int32],
        positions: NDArray[np.int32],
        token_ids: NDArray[np.int32],
        logprobs: LogprobRows,
    ) -> None: ...
    def logprobs_of(
        self, pool: ThreadPool, logits: NDArray[np.float32], token_ids: NDArray[np.int32], logprobs: LogprobRows
    ) -> None: ...

# Matrix products (module_matmul.cpp).
def quantize_rows(
    isa: str,
    x: NDArray[np.float32],
    codes: NDArray[np.int8],
    scales: NDArray[np.float32],
    sums: NDArray[np.int32],
) -> None: ...
def pack(format: str, data: NDArray[np.uint8], n: int, k: int, threads: int) -> PackedMatrix: ...

class PackedMatrix:
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def panels(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def integer_activations(self) -> bool: ...
    def matmul(
        self, isa: str, x: NDArray[np.float32], panel_begin: int, panel_end: int, out: NDArray[np.float32]
    ) -> None: ...

# Vector operations (module_vector.cpp).
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
        key_center: NDArray[np.float32],
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
