"""`LLM`: offline inference. The names are those of vLLM's public API, so that a caller switches by changing an import."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

from slotwise.engine.chat_template import apply_chat_template
from slotwise.engine.front_end import FrontEndOwner
from slotwise.engine.llm_engine import LLMEngine
from slotwise.engine.outputs import EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput, SequenceScore
from slotwise.engine.progress import progress_bar
from slotwise.engine.prompt_checks import Prompt, split_prompt
from slotwise.engine.prompt_pairs import join_continuation, pair_up, sequence_score, similarity
from slotwise.errors import InvalidRequestError
from slotwise.pooling_params import PoolingParams
from slotwise.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, Any]]


class LLM(FrontEndOwner):
    """A model and the engine around it, in this process. For one thread: calls from several must take turns.

    model: a directory, a .gguf file or a known name (`slotwise models`). config: a file, or a loaded configuration. overrides: settings by
    section (`attention="torch_sdpa"`, `scheduler={"use": "priority"}`, `kv_cache={"block_size": 32}`), or by vLLM's flat names
    (`max_model_len`, `max_num_seqs`, `enable_prefix_caching`, ...). progress: called while weights load. Raises ConfigError, PluginError or
    ModelLoadError before anything runs.
    """

    def _set_up(self) -> None:
        self.engine = LLMEngine(self.front_end)
        self._request_ids = itertools.count()

    def get_tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self.front_end.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        add_special_tokens: bool = True,
    ) -> list[RequestOutput]:
        """Complete all prompts together; one output per prompt, in their order.

        prompts: one prompt or a list; a prompt is a text, a list of ids, or a mapping with `prompt` or `prompt_token_ids`. sampling_params
        and priority: one for all, or one per prompt. Raises InvalidRequestError if a prompt or its parameters cannot be served; then none
        of the call's prompts runs.
        """
        listed = _as_prompts(prompts)
        params = [_checked_params(each) for each in _one_each(sampling_params or SamplingParams(), len(listed), "sampling_params")]
        priorities = _one_each(priority, len(listed), "priority")

        def submit(index: int, request_id: str) -> str:
            return self.engine.add_request(
                listed[index],
                params[index],
                priority=priorities[index],
                add_special_tokens=add_special_tokens,
                request_id=request_id,
            )

        return self._run_all(submit, len(listed), use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_special_tokens: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """The vectors of prompts, in their order. prompts: as for `generate`. pooling_params: one for all, or one per prompt.

        A prompt may fill the whole context. Raises InvalidRequestError before anything runs.
        """
        listed = _as_prompts(prompts)
        params = _one_each(pooling_params or PoolingParams(), len(listed), "pooling_params")

        def submit(index: int, request_id: str) -> str:
            return self.engine.add_pooling_request(
                listed[index], params[index], add_special_tokens=add_special_tokens, request_id=request_id
            )

        return [EmbeddingRequestOutput.of(output) for output in self._run_all(submit, len(listed), use_tqdm=use_tqdm)]

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """How alike texts are: the cosine similarity of their vectors. One text against each of many, or pair by pair."""
        first, second = _as_prompts(data_1), _as_prompts(data_2)
        pairs = pair_up(first, second)
        params = (pooling_params or PoolingParams()).clone()
        params.normalize = True
        vectors = self.embed([*first, *second], params, use_tqdm=use_tqdm)
        return [similarity(vectors[a], vectors[len(first) + b]) for a, b in pairs]

    def log_likelihood(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Sequence[str | Sequence[int]] | str | None = None,
        *,
        use_tqdm: bool = True,
        add_special_tokens: bool = True,
    ) -> list[SequenceScore]:
        """How likely the model holds each continuation to be after its prompt, or without continuations each prompt from its second token
        on. One prompt may have many continuations, else there is one for each. Nothing is sampled; prompt and continuation may fill the
        whole context."""
        listed = _as_prompts(prompts)
        scored = [(prompt, 1) for prompt in listed]
        if continuations is not None:
            ends = [continuations] if isinstance(continuations, str) else list(continuations)
            parts = [split_prompt(prompt) for prompt in listed]
            starts = [text if ids is None else ids for text, ids in parts]
            encode = partial(self.front_end.input_processor.tokenize, add_special_tokens=add_special_tokens)
            scored = [join_continuation(starts[prompt] or "", ends[end], encode) for prompt, end in pair_up(starts, ends)]
        params = SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0, detokenize=False)
        outputs = self.generate([prompt for prompt, _ in scored], params, use_tqdm=use_tqdm, add_special_tokens=add_special_tokens)
        return [sequence_score(output, num_context) for output, (_, num_context) in zip(outputs, scored, strict=True)]

    def _run_all(self, submit: Callable[[int, str], str], count: int, *, use_tqdm: bool) -> list[RequestOutput]:
        """Run `count` requests together. submit(index, request id) adds one and returns its internal id; if it raises, none runs."""
        external_ids = [str(next(self._request_ids)) for _ in range(count)]
        internal_ids: list[str] = []
        try:
            for index, request_id in enumerate(external_ids):
                internal_ids.append(submit(index, request_id))
            return self._run(external_ids, use_tqdm=use_tqdm)
        except BaseException as error:
            self.engine.discard_requests(internal_ids, error)
            raise

    def _run(self, request_ids: Sequence[str], *, use_tqdm: bool) -> list[RequestOutput]:
        """Step until these requests have ended. Outputs of others, added through `engine`, are not kept."""
        finished: dict[str, RequestOutput | None] = dict.fromkeys(request_ids)
        with progress_bar("Prompts", len(request_ids), enabled=use_tqdm and len(request_ids) > 1) as advance:
            while None in finished.values():
                for output in self.engine.step():
                    if output.finished and output.request_id in finished:
                        finished[output.request_id] = output
                        advance(1)
        return [output for output in finished.values() if output is not None]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several together. messages: `[{"role": "user", "content": "..."}]`, or a list of such lists."""
        is_one = isinstance(messages, str | Mapping) or not messages or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_one else messages
        prompts = [
            self.encode_chat(conversation, chat_template=chat_template, add_generation_prompt=add_generation_prompt)
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def encode_chat(self, messages: Messages, *, chat_template: str | None = None, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation under the chat template. Raises InvalidRequestError."""
        return apply_chat_template(self.tokenizer, messages, chat_template=chat_template, add_generation_prompt=add_generation_prompt)

    def shutdown(self) -> None:
        """Abort what is left and tell the observers."""
        self.engine.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _as_prompts(prompts: Any) -> list[Prompt]:
    if hasattr(prompts, "tolist"):  # arrays and tensors
        prompts = prompts.tolist()
    if isinstance(prompts, str | Mapping) or (isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], Integral)):
        return [prompts]
    if not isinstance(prompts, Sequence) or not prompts:
        raise InvalidRequestError("There is no prompt; give a text, a list of token ids, or a list of prompts.", param="prompt")
    return list(prompts)


def _one_each(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise InvalidRequestError(f"{name} has {len(value)} entries for {count} prompts; give one, or one per prompt.", param=name)
    return list(value)


def _checked_params(params: Any) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(
            f"sampling_params must be a SamplingParams, or a list of them, got {type(params).__name__}; write SamplingParams(...).",
            param="sampling_params",
        )
    return params
