"""`slotwise chat`: a conversation with a model, on a terminal or through a pipe.

What this file does not know: how a turn is answered; `chat_session` does.
"""

from __future__ import annotations

from slotwise.cli.parameters import AsJson, SetValues
from slotwise.cli.run_parameters import (
    ConfigFile,
    FrequencyPenalty,
    IgnoreEos,
    MaxTokens,
    MinP,
    MinTokens,
    ModelSource,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Stop,
    StopTokenIds,
    SystemPrompt,
    Temperature,
    TopK,
    TopP,
    load_run_config,
    sampling_params,
)

DEFAULT_MAX_TOKENS = 512


def chat(
    *,
    model: ModelSource = None,
    config: ConfigFile = None,
    set_values: SetValues = None,
    system: SystemPrompt = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    min_tokens: MinTokens = 0,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    stop_token_ids: StopTokenIds = None,
    ignore_eos: IgnoreEos = False,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    as_json: AsJson = False,
) -> None:
    """Talk with a model; /help lists what else can be typed. With --json each answer is one JSON object on a line of its own."""
    params = sampling_params(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
    )
    loaded = load_run_config(model, config, set_values)
    from slotwise.cli.engine_loading import open_llm

    with open_llm(loaded) as llm:
        from slotwise.cli.chat_lines import read_lines
        from slotwise.cli.chat_session import ChatSession
        from slotwise.cli.run_summary import components_line
        from slotwise.cli.run_view import notice

        session = ChatSession(llm, params, system=system, as_json=as_json)
        if not as_json:
            notice(f"{llm.model_name} | context {llm.max_model_len} tokens | {components_line(llm.components)} | /help")
        session.run(read_lines())
