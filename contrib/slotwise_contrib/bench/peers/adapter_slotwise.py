"""Slotwise itself, under the settings of an arm (`KEY=VALUE,...`). MODEL is whatever `model.source` takes."""

import sys
from pathlib import Path


def main(model_path: str, num_threads: int, arm: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from protocol import serve

    from slotwise import LLM, SamplingParams, __version__
    from slotwise.config.loading import load_config

    pairs = [pair.strip() for pair in arm.split(",") if pair.strip()]
    config = load_config(set_values=[f"num_threads={num_threads}", "scheduler.max_num_seqs=64", "model.max_model_len=4608", *pairs],
                         overrides={"model.source": model_path})  # fmt: skip
    llm = LLM(config=config)

    def generate(prompts: list[list[int]], num_new: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_new, detokenize=False)
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    serve(__version__, generate)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
