"""`stop_status`: whether a request ends with the token it just got."""

from __future__ import annotations

from tinyllm.core.request import Request, RequestStatus

__all__ = ["stop_status"]


def stop_status(request: Request) -> tuple[RequestStatus | None, int | None]:
    """Return the status that the last output token ends the request with, and the stop token id, if one did.

    End-of-sequence comes before stop token ids, those before the length. Neither of the first two counts
    among the first ``min_tokens`` tokens: the sampler forbids them there, and even a hook that forces one
    does not end the request.
    """
    params, token_id = request.params, request.token_ids[-1]
    if request.num_output_tokens > params.min_tokens:
        if token_id in request.eos_token_ids and not params.ignore_eos:
            return RequestStatus.FINISHED_STOPPED, None
        if token_id in params.stop_token_ids:
            return RequestStatus.FINISHED_STOPPED, token_id
    if request.num_output_tokens >= request.max_tokens:
        return RequestStatus.FINISHED_LENGTH, None
    return None, None
