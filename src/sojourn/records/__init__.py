"""What crosses borders between packages and processes. No logic beyond checking values."""

from sojourn.records.outputs import EngineInfo, EngineStats, FinishReason, TokenDelta, TokenLogprobs
from sojourn.records.request import EngineRequest
from sojourn.records.sampling_params import SamplingParams
from sojourn.records.step import Admission, StepPlan, StepResult

__all__ = [
    "Admission",
    "EngineInfo",
    "EngineRequest",
    "EngineStats",
    "FinishReason",
    "SamplingParams",
    "StepPlan",
    "StepResult",
    "TokenDelta",
    "TokenLogprobs",
]
