/* A small pool of threads for work that comes in pieces of a few dozen microseconds, again and again. */
#ifndef SLOTWISE_POOL_H
#define SLOTWISE_POOL_H

#include <stdint.h>

typedef void (*chunk_function)(void *context, int64_t chunk, int thread);
typedef void (*run_function)(int num_threads, int64_t num_chunks, chunk_function work, void *context);

/* Calls work(context, 0 .. num_chunks - 1, thread), thread below num_threads, spread over up to num_threads threads, and returns when all are done. Who is free takes the next
   chunk: a thread whose core is taken away holds up no more than the chunk it is in, and one that never comes holds up nothing. */
void slotwise_run(int num_threads, int64_t num_chunks, chunk_function work, void *context);

#endif
