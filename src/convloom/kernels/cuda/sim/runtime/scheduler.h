// Whose turn it is. A fiber runs until it must wait; whoever waits picks the next. When nobody can
// go on, all must be waiting at one barrier, else the kernel is wrong and the message says how.
#pragma once

#include "asan.h"
#include "cluster.h"
#include "state.h"

namespace convloom_sim {
namespace {

void fiber_main();

inline void make_ready(Block* block, u32 warp, u32 lanes) {
    if (lanes == 0) return;
    block->ready[warp] |= lanes;
    block->ready_warps |= 1u << warp;
}

inline u32 draw(Block* block, u32 below) {
    block->random = block->random * 6364136223846793005ull + 1442695040888963407ull;
    return u32(block->random >> 33) % below;
}
inline u32 random_bit(Block* block, u32 bits) {
    for (u32 skip = draw(block, u32(__builtin_popcount(bits))); skip > 0; --skip) bits &= bits - 1;
    return lowest(bits);
}

// The next thread that may run, taken off the ready set; null if there is none.
inline Thread* pick(Block* block) {
    if (block->ready_warps == 0) return nullptr;
    u32 warp, lane;
    if (config.order == kShuffled) {
        warp = random_bit(block, block->ready_warps);
        lane = random_bit(block, block->ready[warp]);
    } else if (config.order == kBackward) {
        warp = 31 - u32(__builtin_clz(block->ready_warps));
        lane = 31 - u32(__builtin_clz(block->ready[warp]));
    } else {
        const bool stay = block->ready_warps >> block->current_warp & 1;
        warp = stay ? block->current_warp : lowest(block->ready_warps);
        lane = lowest(block->ready[warp]);
    }
    block->current_warp = warp;
    block->ready[warp] &= ~(1u << lane);
    if (block->ready[warp] == 0) block->ready_warps &= ~(1u << warp);
    return &block->threads[warp * kWarp + lane];
}

inline void enter(Thread* thread) {
    current = thread;
    threadIdx = thread->index;
}

inline void start(Thread* thread, int stack) {
    thread->stack = stack;
    // An abandoned fiber leaves its frames' red zones behind.
    unpoison(stack_bottom(stack), kStackBytes - kPage);
    prepare_context(thread->context, stack_bottom(stack), stack_bytes(stack), fiber_main);
}

// Leaves the current fiber for `next`, or for the worker's own stack where that is null. With
// `for_ever` it will not be taken up again.
inline void hand_over(Thread* next, bool for_ever) {
    Thread* self = current;
    Block* block = self->block;
    Context* to = &block->home;
    const void* bottom = block->home_bottom;
    size_t nbytes = block->home_bytes;
    if (next != nullptr) {
        if (next->stack < 0) start(next, block->free_stacks[--block->free_count]);
        enter(next);
        to = &next->context;
        bottom = stack_bottom(next->stack);
        nbytes = kStackBytes - kPage;
    } else {
        current = nullptr;
    }
    void* fake = nullptr;
    leave_stack(for_ever ? nullptr : &fake, bottom, nbytes);
    switch_context(self->context, *to);
    arrive_on_stack(fake);
}

[[noreturn]] void abandon(Thread*) {
    hand_over(nullptr, true);
    __builtin_unreachable();
}

// Nobody can go on: opens the barrier where all wait, or says what is wrong.
inline void open_barrier(Block* block) {
    Thread* first = nullptr;
    u32 waiting = 0;
    for (u32 i = 0; i < block->size; ++i) {
        const u32 warp = i / kWarp, bit = 1u << i % kWarp;
        if (block->exited[warp] & bit) continue;
        Thread* thread = &block->threads[i];
        ++waiting;
        if (block->meeting[warp] & bit)
            fail(thread, "%s at %s:%d waits for lanes %08x, but only %08x of the warp arrived",
                 thread->name, thread->file, thread->line, thread->mask, block->meeting[warp]);
        if (first == nullptr)
            first = thread;
        else if (thread->line != first->line || strcmp(thread->file, first->file) != 0)
            fail(thread,
                 "divergent %s: this thread waits at %s:%d, while thread %u waits in %s at %s:%d",
                 thread->name, thread->file, thread->line, first->linear, first->name, first->file,
                 first->line);
    }
    // Hardware since Volta lets the others go on; the programming model does not promise it.
    if (waiting < block->size)
        fail(first, "divergent %s: %u of %u threads wait at %s:%d, the others have returned",
             first->name, waiting, block->size, first->file, first->line);
    if (first->name == kClusterBarrier) meet_cluster(block, first);
    for (u32 warp = 0; warp < block->warps; ++warp) make_ready(block, warp, lanes_of(block, warp));
    block->any_result = block->any;
    block->all_result = block->all;
    block->count_result = block->count;
    block->any = block->count = 0;
    block->all = 1;
    block->current_warp = 0;
    ++block->epoch;
}

inline Thread* next_thread(Block* block) {
    Thread* next = pick(block);
    if (next == nullptr) {
        open_barrier(block);
        next = pick(block);
    }
    return next;
}

// Waits until somebody makes the current thread ready and its turn comes.
inline void wait_turn() {
    Thread* self = current;
    if (__atomic_load_n(&told_to_stop, __ATOMIC_RELAXED))
        fail(self, "did not end within %g s and is taken for an endless loop%s", config.patience,
             last_place(self));
    Thread* next = next_thread(self->block);
    if (next != self) hand_over(next, false);
}

// ---- lanes of a warp that meet

// The lanes that `thread` waits for: those of its mask that have not returned.
inline u32 expected(const Block* block, const Thread* thread) {
    return thread->mask & ~block->exited[thread->linear / kWarp];
}

// If all lanes that `thread` waits for have come, does what they came for and lets them go on.
inline bool conclude(Block* block, Thread* thread) {
    const u32 warp = thread->linear / kWarp, lanes = expected(block, thread);
    if ((block->meeting[warp] & lanes) != lanes) return false;
    Thread* first = &block->threads[warp * kWarp];
    for (u32 left = lanes; left; left &= left - 1) {
        Thread* other = first + lowest(left);
        if (strcmp(other->name, thread->name) != 0)
            fail(thread, "%s at %s:%d meets %s at %s:%d of thread %u", thread->name, thread->file,
                 thread->line, other->name, other->file, other->line, other->linear);
        if (other->mask != thread->mask)
            fail(thread, "%s at %s:%d has mask %08x, but %08x in lane %u", thread->name,
                 thread->file, thread->line, thread->mask, other->mask, other->linear % kWarp);
        if (thread->meeting == nullptr) ++other->warp_epoch;  // only __syncwarp orders memory
    }
    if (thread->meeting != nullptr) thread->meeting(first, lanes);
    block->meeting[warp] &= ~lanes;
    make_ready(block, warp, lanes);
    return true;
}

// The current thread meets the other lanes of `mask`; the last to come runs `meeting` for all.
void meet(const char* name, u32 mask, void* arguments, Meeting meeting, const char* file,
          int line) {
    Thread* self = current;
    Block* block = self->block;
    const u32 warp = self->linear / kWarp, bit = 1u << self->linear % kWarp;
    self->name = name;
    self->mask = mask;
    self->arguments = arguments;
    self->meeting = meeting;
    self->file = file;
    self->line = line;
    if (!(mask & bit))
        fail(self, "%s at %s:%d: the calling lane %u is not in its mask %08x", name, file, line,
             self->linear % kWarp, mask);
    if (mask & ~lanes_of(block, warp))
        fail(self, "%s at %s:%d: mask %08x names lanes that the block does not have", name, file,
             line, mask);
    block->meeting[warp] |= bit;
    if (conclude(block, self)) {
        // The last to come stays on: it need not give up its turn.
        block->ready[warp] &= ~bit;
        if (block->ready[warp] == 0) block->ready_warps &= ~(1u << warp);
    } else {
        wait_turn();
    }
}

template <class T>
T& arguments_of(Thread* warp, u32 lane) {
    return *static_cast<T*>(warp[lane].arguments);
}

// ---- a fiber's life

inline void forget_copies(Thread& thread) {
    thread.copies.count = thread.copies.group_count = thread.bulks.count = 0;
}

// The current thread has returned from the kernel. Whoever waits for it in its warp may go on.
inline void retire(Thread* self) {
    Block* block = self->block;
    const u32 warp = self->linear / kWarp;
    block->exited[warp] |= 1u << self->linear % kWarp;
    --block->alive;
    forget_copies(*self);
    for (u32 left = block->meeting[warp]; left; left &= left - 1)
        if (block->meeting[warp] & 1u << lowest(left))
            conclude(block, &block->threads[warp * kWarp + lowest(left)]);
}

// Runs one thread after the other on this stack, as long as the next has not started yet.
void fiber_main() {
    arrive_on_stack(nullptr);
    for (;;) {
        Thread* self = current;
        Block* block = self->block;
        const int stack = self->stack;
        block->launch->entry(block->launch->words);
        retire(self);
        Thread* next = block->alive ? next_thread(block) : nullptr;
        if (next != nullptr && next->stack < 0) {
            next->stack = stack;
            enter(next);
            continue;
        }
        block->free_stacks[block->free_count++] = stack;
        hand_over(next, true);
    }
}

}  // namespace
}  // namespace convloom_sim
