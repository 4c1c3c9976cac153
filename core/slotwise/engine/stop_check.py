"""Does a request end with its newest token? Text is not known here: stop strings are found by the output processor."""

from __future__ import annotations

from slotwise.engine.request import Request, RequestStatus


def check_stop(request: Request, max_model_len: int) -> bool:
    """Set the final status (and `stop_reason`) if the newest token ends the request. Called after each appended token.

    An end-of-sequence id wins over the length limits, so a request that ends on its last allowed token reports `stop`.
    """
    token_id = request.all_token_ids[-1]
    params = request.sampling_params
    num_tokens = len(request.all_token_ids)
    num_output_tokens = num_tokens - request.num_prompt_tokens
    if token_id in request.eos_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        return True
    if params.stop_token_ids and token_id in params.stop_token_ids and num_output_tokens > params.min_tokens:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = token_id
        return True
    if num_tokens >= max_model_len or num_output_tokens >= request.max_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    return False
