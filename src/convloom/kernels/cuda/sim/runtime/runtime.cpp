// The simulator's runtime: runs the blocks of a launch on a few threads of the operating system,
// the threads of a block as fibers. Compiled once for each way of checking; kernels link to it.
//
// Blocks do not depend on each other (a kernel may not wait for another block, but those of a cluster
// for one another, see cluster.h), so which worker runs which block does not show in the results. One launch at a time; backends/cudasim/machine.py
// serialises, and keeps asking whether it is over: that is when the watchdog looks at the clock,
// and when Python can answer to Ctrl-C.
#include <link.h>
#include <time.h>

#include "../language.h"
#include "../runtime.h"

// Included in this order by each other; named here as a table of contents.
#include "fiber.h"
#include "state.h"
#include "asan.h"
#include "cluster.h"
#include "scheduler.h"
#include "race.h"
#include "collectives.h"
#include "faults.h"

// The dynamic shared memory of every kernel: `extern __shared__ unsigned char smem_raw[]`, which in
// namespace convloom is another symbol of the same address. In assembly, because C++ cannot give
// one thread-local array two names and a red zone in front.
asm(R"(
    .pushsection .tbss.convloom_sim_dynamic, "awT", %nobits
    .p2align 10
    .zero 1024
    .globl smem_raw
    .type smem_raw, %object
    .globl _ZN8convloom8smem_rawE
    .type _ZN8convloom8smem_rawE, %object
smem_raw:
_ZN8convloom8smem_rawE:
    .zero 233472
    .size smem_raw, 233472
    .size _ZN8convloom8smem_rawE, 233472
    .popsection
)");
extern "C" __thread unsigned char smem_raw[];

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread dim3 blockDim(1, 1, 1);
__thread dim3 gridDim(1, 1, 1);

namespace convloom_sim {
namespace {

static_assert(kMostShared + kGuard == 233472, "the assembly above reserves this much");

struct Worker {
    pthread_t thread;
    Block* block;
    bool busy;
};

Worker workers[kMostWorkers];
u32 started;  // workers that exist
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t job_posted = PTHREAD_COND_INITIALIZER;
pthread_cond_t job_done = PTHREAD_COND_INITIALIZER;
const Launch* job;
u64 job_number;
u32 job_workers;   // those with a lower index take part
u32 still_busy;
u64 next_block;    // claimed by atomic increment
u64 blocks_ended;  // by which the watchdog sees progress
u64 stride;        // of the shuffled order of blocks

// Where the static shared memory of the launch's library lies for the calling worker.
struct ThreadLocalMemory {
    u8 *anchor, *first, *end;
};
int find_thread_local(dl_phdr_info* info, size_t, void* sought) {
    auto* found = static_cast<ThreadLocalMemory*>(sought);
    u8* memory = static_cast<u8*>(info->dlpi_tls_data);
    if (memory == nullptr) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        if (header.p_type != PT_TLS) continue;
        if (found->anchor < memory || found->anchor >= memory + header.p_memsz) continue;
        found->first = memory;
        found->end = memory + header.p_memsz;
        return 1;
    }
    return 0;
}

// A new block owns its shared memory, undefined: all bits set is NaN in every float type.
void fill_shared(Block* block) {
    const Launch& launch = *block->launch;
    memset(block->dynamic, 0xff, launch.shared);
    if (launch.variable_count == 0)
        memset(block->statics, 0xff, size_t(block->statics_end - block->statics));
    for (u64 i = 0; i < launch.variable_count; ++i)
        memset(block->statics + launch.variables[i].offset, 0xff, launch.variables[i].nbytes);
}

void prepare_block(Block* block, u64 number) {
    block->number = number;
    blockIdx = {u32(number), 0, 0};
    block->alive = block->size;
    block->ready_warps = block->current_warp = 0;
    block->any = block->count = 0;
    block->all = 1;
    block->first_epoch = ++block->epoch;
    for (u32 warp = 0; warp < block->warps; ++warp) {
        block->ready[warp] = block->exited[warp] = block->meeting[warp] = 0;
        make_ready(block, warp, lanes_of(block, warp));
        block->exited[warp] = ~lanes_of(block, warp);
    }
    for (u32 i = 0; i < block->size; ++i) {
        Thread& thread = block->threads[i];
        thread.stack = -1;
        thread.warp_epoch = 0;
        thread.file = nullptr;
        forget_copies(thread);
    }
    fill_shared(block);
}

// Goes to the block's first fiber; comes back when the block is over, or has failed.
void run_block(Block* block) {
    Thread* first = pick(block);
    start(first, block->free_stacks[--block->free_count]);
    enter(first);
    void* fake = nullptr;
    leave_stack(&fake, stack_bottom(first->stack), kStackBytes - kPage);
    switch_context(block->home, first->context);
    arrive_on_stack(fake);
}

void prepare_worker(Block* block, const Launch& launch, u32 worker) {
    block->launch = &launch;
    block->size = launch.threads;
    block->warps = (launch.threads + kWarp - 1) / kWarp;
    block->failed = false;
    block->random = config.seed * 0x9e3779b97f4a7c15ull;
    blockDim = dim3(launch.threads);
    gridDim = dim3(u32(launch.blocks));
    block->dynamic = smem_raw;
    block->worker = worker;
    dynamic_of[worker] = smem_raw;
    ThreadLocalMemory memory = {static_cast<u8*>(launch.anchor()), nullptr, nullptr};
    dl_iterate_phdr(find_thread_local, &memory);
    block->statics = memory.first;
    block->statics_end = memory.end;
    const u32 first_stack = worker * kMostThreads;
    for (; block->guarded < block->size; ++block->guarded)
        guard_stack(int(first_stack + block->guarded));
    block->free_count = 0;
    for (u32 i = block->size; i > 0; --i)
        block->free_stacks[block->free_count++] = int(first_stack + i - 1);
    for (u32 i = 0; i < block->size; ++i) {
        Thread& thread = block->threads[i];
        thread.block = block;
        thread.linear = i;
        thread.index = {i, 0, 0};
    }
#ifdef CONVLOOM_SIM_RACE
    const size_t bytes = kMostShared + size_t(block->statics_end - block->statics);
    block->accesses = static_cast<Access*>(calloc(bytes, sizeof(Access)));
    block->epoch = 0;
#endif
}

// Which block comes at `turn`, in the order that was asked for.
u64 block_at(u64 turn, u64 blocks) {
    if (config.order == kBackward) return blocks - 1 - turn;
    if (config.order == kShuffled) return u64((unsigned __int128)turn * stride % blocks);
    return turn;
}

void work(Block* block, const Launch& launch, u32 worker) {
    prepare_worker(block, launch, worker);
    close_shared(block);
    // Workers of a cluster's blocks take the same clusters; a single worker takes what comes.
    const u32 size = launch.cluster, groups = job_workers / size;
    const u64 count = launch.blocks / size;
    u64 own_turn = worker / size;
    while (!__atomic_load_n(&failed, __ATOMIC_SEQ_CST)) {
        u64 turn = own_turn;
        if (size == 1)
            turn = __atomic_fetch_add(&next_block, 1, __ATOMIC_SEQ_CST);
        else
            own_turn += groups;
        if (turn >= count) break;
        prepare_block(block, block_at(turn, count) * size + worker % size);
        run_block(block);
        __atomic_fetch_add(&blocks_ended, 1, __ATOMIC_SEQ_CST);
        if (block->failed) break;
    }
    open_shared(block);
#ifdef CONVLOOM_SIM_RACE
    free(block->accesses);
    block->accesses = nullptr;
#endif
}

void* work_for_ever(void* argument) {
    const u32 index = u32(static_cast<Worker*>(argument) - workers);
    prepare_worker_signals();
    Block* block = workers[index].block;
    pthread_attr_t attributes;
    void* bottom = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &bottom, &block->home_bytes);
    pthread_attr_destroy(&attributes);
    block->home_bottom = bottom;
    u64 seen = 0;
    pthread_mutex_lock(&mutex);
    for (;;) {
        while (job_number == seen) pthread_cond_wait(&job_posted, &mutex);
        seen = job_number;
        if (index >= job_workers) continue;
        workers[index].busy = true;
        pthread_mutex_unlock(&mutex);
        work(block, *job, index);
        pthread_mutex_lock(&mutex);
        workers[index].busy = false;
        if (--still_busy == 0) pthread_cond_signal(&job_done);
    }
}

void forget_workers() {
    started = 0;  // threads do not survive a fork
    pthread_mutex_init(&mutex, nullptr);
    pthread_cond_init(&job_posted, nullptr);
    pthread_cond_init(&job_done, nullptr);
    pthread_mutex_init(&cluster_mutex, nullptr);
    pthread_cond_init(&cluster_moved, nullptr);
    for (Worker& worker : workers) worker.busy = false;
}

bool start_workers(u32 wanted) {
    static bool watching_forks;
    if (!watching_forks) {
        watching_forks = true;
        pthread_atfork(nullptr, nullptr, forget_workers);
        watch_for_death();
    }
    while (started < wanted) {
        Worker& worker = workers[started];
        if (worker.block == nullptr)
            worker.block = static_cast<Block*>(calloc(1, sizeof(Block)));
        if (worker.block == nullptr) return false;
        if (pthread_create(&worker.thread, nullptr, work_for_ever, &worker) != 0) return false;
        pthread_detach(worker.thread);
        ++started;
    }
    return true;
}

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// ---- the watchdog: stops a launch in which no block ends for longer than patience lasts

struct Watch {
    u64 blocks_ended;  // as it was seen last,
    double since;      // and since when
    bool asked;        // whether the workers have been told to stop
};
Watch watch;
constexpr double kGrace = 1.0;  // seconds that a worker has for coming to a barrier

void ask_to_stop() {
    watch.asked = true;
    watch.since = now();
    __atomic_store_n(&told_to_stop, 1, __ATOMIC_SEQ_CST);
}

void look_after_workers() {
    const double time = now();
    const u64 ended = __atomic_load_n(&blocks_ended, __ATOMIC_SEQ_CST);
    if (watch.asked) {
        if (time - watch.since < kGrace) return;
        for (u32 i = 0; i < job_workers; ++i)
            if (workers[i].busy) pthread_kill(workers[i].thread, wake_signal());
    } else if (ended != watch.blocks_ended) {
        watch.blocks_ended = ended;
        watch.since = time;
    } else if (config.patience > 0 && time - watch.since > config.patience) {
        ask_to_stop();
    }
}

u64 greatest_common_divisor(u64 a, u64 b) {
    while (b != 0) {
        const u64 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int refuse(const char* text) {
    snprintf(error, sizeof error, "%s", text);
    return 1;
}

}  // namespace
}  // namespace convloom_sim

CONVLOOM_SIM_API void convloom_sim_configure(int workers, int order, unsigned long long seed,
                                             double patience) {
    using namespace convloom_sim;
    config.workers = workers;
    config.order = order;
    config.seed = seed;
    config.patience = patience;
}

CONVLOOM_SIM_API const char* convloom_sim_error() { return convloom_sim::error; }

// Starts all blocks of a launch, which must stay in memory until convloom_sim_wait says that it is
// over. 0: started; else convloom_sim_error() says why not.
CONVLOOM_SIM_API int convloom_sim_launch(const convloom_sim::Launch* launch) {
    using namespace convloom_sim;
    error[0] = '\0';
    if (launch->blocks == 0 || launch->blocks > 0x7fffffffu)
        return refuse("a grid has 1 to 2147483647 blocks");
    if (launch->threads == 0 || launch->threads > kMostThreads)
        return refuse("a block has 1 to 1024 threads");
    if (launch->shared > kMostShared)
        return refuse("a block has at most 227 KiB of dynamic shared memory");
    const u32 size = launch->cluster;
    if (size == 0 || size > kMostWorkers || launch->blocks % size != 0)
        return refuse("a grid has whole clusters, of no more blocks than the simulator has workers");
    u32 count = config.workers < 1 ? 1u : u32(config.workers);
    count = (count + size - 1) / size * size;
    if (count > kMostWorkers) count = kMostWorkers / size * size;
    if (count > launch->blocks) count = u32(launch->blocks);
    if (!map_stacks() || !start_workers(count)) return refuse("no memory for the fibers");
    const u64 units = launch->blocks / size;
    stride = units / 2 + config.seed % 97 + 1;
    while (greatest_common_divisor(stride, units) != 1) ++stride;
    for (Cluster& cluster : clusters) cluster = {};

    close_global(*launch);
    catch_wake();
    catch_faults();
    pthread_mutex_lock(&mutex);
    failed = told_to_stop = 0;
    next_block = blocks_ended = 0;
    watch = {0, now(), false};
    job = launch;
    job_workers = still_busy = count;
    ++job_number;
    pthread_cond_broadcast(&job_posted);
    pthread_mutex_unlock(&mutex);
    return 0;
}

// Waits for the launch, but no longer than `milliseconds`. -1: it still runs; 0: it is over; 1: it
// has failed and convloom_sim_error() says how.
CONVLOOM_SIM_API int convloom_sim_wait(int milliseconds) {
    using namespace convloom_sim;
    timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_nsec += long(milliseconds) * 1'000'000;
    limit.tv_sec += limit.tv_nsec / 1'000'000'000;
    limit.tv_nsec %= 1'000'000'000;
    pthread_mutex_lock(&mutex);
    while (still_busy > 0 && pthread_cond_timedwait(&job_done, &mutex, &limit) == 0) {
    }
    const bool over = still_busy == 0;
    if (!over) look_after_workers();
    pthread_mutex_unlock(&mutex);
    if (!over) return -1;
    release_faults();
    open_global(*job);
    return failed;
}

// Ends the launch early; convloom_sim_wait says when.
CONVLOOM_SIM_API void convloom_sim_stop() { convloom_sim::ask_to_stop(); }
