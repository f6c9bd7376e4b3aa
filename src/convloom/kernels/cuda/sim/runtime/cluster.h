// Clusters: each of a cluster's blocks runs on a worker of its own, neighbours in number. A block all
// of whose threads wait at a barrier of the cluster waits, with its worker, for the other blocks.
#pragma once

#include <time.h>

#include "state.h"

namespace convloom_sim {
namespace {

// Barriers are told apart by this name.
constexpr const char* kClusterBarrier = "cluster_barrier";

struct Cluster {
    u32 arrived;  // blocks at the barrier,
    u64 passed;   // and how many barriers have opened
};
Cluster clusters[kMostWorkers];
u8* dynamic_of[kMostWorkers];  // dynamic shared memory of each worker's block
pthread_mutex_t cluster_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cluster_moved = PTHREAD_COND_INITIALIZER;

// Called by `thread` for its whole block. Others may never come: then the launch has failed, or its
// patience ends.
inline void meet_cluster(Block* block, Thread* thread) {
    const u32 size = block->launch->cluster;
    Cluster& own = clusters[block->worker / size];
    bool stopped = false;
    pthread_mutex_lock(&cluster_mutex);
    const u64 passed = own.passed;
    if (++own.arrived == size) {
        own.arrived = 0;
        ++own.passed;
        pthread_cond_broadcast(&cluster_moved);
    }
    while (own.passed == passed && !stopped) {
        timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_nsec += 10'000'000;
        limit.tv_sec += limit.tv_nsec / 1'000'000'000;
        limit.tv_nsec %= 1'000'000'000;
        pthread_cond_timedwait(&cluster_moved, &cluster_mutex, &limit);
        stopped = __atomic_load_n(&failed, __ATOMIC_SEQ_CST) ||
                  __atomic_load_n(&told_to_stop, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&cluster_mutex);
    if (stopped && own.passed == passed)
        fail(thread, "waits at %s:%d for other blocks of its cluster, which do not come",
             thread->file, thread->line);
}

}  // namespace
}  // namespace convloom_sim
