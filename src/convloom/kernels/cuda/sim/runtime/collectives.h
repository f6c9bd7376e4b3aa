// What threads do together: barriers, shuffles, votes, matrix instructions, asynchronous copies.
// The C functions of runtime.h.
#pragma once

#include "cluster.h"
#include "race.h"
#include "scheduler.h"

namespace convloom_sim {
namespace {

constexpr u32 kFullMask = 0xffffffffu;

struct Shuffle {
    u64 value, result;
    int source;  // lane; negative: the own value
};
void run_shuffle(Thread* warp, u32 lanes) {
    for (u32 left = lanes; left; left &= left - 1) {
        const u32 lane = lowest(left);
        Shuffle& mine = arguments_of<Shuffle>(warp, lane);
        if (mine.source >= 0 && !(lanes >> mine.source & 1))
            fail(&warp[lane], "%s at %s:%d reads lane %d, which takes no part", warp[lane].name,
                 warp[lane].file, warp[lane].line, mine.source);
        mine.result =
            mine.source < 0 ? mine.value : arguments_of<Shuffle>(warp, u32(mine.source)).value;
    }
}

struct Vote {
    int predicate;
    u32 result;
};
void run_vote(Thread* warp, u32 lanes) {
    u32 votes = 0;
    for (u32 left = lanes; left; left &= left - 1)
        if (arguments_of<Vote>(warp, lowest(left)).predicate) votes |= 1u << lowest(left);
    for (u32 left = lanes; left; left &= left - 1)
        arguments_of<Vote>(warp, lowest(left)).result = votes;
}

inline void require_all_lanes(Thread* warp, u32 lanes) {
    if (lanes != kFullMask)
        fail(warp, "%s at %s:%d needs all 32 lanes, it has %08x", warp[lowest(lanes)].name,
             warp[lowest(lanes)].file, warp[lowest(lanes)].line, lanes);
}

// Fails unless `nbytes` at `pointer` are shared memory of the block, aligned to `alignment`.
inline void require_shared(Thread* thread, const void* pointer, u32 nbytes, u32 alignment,
                           const char* name, const char* file, int line) {
    if (reinterpret_cast<u64>(pointer) % alignment != 0)
        fail(thread, "%s at %s:%d: address not aligned to %u bytes", name, file, line, alignment);
    if (!is_shared(thread->block, pointer, nbytes) || is_poisoned(pointer, nbytes))
        fail(thread, "%s at %s:%d: address outside shared memory", name, file, line);
}

struct LoadMatrix {
    const void* row;
    u32* registers;
    int count;
    bool transposed;
};
void run_ldmatrix(Thread* warp, u32 lanes) {
    require_all_lanes(warp, lanes);
    const LoadMatrix& common = arguments_of<LoadMatrix>(warp, 0);
    for (int matrix = 0; matrix < common.count; ++matrix) {
        const u16* rows[8];  // lane 8 * matrix + i gave the address of row i
        for (int i = 0; i < 8; ++i) {
            const u32 lane = u32(matrix * 8 + i);
            const void* row = arguments_of<LoadMatrix>(warp, lane).row;
            Thread* thread = &warp[lane];
            require_shared(thread, row, 16, 16, "ldmatrix", thread->file, thread->line);
            rows[i] = static_cast<const u16*>(row);
        }
        for (u32 lane = 0; lane < kWarp; ++lane) {
            const u32 major = lane / 4, minor = lane % 4 * 2;
            const u16* low = common.transposed ? &rows[minor][major] : &rows[major][minor];
            const u16* high = common.transposed ? &rows[minor + 1][major] : low + 1;
            touch(&warp[lane], low, 2, false);
            touch(&warp[lane], high, 2, false);
            arguments_of<LoadMatrix>(warp, lane).registers[matrix] = u32(*low) | u32(*high) << 16;
        }
    }
}

inline float as_float(u32 bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline float from_half(u32 bits) {
    const u32 sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(mantissa) * 0x1p-24f;
    if (exponent == 31) return as_float(sign | 0x7f800000u | mantissa << 13);
    return as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline float from_16_bits(int operand, u32 bits) {
    return operand == kBfloat16 ? as_float(bits << 16) : from_half(bits);
}

struct Product {
    int operand;
    float* d;
    const u32 *a, *b;
    const float* c;
};
void run_mma(Thread* warp, u32 lanes) {
    require_all_lanes(warp, lanes);
    const int operand = arguments_of<Product>(warp, 0).operand;
    float a[16][16], b[8][16];  // b by columns
    int depth = 16;
    for (u32 lane = 0; lane < kWarp; ++lane) {
        const Product& mine = arguments_of<Product>(warp, lane);
        const u32 group = lane / 4, place = lane % 4;
        if (operand == kTensorFloat32) {
            depth = 8;
            for (u32 i = 0; i < 4; ++i)  // the hardware ignores the low 13 bits
                a[group + (i & 1) * 8][place + (i >> 1) * 4] = as_float(mine.a[i] & 0xffffe000u);
            for (u32 i = 0; i < 2; ++i) b[group][place + i * 4] = as_float(mine.b[i] & 0xffffe000u);
            continue;
        }
        for (u32 i = 0; i < 8; ++i) {
            const u32 row = group + (i & 2 ? 8 : 0), column = place * 2 + (i & 1) + (i & 4 ? 8 : 0);
            a[row][column] = from_16_bits(operand, mine.a[i / 2] >> (i & 1) * 16 & 0xffffu);
        }
        for (u32 i = 0; i < 4; ++i)
            b[group][place * 2 + (i & 1) + (i & 2 ? 8 : 0)] =
                from_16_bits(operand, mine.b[i / 2] >> (i & 1) * 16 & 0xffffu);
    }
    for (u32 lane = 0; lane < kWarp; ++lane) {
        const Product& mine = arguments_of<Product>(warp, lane);
        float sums[4];
        for (u32 i = 0; i < 4; ++i) {
            const float* row = a[lane / 4 + (i >> 1) * 8];
            const float* column = b[lane % 4 * 2 + (i & 1)];
            float sum = 0;
            for (int k = 0; k < depth; ++k) sum += row[k] * column[k];
            sums[i] = mine.c[i] + sum;
        }
        memcpy(mine.d, sums, sizeof sums);
    }
}

template <class T>
void grow(T*& items, u32 count, u32& room) {
    if (count < room) return;
    room = room ? 2 * room : 16;
    items = static_cast<T*>(realloc(items, room * sizeof(T)));
}

void make_copy(Thread* thread, const Copy& copy) {
    char* target = static_cast<char*>(copy.target);
    memcpy(target, copy.source, copy.source_bytes);
    memset(target + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    touch(thread, target, copy.bytes, true);
}

// Remembers a copy; what it will overwrite is NaN from now until the wait.
void ask_copy(Thread* thread, Copies& copies, const Copy& copy, u32 align, const char* name,
              const char* file, int line) {
    require_shared(thread, copy.target, copy.bytes, align, name, file, line);
    if (copy.source_bytes > 0 && reinterpret_cast<u64>(copy.source) % align != 0)
        fail(thread, "%s at %s:%d: source not aligned to %u bytes", name, file, line, align);
    if (copy.source_bytes > 0 && is_poisoned(copy.source, copy.source_bytes))
        fail(thread, "%s at %s:%d: source outside the tensors of this step", name, file, line);
    touch(thread, copy.target, copy.bytes, true, false);
    memset(copy.target, 0xff, copy.bytes);
    grow(copies.items, copies.count, copies.room);
    copies.items[copies.count++] = copy;
}

// Makes the copies of all groups but the latest `pending`.
void make_copies(Thread* thread, u32 pending) {
    Copies& copies = thread->copies;
    if (copies.group_count <= pending) return;
    const u32 done = copies.groups[copies.group_count - pending - 1];
    for (u32 i = 0; i < done; ++i) make_copy(thread, copies.items[i]);
    copies.count -= done;
    memmove(copies.items, copies.items + done, copies.count * sizeof(Copy));
    const u32 closed = copies.group_count - pending;
    for (u32 g = 0; g < pending; ++g) copies.groups[g] = copies.groups[closed + g] - done;
    copies.group_count = pending;
}

}  // namespace
}  // namespace convloom_sim

#define CONVLOOM_SIM_API extern "C" __attribute__((visibility("default")))

CONVLOOM_SIM_API int convloom_sim_barrier(const char* name, int reduce, int predicate,
                                          const char* file, int line) {
    using namespace convloom_sim;
    Thread* self = current;
    Block* block = self->block;
    self->name = name;
    self->file = file;
    self->line = line;
    block->any |= predicate != 0;
    block->all &= predicate != 0;
    block->count += predicate != 0;
    wait_turn();
    if (reduce == kOr) return block->any_result;
    if (reduce == kAnd) return block->all_result;
    return block->count_result;
}

CONVLOOM_SIM_API void convloom_sim_cluster_barrier(const char* file, int line) {
    convloom_sim_barrier(convloom_sim::kClusterBarrier, convloom_sim::kNothing, 0, file, line);
}

CONVLOOM_SIM_API const void* convloom_sim_cluster_place(const void* own, int rank,
                                                        const char* file, int line) {
    using namespace convloom_sim;
    const Block* block = current->block;
    const u32 size = block->launch->cluster;
    const u8* place = static_cast<const u8*>(own);
    require_shared(current, own, 4, 4, "cluster_read", file, line);
    if (place < block->dynamic || place >= block->dynamic + block->launch->shared)
        fail(current, "cluster_read at %s:%d: address outside dynamic shared memory", file, line);
    if (rank < 0 || u32(rank) >= size)
        fail(current, "cluster_read at %s:%d: a cluster of %u has no block %d", file, line, size,
             rank);
    return dynamic_of[block->worker / size * size + u32(rank)] + (place - block->dynamic);
}

CONVLOOM_SIM_API void convloom_sim_warp_barrier(unsigned mask, const char* file, int line) {
    convloom_sim::meet("__syncwarp", mask, nullptr, nullptr, file, line);
}

CONVLOOM_SIM_API unsigned long long convloom_sim_shuffle(const char* name, unsigned mask,
                                                         unsigned long long value, int source,
                                                         const char* file, int line) {
    convloom_sim::Shuffle shuffle{value, 0, source};
    convloom_sim::meet(name, mask, &shuffle, convloom_sim::run_shuffle, file, line);
    return shuffle.result;
}

CONVLOOM_SIM_API unsigned convloom_sim_ballot(const char* name, unsigned mask, int predicate,
                                              const char* file, int line) {
    convloom_sim::Vote vote{predicate, 0};
    convloom_sim::meet(name, mask, &vote, convloom_sim::run_vote, file, line);
    return vote.result;
}

CONVLOOM_SIM_API int convloom_sim_lane() {
    return int(convloom_sim::current->linear % convloom_sim::kWarp);
}

CONVLOOM_SIM_API void convloom_sim_ldmatrix(unsigned* registers, const void* row, int count,
                                            bool transposed, const char* file, int line) {
    using namespace convloom_sim;
    LoadMatrix load{row, registers, count, transposed};
    meet("ldmatrix", kFullMask, &load, run_ldmatrix, file, line);
}

CONVLOOM_SIM_API void convloom_sim_mma(const char* name, int operand, float* d, const unsigned* a,
                                       const unsigned* b, const float* c, const char* file,
                                       int line) {
    using namespace convloom_sim;
    Product product{operand, d, a, b, c};
    meet(name, kFullMask, &product, run_mma, file, line);
}

CONVLOOM_SIM_API void convloom_sim_copy(void* target, const void* source, unsigned bytes,
                                        unsigned source_bytes, const char* file, int line) {
    using namespace convloom_sim;
    ask_copy(current, current->copies, {target, source, bytes, source_bytes, nullptr}, bytes,
             "cp.async", file, line);
}

CONVLOOM_SIM_API void convloom_sim_copy_commit() {
    using namespace convloom_sim;
    Copies& copies = current->copies;
    grow(copies.groups, copies.group_count, copies.group_room);
    copies.groups[copies.group_count++] = copies.count;
}

CONVLOOM_SIM_API void convloom_sim_copy_wait(unsigned pending) {
    convloom_sim::make_copies(convloom_sim::current, pending);
}

CONVLOOM_SIM_API void convloom_sim_bulk(const void* barrier, void* target, const void* source,
                                        unsigned bytes, const char* file, int line) {
    using namespace convloom_sim;
    if (bytes == 0 || bytes % 16 != 0)
        fail(current, "cp.async.bulk at %s:%d: %u bytes are no multiple of 16", file, line, bytes);
    ask_copy(current, current->bulks, {target, source, bytes, bytes, barrier}, 16, "cp.async.bulk",
             file, line);
}

CONVLOOM_SIM_API void convloom_sim_bulk_wait(const void* barrier) {
    using namespace convloom_sim;
    Copies& bulks = current->bulks;
    u32 left = 0;
    for (u32 i = 0; i < bulks.count; ++i) {
        const Copy copy = bulks.items[i];
        if (copy.barrier == barrier)
            make_copy(current, copy);
        else
            bulks.items[left++] = copy;
    }
    bulks.count = left;
}
