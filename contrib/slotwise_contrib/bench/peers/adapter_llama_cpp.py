"""llama.cpp through llama-cpp-python's C interface: a small loop of continuous batching, greedy by argmax.

MODEL is a .gguf file. Prompts that share a beginning share its KV by llama.cpp's own copy of sequences.
"""

import ctypes
import sys
from pathlib import Path

BATCH, LEAST_SHARED = 2048, 64


def main(model_path, num_threads):
    sys.path.insert(0, str(Path(__file__).parent))
    import llama_cpp as llama
    import numpy as np
    from protocol import serve

    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(model_path.encode(), llama.llama_model_default_params())
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = llama.llama_batch_init(BATCH, 0, 1)
    contexts = {}

    def context(num_sequences):
        """One for a single stream and one for many, as KV is shared out over sequences."""
        if num_sequences not in contexts:
            params = llama.llama_context_default_params()
            params.n_seq_max, params.n_batch, params.n_ubatch = num_sequences, BATCH, 512
            params.n_ctx = 4608 if num_sequences == 1 else 768 * num_sequences
            params.n_threads = params.n_threads_batch = num_threads
            contexts[num_sequences] = llama.llama_init_from_model(model, params)
            assert contexts[num_sequences]
        return contexts[num_sequences]

    def decode(used, items):
        """items: (token, position, sequence, wants logits). Returns the likeliest next id of those that want it."""
        for index, (token, position, sequence, wants) in enumerate(items):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, wants
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
        batch.n_tokens = len(items)
        assert llama.llama_decode(used, batch) == 0
        num_wanted = sum(item[3] for item in items)
        if not num_wanted:
            return []
        logits = np.ctypeslib.as_array(llama.llama_get_logits(used), shape=(num_wanted, vocab_size))
        return logits.argmax(axis=1).tolist()

    def shared_len(prompts):
        first, length = prompts[0], 0
        while len(prompts) > 1 and all(len(ids) > length + 1 and ids[length] == first[length] for ids in prompts):
            length += 1
        return length if length >= LEAST_SHARED else 0

    def generate(prompts, num_new):
        used = context(1 if len(prompts) == 1 else 32)
        memory = llama.llama_get_memory(used)
        llama.llama_memory_clear(memory, True)
        shared = shared_len(prompts)
        for start in range(0, shared, BATCH):
            decode(used, [(prompts[0][at], at, 0, 0) for at in range(start, min(shared, start + BATCH))])
        for sequence in range(1, len(prompts) if shared else 0):
            llama.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        todo = [
            (token, at, sequence, int(at == len(ids) - 1))
            for sequence, ids in enumerate(prompts)
            for at, token in enumerate(ids)
            if at >= shared
        ]
        found = [[] for _ in prompts]
        for start in range(0, len(todo), BATCH):
            some = todo[start : start + BATCH]
            for item, token in zip([item for item in some if item[3]], decode(used, some), strict=True):
                found[item[2]].append(token)
        for step in range(1, num_new):
            items = [
                (ids[-1], len(prompt) + step - 1, sequence, 1) for sequence, (prompt, ids) in enumerate(zip(prompts, found, strict=True))
            ]
            for ids, token in zip(found, decode(used, items), strict=True):
                ids.append(token)
        return found

    serve(llama.__version__, generate)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
