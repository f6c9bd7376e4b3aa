// The race checker: two accesses of one byte of shared memory, one of them a write, by two threads
// with no barrier between them; and reads of what no thread of the block has written.
//
// Kernels are compiled with -fsanitize=thread, which calls __tsan_* at each access, and linked
// without its library: these callbacks take its place. Global memory is not checked here; a launch
// is repeated in other orders of threads instead, and must give the same bits.
#pragma once

#include "state.h"

namespace convloom_sim {
namespace {

#ifdef CONVLOOM_SIM_RACE

inline size_t place_of(const Block* block, const u8* byte) {
    return byte >= block->dynamic && byte < block->dynamic + kMostShared
               ? size_t(byte - block->dynamic)
               : kMostShared + size_t(byte - block->statics);
}

// "byte 12 of part", in a buffer that the next call reuses.
inline const char* name_of(const Block* block, const u8* byte) {
    static char text[256];
    const size_t place = place_of(block, byte);
    if (place < kMostShared) {
        snprintf(text, sizeof text, "byte %zu of dynamic shared memory", place);
        return text;
    }
    const size_t offset = place - kMostShared;
    for (u64 i = 0; i < block->launch->variable_count; ++i) {
        const Variable& variable = block->launch->variables[i];
        if (offset < variable.offset || offset >= variable.offset + variable.nbytes) continue;
        snprintf(text, sizeof text, "byte %zu of %s", offset - size_t(variable.offset),
                 variable.name);
        return text;
    }
    snprintf(text, sizeof text, "byte %zu of static shared memory", offset);
    return text;
}

// Whether an access of that epoch by `other` may be at the same time as one by `thread` now.
inline bool concurrent(const Thread* thread, u32 epoch, u32 warp_epoch, u16 other) {
    if (other == thread->linear + 1 || epoch != thread->block->epoch) return false;
    const bool same_warp = (other - 1u) / kWarp == thread->linear / kWarp;
    return !same_warp || warp_epoch == thread->warp_epoch;
}

// `mark` is false for a write that is only announced (cp.async at its issue).
void touch(Thread* thread, const void* pointer, size_t nbytes, bool write, bool mark = true) {
    Block* block = thread->block;
    if (block->failed || !is_shared(block, pointer, nbytes)) return;
    const u8* bytes = static_cast<const u8*>(pointer);
    Access* access = block->accesses + place_of(block, bytes);
    const u16 self = u16(thread->linear + 1);
    for (size_t i = 0; i < nbytes; ++i, ++access) {
        const char* kind = nullptr;
        u32 other = 0;
        if (concurrent(thread, access->write_epoch, access->write_warp_epoch, access->writer))
            kind = write ? "write after write" : "read after write", other = access->writer - 1u;
        else if (write &&
                 concurrent(thread, access->read_epoch, access->read_warp_epoch, access->reader))
            kind = "write after read", other = access->reader - 1u;
        if (kind != nullptr)
            fail(thread, "race in shared memory: %s, with thread %u, at %s", kind, other,
                 name_of(block, bytes + i));
        if (!write && access->write_epoch < block->first_epoch)
            fail(thread, "read of uninitialised shared memory, %s", name_of(block, bytes + i));
        if (!mark) continue;
        if (write) {
            access->write_epoch = block->epoch;
            access->write_warp_epoch = thread->warp_epoch;
            access->writer = self;
        } else if (access->read_epoch != block->epoch || access->reader == self) {
            // One reader is remembered: the first since the last barrier.
            access->read_epoch = block->epoch;
            access->read_warp_epoch = thread->warp_epoch;
            access->reader = self;
        }
    }
}

#else

inline void touch(Thread*, const void*, size_t, bool, bool = true) {}

#endif

}  // namespace
}  // namespace convloom_sim

#ifdef CONVLOOM_SIM_RACE

namespace {
inline void seen(const void* pointer, size_t nbytes, bool write) {
    convloom_sim::Thread* thread = convloom_sim::current;
    if (thread != nullptr) convloom_sim::touch(thread, pointer, nbytes, write);
}
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, size_t n) { seen(p, n, false); }
void __tsan_write_range(void* p, size_t n) { seen(p, n, true); }
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#define CONVLOOM_SIM_ACCESS(N)                                                \
    void __tsan_read##N(void* p) { seen(p, N, false); }                       \
    void __tsan_write##N(void* p) { seen(p, N, true); }                       \
    void __tsan_unaligned_read##N(void* p) { seen(p, N, false); }             \
    void __tsan_unaligned_write##N(void* p) { seen(p, N, true); }
CONVLOOM_SIM_ACCESS(1)
CONVLOOM_SIM_ACCESS(2)
CONVLOOM_SIM_ACCESS(4)
CONVLOOM_SIM_ACCESS(8)
CONVLOOM_SIM_ACCESS(16)

// Atomic accesses do not race with each other, and are not checked against plain ones.
#define CONVLOOM_SIM_FETCH(BITS, T, OP)                                                \
    T __tsan_atomic##BITS##_fetch_##OP(volatile T* p, T v, int) {                      \
        return __atomic_fetch_##OP(p, v, __ATOMIC_SEQ_CST);                            \
    }
#define CONVLOOM_SIM_ATOMICS(BITS, T)                                                              \
    T __tsan_atomic##BITS##_load(const volatile T* p, int) {                                       \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    void __tsan_atomic##BITS##_store(volatile T* p, T v, int) {                                    \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    T __tsan_atomic##BITS##_exchange(volatile T* p, T v, int) {                                    \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    CONVLOOM_SIM_FETCH(BITS, T, add)                                                               \
    CONVLOOM_SIM_FETCH(BITS, T, sub)                                                               \
    CONVLOOM_SIM_FETCH(BITS, T, and)                                                               \
    CONVLOOM_SIM_FETCH(BITS, T, or)                                                                \
    CONVLOOM_SIM_FETCH(BITS, T, xor)                                                               \
    int __tsan_atomic##BITS##_compare_exchange_strong(volatile T* p, T* c, T v, int, int) {        \
        return __atomic_compare_exchange_n(p, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
    }                                                                                              \
    int __tsan_atomic##BITS##_compare_exchange_weak(volatile T* p, T* c, T v, int, int) {          \
        return __atomic_compare_exchange_n(p, c, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);     \
    }
CONVLOOM_SIM_ATOMICS(8, unsigned char)
CONVLOOM_SIM_ATOMICS(32, unsigned)
CONVLOOM_SIM_ATOMICS(64, unsigned long)

}  // extern "C"
#pragma GCC visibility pop

#endif
