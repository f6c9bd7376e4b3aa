// Fibers: functions on stacks of their own that hand the processor to each other.
//
// On x86-64 a switch is nine instructions (about 10 ns); elsewhere, and where CONVLOOM_SIM_UCONTEXT
// is defined, it is ucontext from the C library, correct but some ten times slower.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

#if !defined(__x86_64__) && !defined(CONVLOOM_SIM_UCONTEXT)
#define CONVLOOM_SIM_UCONTEXT
#endif
#ifdef CONVLOOM_SIM_UCONTEXT
#include <ucontext.h>
#endif

namespace convloom_sim {
namespace {

constexpr u32 kMostThreads = 1024;  // of a block
constexpr u32 kMostWorkers = 16;
constexpr size_t kPage = 4096;
// AddressSanitizer and unoptimised code need larger frames.
#ifdef CONVLOOM_SIM_LARGE_FRAMES
constexpr size_t kStackBytes = size_t(1) << 18;
#else
constexpr size_t kStackBytes = size_t(1) << 16;
#endif

#ifdef CONVLOOM_SIM_UCONTEXT

struct Context {
    ucontext_t saved;
};

inline void switch_context(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }

inline void prepare_context(Context& context, char* bottom, size_t nbytes, void (*entry)()) {
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = bottom;
    context.saved.uc_stack.ss_size = nbytes;
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, entry, 0);
}

#else

struct Context {
    void* stack_pointer;
};

// Saves the registers that a call must preserve on the old stack, and takes up the new one.
extern "C" void convloom_sim_switch(void** save, void* to) __attribute__((visibility("hidden")));
asm(R"(
    .text
    .p2align 4
    .globl convloom_sim_switch
    .hidden convloom_sim_switch
    .type convloom_sim_switch, @function
convloom_sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size convloom_sim_switch, . - convloom_sim_switch
)");

inline void switch_context(Context& from, Context& to) {
    convloom_sim_switch(&from.stack_pointer, to.stack_pointer);
}

inline void prepare_context(Context& context, char* bottom, size_t nbytes, void (*entry)()) {
    void** top = reinterpret_cast<void**>(bottom + nbytes);
    *--top = nullptr;  // where entry would return to; it never does. Keeps the ABI's alignment.
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.stack_pointer = top;
}

#endif

// All stacks lie in one mapping, whose pages exist once they are touched.
constexpr size_t kAllStackBytes = kStackBytes * kMostThreads * kMostWorkers;
char* stacks;

inline bool map_stacks() {
    if (stacks != nullptr) return true;
    void* mapped = mmap(nullptr, kAllStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return false;
    stacks = static_cast<char*>(mapped);
    return true;
}

inline char* stack_base(int stack) { return stacks + size_t(stack) * kStackBytes; }

// The lowest page is a guard. Tops are spread over the cache's sets: at equal offsets the stacks'
// hot lines would all fall into a few sets.
inline char* stack_bottom(int stack) { return stack_base(stack) + kPage; }
inline size_t stack_bytes(int stack) {
    return kStackBytes - kPage - 64 - size_t(stack) * 448 % kPage / 64 * 64;
}
inline void guard_stack(int stack) { mprotect(stack_base(stack), kPage, PROT_NONE); }

}  // namespace
}  // namespace convloom_sim
