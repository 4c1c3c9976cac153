"""n completions of one prompt: the child requests that the core sees."""

from __future__ import annotations

import dataclasses

from slotwise.engine.core_request import EngineCoreRequest
from slotwise.sampling_params import MAX_SEED


def fan_out(request: EngineCoreRequest) -> list[EngineCoreRequest]:
    """Requests with n == 1: the request itself if it is one, else n children with ids `<index>_<parent's id>`.

    Child i samples with seed + i, if there is a seed. Prompt logprobs are the same for all, so only child 0 computes them and the others
    may use the prefix cache.
    """
    if request.sampling_params.n == 1:
        return [request]
    return [_child(request, index) for index in range(request.sampling_params.n)]


def _child(request: EngineCoreRequest, index: int) -> EngineCoreRequest:
    params = request.sampling_params.clone()
    params.n = 1
    if params.seed is not None and index:
        params.seed = (params.seed + index) % (MAX_SEED + 1)
    if index:
        params.prompt_logprobs = None
    return dataclasses.replace(request, request_id=f"{index}_{request.request_id}", sampling_params=params)
