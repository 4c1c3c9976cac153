"""vLLM's CPU build in bfloat16, its engine in this process, on as many cores as asked for. MODEL is a directory."""

import os
import sys
from pathlib import Path


def main(model_path, num_threads):
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # else it keeps a core for a process that waits
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{num_threads - 1}")
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    sys.path.insert(0, str(Path(__file__).parent))
    import vllm
    from protocol import serve

    llm = vllm.LLM(model=model_path, dtype="bfloat16", max_model_len=4608, max_num_seqs=64)

    def generate(prompts, num_new):
        params = vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_new, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    serve(vllm.__version__, generate)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
