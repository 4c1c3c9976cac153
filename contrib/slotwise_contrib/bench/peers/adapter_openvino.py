"""OpenVINO GenAI's continuous batching (paged attention, prefix caching). MODEL is a .gguf file or a directory of its own format."""

import sys
from pathlib import Path


def main(model_path, num_threads):
    sys.path.insert(0, str(Path(__file__).parent))
    import numpy as np
    import openvino as ov
    import openvino_genai as genai
    from protocol import serve

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 2048, 64
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": num_threads}
    pipeline = genai.ContinuousBatchingPipeline(model_path, scheduler_config=scheduler, device="CPU", properties=properties)

    def generate(prompts, num_new):
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = num_new
        config.ignore_eos, config.do_sample = True, False
        results = pipeline.generate([ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts], [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    serve(genai.__version__, generate)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
