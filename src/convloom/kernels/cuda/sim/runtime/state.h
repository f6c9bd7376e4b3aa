// What the runtime knows of a launch, a block and a thread.
#pragma once

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "fiber.h"

namespace convloom_sim {

// A static __shared__ variable: its place in the thread-local memory of the kernel's library.
struct Variable {
    u64 offset, nbytes;
    const char* name;
};

// Bytes of global memory.
struct Range {
    void* address;
    u64 nbytes;
};

// One launch; backends/cudasim/machine.py mirrors it.
struct Launch {
    void (*entry)(const u64* words);
    void* (*anchor)();
    const char* kernel;
    const u64* words;
    u64 blocks;
    u32 threads, shared;
    u32 cluster;  // blocks that run at a time and may wait for one another
    const Variable* variables;  // sorted by offset; none where no checker needs them
    u64 variable_count;
    const Range* closed;  // memory that the kernel must not touch,
    u64 closed_count;
    const Range* open;  // except these
    u64 open_count;
};

namespace {

constexpr u32 kWarp = 32;
constexpr u32 kMostWarps = kMostThreads / kWarp;
constexpr u32 kMostShared = 227 * 1024;  // an H100's; a selector asks for less on smaller devices
constexpr u32 kGuard = 1024;             // bytes around dynamic shared memory that nothing may touch

// In which order fibers take their turns. A kernel without races gives one result in all three.
enum Order : int { kForward, kBackward, kShuffled };

struct Config {
    int workers = 1;
    int order = kForward;
    u64 seed = 1;
    double patience = 60;  // seconds within which a block must end; 0 waits for ever
};
Config config;

struct Block;

// A copy by cp.async that has not been waited for.
struct Copy {
    void* target;
    const void* source;
    u32 bytes, source_bytes;
    const void* barrier;  // that tells of its end; none where groups do
};
struct Copies {
    Copy* items;
    u32 count, room;
    u32* groups;  // groups[g]: number of copies when group g was closed
    u32 group_count, group_room;
};

struct Thread;
// What the last lane to arrive does for all `lanes` of the warp that starts at `warp`.
using Meeting = void (*)(Thread* warp, u32 lanes);

struct Thread {
    uint3 index;
    u32 linear;  // in its block
    Block* block;
    Context context;
    int stack;  // -1: not started
    // What it waits for, or waited for last.
    const char* name;
    const char* file;
    int line;
    u32 mask;
    void* arguments;
    Meeting meeting;
    u32 warp_epoch;  // grows with each __syncwarp
    Copies copies, bulks;
};

// Who touched a byte of shared memory last; epochs tell what a barrier lies between.
struct Access {
    u32 write_epoch, write_warp_epoch, read_epoch, read_warp_epoch;
    u16 writer, reader;  // linear index + 1
};

struct Block {
    const Launch* launch;
    u64 number;
    u32 worker;  // that runs it
    u32 size, warps, alive;
    // A bit for each lane: may go on; waits for lanes of its warp; has returned.
    u32 ready[kMostWarps], meeting[kMostWarps], exited[kMostWarps];
    u32 ready_warps;
    u32 current_warp;
    // Predicates of the barrier that threads arrive at, and the results of the last one.
    int any, all, count, any_result, all_result, count_result;
    u8 *dynamic, *statics, *statics_end;
    bool failed;
    u32 epoch, first_epoch;  // barriers passed, in all blocks so far; and when this block began
    Access* accesses;
    u64 random;
    u32 guarded;  // stacks with a guard page
    Context home;  // the worker's own stack, and its extent
    const void* home_bottom;
    size_t home_bytes;
    int free_stacks[kMostThreads];
    u32 free_count;
    Thread threads[kMostThreads];
};

__thread Thread* current;
char error[4096];
int failed;         // some block has failed
int told_to_stop;   // the watchdog's wish, obeyed at the next barrier

inline u32 lanes_of(const Block* block, u32 warp) {
    const u32 left = block->size - warp * kWarp;
    return left >= kWarp ? ~0u : (1u << left) - 1;
}
inline u32 lowest(u32 bits) { return u32(__builtin_ctz(bits)); }

[[noreturn]] void abandon(Thread* thread);

// Ends the launch with a message; only the first failure is kept.
[[noreturn]] __attribute__((format(printf, 2, 3))) void fail(Thread* thread, const char* format,
                                                              ...) {
    Block* block = thread->block;
    if (!__atomic_exchange_n(&failed, 1, __ATOMIC_SEQ_CST)) {
        const int n = snprintf(error, sizeof error, "block %llu, thread %u: ", block->number,
                               thread->linear);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error + n, sizeof error - size_t(n), format, arguments);
        va_end(arguments);
    }
    block->failed = true;
    abandon(current);
}

// Where a thread was last seen, as ", after __syncthreads at relu/naive.cu:7"; the text
// lasts until the next call on the same worker.
inline const char* last_place(const Thread* thread) {
    static __thread char text[512];
    if (thread->file == nullptr) return "";
    snprintf(text, sizeof text, ", after %s at %s:%d", thread->name, thread->file, thread->line);
    return text;
}

// Whether all `nbytes` lie in one piece of the block's shared memory.
inline bool is_shared(const Block* block, const void* pointer, size_t nbytes) {
    const u8 *first = static_cast<const u8*>(pointer), *end = first + nbytes;
    if (first >= block->dynamic && end <= block->dynamic + block->launch->shared) return true;
    return first >= block->statics && end <= block->statics_end;
}

}  // namespace
}  // namespace convloom_sim
