// The thread pool: runs all phases of a stretch of steps in one call.
//
// Work is laid out as phases of numbered items. Threads claim items from an atomic counter, and a
// phase is over when every item is done, not when every thread has come by: a worker that is
// late (asleep, or its core is taken) never holds the others up, it skips what is finished.
// Waiting is a short spin, then sleep on one condition variable. Threads start on the first call
// and stay; a forked child starts its own.
//
// Limit: one run at a time in a process; the caller serialises (backends/cpu/pool.py does).
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "abi.h"

namespace convloom {
namespace {

constexpr i64 kSpinNanoseconds = 50'000;
constexpr i64 kMostThreads = 1024;

// Progress of one phase. Claiming and finishing are apart so that they do not share a cache line.
struct Counter {
    alignas(64) i64 next;
    alignas(64) i64 done;
};

struct Job {
    const Phase* phases;
    i64 count;
    i64 threads;
    char* scratch;
    i64 stride;
    Counter* counters;
};

Job job;
i64 generation;  // grows by one for each job
i64 open_;       // 1 while threads may enter the job
i64 inside;      // workers that are, or may be, looking at the job
i64 sleepers;
i64 started = 1;  // threads that exist, the caller among them
bool watching_forks;
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

i64 load(const i64& value) { return __atomic_load_n(&value, __ATOMIC_SEQ_CST); }
void store(i64& value, i64 to) { __atomic_store_n(&value, to, __ATOMIC_SEQ_CST); }
i64 add(i64& value, i64 by) { return __atomic_fetch_add(&value, by, __ATOMIC_SEQ_CST); }

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

i64 now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return i64(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

template <class Ready>
bool spin(Ready ready) {
    if (ready()) return true;
    const i64 end = now() + kSpinNanoseconds;
    do {
        for (int i = 0; i < 16; ++i) {
            pause_core();
            if (ready()) return true;
        }
    } while (now() < end);
    return false;
}

// A sleeper counts itself before its last look; whoever changes something looks at the count
// afterwards (wake). Both orders are sequentially consistent, so no change is slept through.
template <class Ready>
void await(Ready ready) {
    if (spin(ready)) return;
    pthread_mutex_lock(&mutex);
    add(sleepers, 1);
    while (!ready()) pthread_cond_wait(&changed, &mutex);
    add(sleepers, -1);
    pthread_mutex_unlock(&mutex);
}

void wake() {
    if (load(sleepers) == 0) return;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void work(i64 index) {
    Worker worker{index, job.scratch + index * job.stride};
    for (i64 p = 0; p < job.count; ++p) {
        const Phase& phase = job.phases[p];
        Counter& counter = job.counters[p];
        i64 finished = 0;
        for (i64 item; (item = add(counter.next, 1)) < phase.items; ++finished)
            phase.kernel(phase.args, long(item), &worker);
        if (finished && add(counter.done, finished) + finished == phase.items) wake();
        await([&] { return load(counter.done) == phase.items; });
    }
}

void work_alone() {
    Worker worker{0, job.scratch};
    for (i64 p = 0; p < job.count; ++p) {
        const Phase& phase = job.phases[p];
        for (i64 item = 0; item < phase.items; ++item)
            phase.kernel(phase.args, long(item), &worker);
    }
}

// What a new thread is told; it is read before start() returns to the caller's loop.
struct Birth {
    i64 index;
    i64 seen;
};
Birth births[kMostThreads];

void* live(void* birth) {
    const i64 index = static_cast<Birth*>(birth)->index;
    i64 seen = static_cast<Birth*>(birth)->seen;
    for (;;) {
        await([&] { return load(generation) != seen; });
        seen = load(generation);
        add(inside, 1);
        if (load(open_) && index < job.threads) work(index);
        add(inside, -1);
        wake();
    }
    return nullptr;
}

// Only the thread that forked lives on in the child: forget the others.
void forget_threads() {
    started = 1;
    open_ = inside = sleepers = 0;
    pthread_mutex_init(&mutex, nullptr);
    pthread_cond_init(&changed, nullptr);
}

// Signals stay with the caller's threads: Python's handler must see Ctrl-C.
void start_threads(i64 threads) {
    if (!watching_forks) watching_forks = pthread_atfork(nullptr, nullptr, forget_threads) == 0;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; started < threads; ++started) {
        births[started] = {started, generation};
        pthread_t thread;
        if (pthread_create(&thread, nullptr, live, &births[started]) != 0) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace convloom

// Run every phase in order on up to `threads` threads; returns the number that could be had.
// `counters` is 128 bytes a phase and `scratch` is `stride` bytes a thread, both 64-byte aligned.
extern "C" __attribute__((visibility("default"))) long convloom_run(
    const convloom::Phase* phases, long count, long threads, char* scratch, long stride,
    char* counters) {
    using namespace convloom;
    if (threads > kMostThreads) threads = kMostThreads;
    if (started < threads) start_threads(threads);
    if (threads > started) threads = started;
    job = {phases, count, threads, scratch, stride, reinterpret_cast<Counter*>(counters)};
    if (threads == 1) {
        work_alone();
        return threads;
    }
    for (i64 p = 0; p < count; ++p) job.counters[p] = {};
    store(open_, 1);
    add(generation, 1);
    wake();
    work(0);
    store(open_, 0);
    await([] { return load(inside) == 0; });
    return threads;
}
