/* Jobs lie in a ring, so that a thread which looks at an old one late finds it closed, and nobody waits for it. Threads that have nothing to
   do look for work for some microseconds and then sleep; the caller works too, and sleeps never but yields.

   One job runs at a time. A caller that finds the pool taken, by another engine of the process, does its work alone. */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define NUM_JOBS 64
#define MOST_WORKERS 255
#define LOOKS 4000 /* for work, before sleeping: some 50 us */
#define LOOKS_BEFORE_YIELD 200

struct job {
    _Atomic int64_t next, done;
    int64_t num_chunks;
    int num_threads;
    chunk_function work;
    void *context;
    _Atomic int inside;
};

static struct job jobs[NUM_JOBS];
static _Atomic uint32_t generation; /* of the newest job; 0 before the first */
static _Atomic int num_workers, num_sleeping;
static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER;

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void sleep_while(uint32_t seen) {
#ifdef __linux__
    syscall(SYS_futex, &generation, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
#else
    struct timespec moment = {0, 50000};
    if (generation == seen) nanosleep(&moment, 0);
#endif
}

static void wake(int count) {
#ifdef __linux__
    syscall(SYS_futex, &generation, FUTEX_WAKE_PRIVATE, count, 0, 0, 0);
#else
    (void)count;
#endif
}

static void take_chunks(struct job *job, int thread) {
    int64_t chunk;
    while ((chunk = atomic_fetch_add(&job->next, 1)) < job->num_chunks) {
        job->work(job->context, chunk, thread);
        atomic_fetch_add(&job->done, 1);
    }
}

static void *serve(void *argument) {
    int number = (int)(intptr_t)argument;
    uint32_t seen = 0;
    for (;;) {
        for (int looks = 0; atomic_load(&generation) == seen; looks++) {
            if (looks < LOOKS) {
                pause_briefly();
                continue;
            }
            atomic_fetch_add(&num_sleeping, 1);
            if (atomic_load(&generation) == seen) sleep_while(seen);
            atomic_fetch_sub(&num_sleeping, 1);
            looks = 0;
        }
        seen = atomic_load(&generation);
        struct job *job = &jobs[seen % NUM_JOBS];
        atomic_fetch_add(&job->inside, 1);
        if (atomic_load(&generation) == seen && number < job->num_threads) take_chunks(job, number);
        atomic_fetch_sub(&job->inside, 1);
    }
    return 0;
}

/* A process that was forked has none of the threads. */
static void after_fork(void) {
    num_workers = num_sleeping = 0;
    for (int i = 0; i < NUM_JOBS; i++) jobs[i].inside = 0;
    pthread_mutex_init(&taken, 0);
}

static void hire(int wanted) {
    static int is_registered;
    if (!is_registered) pthread_atfork(0, 0, after_fork), is_registered = 1;
    while (num_workers < wanted && num_workers < MOST_WORKERS) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &attributes, serve, (void *)(intptr_t)(num_workers + 1));
        pthread_attr_destroy(&attributes);
        if (failed) return; /* the others do the work */
        num_workers++;
    }
}

static void run_here(int num_threads, int64_t num_chunks, chunk_function work, void *context) {
    if (num_threads <= 1 || num_chunks <= 1 || pthread_mutex_trylock(&taken)) {
        for (int64_t chunk = 0; chunk < num_chunks; chunk++) work(context, chunk, 0);
        return;
    }
    hire(num_threads - 1);
    uint32_t mine = generation + 1;
    struct job *job = &jobs[mine % NUM_JOBS];
    while (job->inside) sched_yield(); /* somebody slept through NUM_JOBS jobs */
    job->num_chunks = num_chunks;
    job->num_threads = num_threads;
    job->work = work;
    job->context = context;
    atomic_store(&job->done, 0);
    atomic_store(&job->next, 0);
    atomic_store(&generation, mine);
    if (atomic_load(&num_sleeping)) wake(num_threads - 1);
    take_chunks(job, 0);
    for (int looks = 0; atomic_load(&job->done) < num_chunks; looks++)
        if (looks < LOOKS_BEFORE_YIELD) pause_briefly();
        else sched_yield();
    pthread_mutex_unlock(&taken);
}

static run_function runner = run_here;

/* Libraries of one process share one pool: the second one to be loaded is told of the first one's. */
run_function slotwise_runner(void) { return runner; }
void slotwise_use_runner(run_function other) { runner = other; }
void slotwise_run(int num_threads, int64_t num_chunks, chunk_function work, void *context) { runner(num_threads, num_chunks, work, context); }
