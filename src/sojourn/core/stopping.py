"""Decides whether a request ends with the token it was just given. Text (stop strings) is the front end's business."""

from __future__ import annotations

from sojourn.core.request import Request
from sojourn.records import FinishReason


def check_stop(request: Request) -> tuple[FinishReason, int | None] | None:
    """Why the request ends now, with the user's stop token id if that ended it; None while it goes on.

    Stop ids count only once min_tokens exist; the sampler masks them until then. `max_tokens` was cut to the context
    when the request was added, so reaching it covers both limits.
    """
    params, output = request.params, request.output_ids
    if len(output) > params.min_tokens:
        last = output[-1]
        if last in params.stop_token_ids:
            return FinishReason.STOP, last
        if not params.ignore_eos and last in request.spec.eos_token_ids:
            return FinishReason.STOP, None
    if len(output) >= request.max_tokens:
        return FinishReason.LENGTH, None
    return None
