"""transformers' `generate` in bfloat16, prompts padded on the left to the longest. MODEL is a directory."""

import sys
from pathlib import Path


def main(model_path, num_threads):
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    import transformers
    from protocol import serve

    torch.set_num_threads(num_threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16).eval()
    pad = model.config.pad_token_id or 0

    def generate(prompts, num_new):
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), pad, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = torch.tensor(prompt), 1
        with torch.inference_mode():
            found = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=num_new, min_new_tokens=num_new, do_sample=False,
                eos_token_id=None, pad_token_id=pad,
            )  # fmt: skip
        return found[:, longest:].tolist()

    serve(transformers.__version__, generate)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
