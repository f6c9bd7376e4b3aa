// Signals that become messages: a wild pointer or a division by zero in a kernel, and the
// watchdog's call to a thread that never comes to a barrier. Code outside a kernel keeps the
// handlers that it had.
#pragma once

#include <signal.h>

#include "state.h"

namespace convloom_sim {
namespace {

inline int wake_signal() { return SIGRTMIN + 7; }

// Handlers leave by switching stacks, never by returning; hence SA_NODEFER, which keeps the
// signal unblocked.
void on_wake(int) {
    Thread* thread = current;
    if (thread != nullptr)
        fail(thread, "did not come to a barrier within %g s and is taken for an endless loop%s",
             config.patience, last_place(thread));
}

// Faults are taken on a stack of its own: the fault may be that the fiber's stack is full.
inline void prepare_worker_signals() {
    constexpr size_t nbytes = 64 * 1024;
    stack_t stack = {};
    stack.ss_sp = malloc(nbytes);
    stack.ss_size = nbytes;
    sigaltstack(&stack, nullptr);
}

// A process may hold several runtimes, whose launches take turns: each has its handlers in place
// while it runs. This one stays, because the default action would end the process.
inline void catch_wake() {
    struct sigaction action = {};
    action.sa_handler = on_wake;
    action.sa_flags = SA_NODEFER | SA_ONSTACK;
    sigaction(wake_signal(), &action, nullptr);
}

#ifdef CONVLOOM_SIM_ASAN
// AddressSanitizer's own report of a fault says more.
inline void catch_faults() {}
inline void release_faults() {}
#else
constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kFaultCount = 4;
struct sigaction outer_handlers[kFaultCount];

void on_fault(int signal, siginfo_t* info, void*) {
    Thread* thread = current;
    if (thread == nullptr) {
        for (int i = 0; i < kFaultCount; ++i)
            if (kFaults[i] == signal) sigaction(signal, &outer_handlers[i], nullptr);
        return;  // the instruction faults again, and meets the handler of before
    }
    const size_t place = size_t(static_cast<char*>(info->si_addr) - stacks);
    const char* last = last_place(thread);
    if (signal == SIGFPE) fail(thread, "division of integers by zero%s", last);
    if (signal == SIGILL) fail(thread, "illegal instruction%s", last);
    if (place < kAllStackBytes && place % kStackBytes < kPage)
        fail(thread, "its local variables overflow the simulator's stack of %zu KiB%s",
             kStackBytes / 1024, last);
    fail(thread, "invalid memory access at address %p%s", info->si_addr, last);
}

inline void catch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    for (int i = 0; i < kFaultCount; ++i) sigaction(kFaults[i], &action, &outer_handlers[i]);
}
inline void release_faults() {
    for (int i = 0; i < kFaultCount; ++i) sigaction(kFaults[i], &outer_handlers[i], nullptr);
}
#endif

}  // namespace
}  // namespace convloom_sim
