"""One engine step and what surrounds it. A request goes through these records, always forward:

    prompt, SamplingParams   what the caller gives                                        llm, async_llm, llm_engine
      -> EngineCoreRequest   checked and tokenised                                        input_processor, chat_template
      -> Request             its tokens, counters and status in the core                  scheduler, request, waiting_queue, stop_check
      -> SchedulerOutput     what one step computes of whom                               scheduler_output
      -> RunnerRequestState  its row of the persistent batch                              batch_update, input_batch, block_table
      -> StepInputs          the step's tokens, flat; metadata per KV group               prepare_inputs, attention_dispatch
      -> logits, masks       the model's forward; meanwhile what grammars allow next      model_runner, structured_outputs, grammar_masks
      -> SampleRequest       parameters, edits and drafts of the rows                     sampling_batch, logits_processors, logits_rows
      -> ids, drafts         the sampler, then the proposer for the next step             model_runner, drafting
      -> EngineCoreOutput    new tokens of one request                                    scheduler.update_from_output
      -> CompletionState     ids and text so far, stop strings, logprobs                  output_processor, output_state, detokenizer
      -> RequestOutput       what the caller gets                                         outputs, output_collector

A prompt that is looked at and not continued (scores, embeddings) goes the same way and ends before sampling: `prompt_logprobs`, `pooling`,
`prompt_pairs`. A request with a grammar waits, set aside, until `grammar_compiler` has it.

Before the first step: `plan` decides what fills each slot, `assembly` and `attention_assembly` make the instances, `front_end` puts the
processors around the core; `sampling_assembly` and `proposer_plan` do the same for what stands beside the sampler.
`engine_core.EngineCore.step` is the step itself; `pipelined_core` overlaps two of them.
"""

from slotwise.openmp import let_openmp_sleep

let_openmp_sleep()  # here, because every import of torch in the engine comes after it
