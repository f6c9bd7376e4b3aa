// The thread pool: runs all phases of a stretch of steps in one call.
//
// Work is laid out as phases of numbered items. Threads claim items from an atomic ticket, and a
// phase is over when every item is done, not when every thread has come by: a worker that is late
// (asleep, or its core is taken) never holds the others up, neither within a run nor at its end.
// It finds out when it next claims an item: tickets carry the number of their run.
// Waiting is a short spin, then sleep on one condition variable. Threads start on the first call
// and stay; a forked child starts its own.
//
// Limit: one run at a time in a process; the caller serialises (backends/cpu/pool.py does).
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "abi.h"

namespace convloom {
namespace {

constexpr i64 kSpinNanoseconds = 50'000;
constexpr i64 kMostThreads = 1024;
constexpr i64 kNoItem = 0xffffffff;

// Progress of one phase. A ticket is (run << 32) + the next item. Claiming and finishing are apart
// so that they do not share a cache line.
struct Counter {
    alignas(64) i64 ticket;
    i64 items;
    alignas(64) i64 done;
};

struct Job {
    i64 run;
    const Phase* phases;
    i64 count;
    i64 threads;
    char* scratch;
    i64 stride;
};

Job job;
i64 runs;     // number of the latest job
i64 open_;    // 1 while the job may be copied
i64 readers;  // workers that are copying the job, or about to look whether they may
// Never freed or moved while a thread may look at it: a late worker reads tickets of any age.
Counter counters[4096];
constexpr i64 kMostPhases = sizeof counters / sizeof counters[0];
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

enum Manner { EAGER, YIELDING };

template <Manner MANNER, class Ready>
bool spin(Ready ready) {
    if (ready()) return true;
    const i64 end = now() + kSpinNanoseconds;
    do {
        for (int i = 0; i < 16; ++i) {
            pause_core();
            if (ready()) return true;
        }
        if (MANNER == YIELDING) sched_yield();
    } while (now() < end);
    return false;
}

// A sleeper counts itself before its last look; whoever changes something looks at the count
// afterwards (wake). Both orders are sequentially consistent, so no change is slept through.
template <Manner MANNER, class Ready>
void await(Ready ready) {
    if (spin<MANNER>(ready)) return;
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

// The next item of a phase of this run; -1 when there is none, -2 when the run is over.
i64 claim(Counter& counter, i64 run) {
    i64 ticket = load(counter.ticket);
    for (;;) {
        if (ticket >> 32 != run) return -2;
        const i64 item = ticket & kNoItem;
        if (item >= load(counter.items)) return -1;
        if (__atomic_compare_exchange_n(&counter.ticket, &ticket, ticket + 1, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return item;
    }
}

// A claimed item keeps the run from ending, so what it needs stays in place; nothing else of the
// job is touched.
void work(const Job& mine, i64 index) {
    Worker worker{index, mine.scratch + index * mine.stride};
    for (i64 p = 0; p < mine.count; ++p) {
        Counter& counter = counters[p];
        i64 finished = 0, item;
        for (; (item = claim(counter, mine.run)) >= 0; ++finished) {
            const Phase& phase = mine.phases[p];
            phase.kernel(phase.args, long(item), &worker);
        }
        if (item == -2) return;
        if (finished) {
            const i64 items = load(counter.items);  // the run may end with the next line
            if (add(counter.done, finished) + finished == items) wake();
        }
        await<EAGER>([&] {
            return load(counter.done) == load(counter.items) ||
                   load(counter.ticket) >> 32 != mine.run;
        });
    }
}

void work_alone(const Job& mine) {
    Worker worker{0, mine.scratch};
    for (i64 p = 0; p < mine.count; ++p) {
        const Phase& phase = mine.phases[p];
        for (i64 item = 0; item < phase.items; ++item)
            phase.kernel(phase.args, long(item), &worker);
    }
}

// What a new thread is told, which it may read at any time later.
struct Birth {
    i64 index;
    i64 seen;
};
Birth births[kMostThreads];

void* live(void* birth) {
    const i64 index = static_cast<Birth*>(birth)->index;
    i64 seen = static_cast<Birth*>(birth)->seen;
    for (;;) {
        // A worker that was woken on the caller's own core must not keep it from the caller.
        await<YIELDING>([&] { return load(runs) != seen; });
        Job mine{};
        add(readers, 1);
        if (load(open_)) {
            mine = job;
            seen = mine.run;
        }
        add(readers, -1);
        wake();
        if (index < mine.threads) work(mine, index);
    }
    return nullptr;
}

// Only the thread that forked lives on in the child: forget the others.
void forget_threads() {
    started = 1;
    readers = sleepers = 0;
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
        births[started] = {started, runs};
        pthread_t thread;
        if (pthread_create(&thread, nullptr, live, &births[started]) != 0) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void run_phases(Job next) {
    if (next.threads == 1) return work_alone(next);
    next.run = (runs + 1) & 0x7fffffff;
    for (i64 p = 0; p < next.count; ++p) {
        // Closed first: a late worker that still holds the old ticket must not claim a new item.
        store(counters[p].ticket, next.run << 32 | kNoItem);
        store(counters[p].items, next.phases[p].items);
        store(counters[p].done, 0);
        store(counters[p].ticket, next.run << 32);
    }
    store(open_, 0);
    await<YIELDING>([] { return load(readers) == 0; });
    job = next;
    store(runs, next.run);
    store(open_, 1);
    wake();
    work(next, 0);
}

}  // namespace
}  // namespace convloom

// Run every phase in order on up to `threads` threads; returns the number that could be had.
// `scratch` is `stride` bytes a thread, 64-byte aligned.
extern "C" __attribute__((visibility("default"))) long convloom_run(
    const convloom::Phase* phases, long count, long threads, char* scratch, long stride) {
    using namespace convloom;
    if (threads > kMostThreads) threads = kMostThreads;
    if (started < threads) start_threads(threads);
    if (threads > started) threads = started;
    for (; count > kMostPhases; phases += kMostPhases, count -= kMostPhases)
        run_phases({0, phases, kMostPhases, threads, scratch, stride});
    run_phases({0, phases, count, threads, scratch, stride});
    return threads;
}
