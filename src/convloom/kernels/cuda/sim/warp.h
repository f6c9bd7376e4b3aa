// Barriers, shuffles and votes. Which lane a shuffle reads: PTX ISA, "shfl.sync".
#pragma once

inline void __syncthreads(CONVLOOM_SIM_SITE) {
    convloom_sim_barrier("__syncthreads", convloom_sim::kNothing, 0, file, line);
}
inline int __syncthreads_or(int predicate, CONVLOOM_SIM_SITE) {
    return convloom_sim_barrier("__syncthreads_or", convloom_sim::kOr, predicate, file, line);
}
inline int __syncthreads_and(int predicate, CONVLOOM_SIM_SITE) {
    return convloom_sim_barrier("__syncthreads_and", convloom_sim::kAnd, predicate, file, line);
}
inline int __syncthreads_count(int predicate, CONVLOOM_SIM_SITE) {
    return convloom_sim_barrier("__syncthreads_count", convloom_sim::kCount, predicate, file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, CONVLOOM_SIM_SITE) {
    convloom_sim_warp_barrier(mask, file, line);
}

// A block's fibers see each other's writes at once, and blocks do not wait for each other.
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}

namespace convloom_sim {

template <class T>
T shuffle(const char* name, unsigned mask, T value, int source, const char* file, int line) {
    static_assert(sizeof(T) <= 8 && __is_trivially_copyable(T));
    u64 word = 0;
    __builtin_memcpy(&word, &value, sizeof value);
    word = convloom_sim_shuffle(name, mask, word, source, file, line);
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

// First lane of the segment of `width` lanes that `lane` lies in.
inline int segment(int lane, int width) { return lane & ~(width - 1); }

}  // namespace convloom_sim

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CONVLOOM_SIM_SITE) {
    const int first = convloom_sim::segment(convloom_sim_lane(), width);
    source = first | (source & (width - 1));
    return convloom_sim::shuffle("__shfl_sync", mask, value, source, file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, CONVLOOM_SIM_SITE) {
    const int lane = convloom_sim_lane(), source = lane ^ bits;
    const bool inside = source < convloom_sim::segment(lane, width) + width;
    return convloom_sim::shuffle("__shfl_xor_sync", mask, value, inside ? source : -1, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CONVLOOM_SIM_SITE) {
    const int lane = convloom_sim_lane(), source = lane + int(by);
    const bool inside = source < convloom_sim::segment(lane, width) + width;
    return convloom_sim::shuffle("__shfl_down_sync", mask, value, inside ? source : -1, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CONVLOOM_SIM_SITE) {
    const int lane = convloom_sim_lane(), source = lane - int(by);
    const bool inside = source >= convloom_sim::segment(lane, width);
    return convloom_sim::shuffle("__shfl_up_sync", mask, value, inside ? source : -1, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, CONVLOOM_SIM_SITE) {
    return convloom_sim_ballot("__ballot_sync", mask, predicate, file, line);
}
inline int __any_sync(unsigned mask, int predicate, CONVLOOM_SIM_SITE) {
    return convloom_sim_ballot("__any_sync", mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, CONVLOOM_SIM_SITE) {
    return convloom_sim_ballot("__all_sync", mask, !predicate, file, line) == 0;
}
