"""What the engine process reports of requests' lives: words and wire records. No logic.

Requests appear as handles, small integers that the engine gives them on arrival, so that a step's report is one short
run of integers. All instants are time.monotonic_ns(), which every process of a host shares.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec


class Station(enum.StrEnum):
    """The stretches that tile a request's life; `timeline.account` says where each begins and ends."""

    RECEIVE = "receive"
    RENDER = "render"
    TOKENIZE = "tokenize"
    SEND = "send"
    QUEUE = "queue"
    PREFIX = "prefix"
    PREFILL = "prefill"
    STALL = "stall"
    PREEMPTED = "preempted"
    SAMPLE = "sample"
    DECODE = "decode"
    RETURN = "return"
    DETOKENIZE = "detokenize"
    STREAM = "stream"
    FINISH = "finish"


class WaitingReason(enum.StrEnum):
    """Why a request isn't running."""

    STEP_RUNNING = "step_running"  # arrived while a step was being computed
    KV_BLOCKS = "kv_blocks"  # its remaining prefill doesn't fit into the free KV blocks
    SEQ_SLOTS = "seq_slots"  # max_num_seqs requests are running
    TOKEN_BUDGET = "token_budget"  # this step's tokens are spent
    PRIORITY = "priority"  # it was displaced by a request of better priority, which is being served
    PREFIX = "prefix"  # a running request is computing the very blocks it needs next
    LOADING = "loading"  # sent before the engine was ready


class StepKind(enum.IntEnum):
    """What a step computed of one request. `str()` gives the word used on the wire."""

    PREFILL = 0
    DECODE = 1
    RECOMPUTE = 2  # positions that it had computed before it was preempted

    def __str__(self) -> str:
        return self.name.lower()


class BlockState(enum.IntEnum):
    """State of a KV block. `str()` gives the word used on the wire."""

    FREE = 0
    CACHED = 1
    LIVE = 2
    SHARED = 3  # live, and held by more than one request

    def __str__(self) -> str:
        return self.name.lower()


class PrefixStop(enum.StrEnum):
    """Why the search for cached blocks ended where it did."""

    ALL_MATCHED = "all_matched"  # every block that may be shared was found
    NO_MATCH = "no_match"  # the next block is not in the cache
    SALTED = "salted"  # nothing was computed under this request's cache_salt
    TOO_SHORT = "too_short"  # the prompt has no full block before its last token
    PROMPT_LOGPROBS = "prompt_logprobs"  # they need every position computed
    DISABLED = "disabled"  # the server runs without prefix caching


class Arrival(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When the engine had a request in hand. Between the stamps it waited for the running step to end."""

    request_id: str
    received_ns: int  # in the receive thread
    taken_ns: int  # in the busy loop
    handle: int
    loading: bool = False  # received before the engine was ready


class Wait(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From `since_ns` on the request waits for this reason."""

    handle: int
    since_ns: int
    reason: WaitingReason


class Admitted(msgspec.Struct, frozen=True, array_like=True):
    """A request left the queue: for the first time, or after a preemption."""

    handle: int
    searched_ns: int  # the search for its cached prefix began
    admitted_ns: int  # its blocks are allocated
    hit_tokens: int
    stopped: PrefixStop
    owner: int | None  # who computed the last block of the hit
    hit: list[int]  # block ids


class Preempted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    handle: int
    at_ns: int
    lost_tokens: int  # positions whose K and V it had
    high_water: int  # the most it ever had: once this much is computed again, it is back where it was


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """The engine holds nothing of the request any more."""

    handle: int
    at_ns: int
    reason: str  # str() of the FinishReason
    peak_blocks: int
    table: list[int]  # the blocks it held at its end


class StepReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step. The five durations follow each other from `start_ns` on."""

    step: int
    start_ns: int
    schedule_ns: int
    prepare_ns: int  # the plan: arrays of ids, positions, block tables
    compute_ns: int
    sample_ns: int
    update_ns: int
    budget: int
    num_running: int  # after the step, like all that follow
    num_waiting: int
    kv_live: int
    kv_cached: int
    kv_free: int
    num_evicted: int  # in this step
    work: bytes  # array("I"): handle, first position, number of tokens, StepKind; for each request
    admitted: bytes = b""  # array("I") of handles
    preempted: bytes = b""

    def instants(self) -> tuple[int, int, int, int]:
        """Its start, when it had computed, when it had sampled, its end."""
        computed_ns = self.start_ns + self.schedule_ns + self.prepare_ns + self.compute_ns
        sampled_ns = computed_ns + self.sample_ns
        return self.start_ns, computed_ns, sampled_ns, sampled_ns + self.update_ns


class EngineReport(msgspec.Struct, frozen=True, array_like=True):
    """All that happened since the last report, to be read in the order in which the fields stand."""

    waits: list[Wait] = []
    preempted: list[Preempted] = []
    admitted: list[Admitted] = []
    ended: list[Ended] = []
    pauses: list[tuple[int, int]] = []  # of the garbage collector: start and end
    blocks: bytes = b""  # array("q"): block, BlockState, handle of who computed it or -1; in order of change
    step: bytes = b""  # an encoded StepReport: the front end keeps steps in this form


encode_step: Callable[[StepReport], bytes] = msgspec.msgpack.Encoder().encode
decode_step: Callable[[bytes], StepReport] = msgspec.msgpack.Decoder(StepReport).decode
