// What AddressSanitizer must be told: stacks that change hands, and red zones that it cannot know.
// Without it, nothing. Declared by hand: the runtime itself is not instrumented.
#pragma once

#include "state.h"

#ifdef CONVLOOM_SIM_ASAN
#include <dlfcn.h>
#include <link.h>
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t nbytes);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* nbytes);
void __asan_poison_memory_region(const volatile void* address, size_t nbytes);
void __asan_unpoison_memory_region(const volatile void* address, size_t nbytes);
void* __asan_region_is_poisoned(void* address, size_t nbytes);
}
#endif

namespace convloom_sim {
namespace {

#ifdef CONVLOOM_SIM_ASAN

inline void leave_stack(void** fake, const void* bottom, size_t nbytes) {
    __sanitizer_start_switch_fiber(fake, bottom, nbytes);
}
inline void arrive_on_stack(void* fake) { __sanitizer_finish_switch_fiber(fake, nullptr, nullptr); }
inline void poison(const void* address, size_t nbytes) {
    __asan_poison_memory_region(address, nbytes);
}
inline void unpoison(const void* address, size_t nbytes) {
    __asan_unpoison_memory_region(address, nbytes);
}
inline bool is_poisoned(const void* address, size_t nbytes) {
    return __asan_region_is_poisoned(const_cast<void*>(address), nbytes) != nullptr;
}

// AddressSanitizer ends the process; its report says where in the code, this says which thread.
inline void name_the_dying() {
    if (current != nullptr)
        fprintf(stderr, "convloom-sim: block %llu, thread %u\n", current->block->number,
                current->linear);
}
// g++'s two sanitizers are libraries of their own, each with its own callback.
struct SanitizerLibraries {
    char paths[2][512];
    int count;
};
inline int find_sanitizers(dl_phdr_info* info, size_t, void* found) {
    auto* libraries = static_cast<SanitizerLibraries*>(found);
    if (strstr(info->dlpi_name, "libasan.so") || strstr(info->dlpi_name, "libubsan.so"))
        snprintf(libraries->paths[libraries->count++], 512, "%s", info->dlpi_name);
    return libraries->count == 2;
}
inline void watch_for_death() {
    SanitizerLibraries libraries = {};
    dl_iterate_phdr(find_sanitizers, &libraries);
    for (int i = 0; i < libraries.count; ++i) {
        void* handle = dlopen(libraries.paths[i], RTLD_LAZY | RTLD_NOLOAD);
        void* found = handle ? dlsym(handle, "__sanitizer_set_death_callback") : nullptr;
        if (found) reinterpret_cast<void (*)(void (*)())>(found)(name_the_dying);
    }
}

#else

inline void leave_stack(void**, const void*, size_t) {}
inline void arrive_on_stack(void*) {}
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
inline bool is_poisoned(const void*, size_t) { return false; }
inline void watch_for_death() {}

#endif

// Shared memory of a block on this worker: open what the launch has, close what lies around it.
inline void close_shared(const Block* block) {
    const Launch& launch = *block->launch;
    poison(block->dynamic - kGuard, kGuard);
    poison(block->dynamic + launch.shared, kMostShared + kGuard - launch.shared);
    // The build leaves a gap behind each static variable.
    for (u64 i = 0; i + 1 < launch.variable_count; ++i) {
        const u64 end = launch.variables[i].offset + launch.variables[i].nbytes;
        const u64 next = launch.variables[i + 1].offset;
        if (next > end) poison(block->statics + end, next - end);
    }
    if (launch.variable_count) {
        const Variable& last = launch.variables[launch.variable_count - 1];
        const u8* end = block->statics + last.offset + last.nbytes;
        if (block->statics_end > end) poison(end, size_t(block->statics_end - end));
    }
}
inline void open_shared(const Block* block) {
    unpoison(block->dynamic - kGuard, kMostShared + 2 * kGuard);
    unpoison(block->statics, size_t(block->statics_end - block->statics));
}

// Global memory: a kernel may touch the tensors of its step, and nothing else of the arenas.
inline void close_global(const Launch& launch) {
    for (u64 i = 0; i < launch.closed_count; ++i)
        poison(launch.closed[i].address, launch.closed[i].nbytes);
    for (u64 i = 0; i < launch.open_count; ++i)
        unpoison(launch.open[i].address, launch.open[i].nbytes);
}
inline void open_global(const Launch& launch) {
    for (u64 i = 0; i < launch.closed_count; ++i)
        unpoison(launch.closed[i].address, launch.closed[i].nbytes);
}

}  // namespace
}  // namespace convloom_sim
