// What the runtime library offers to kernels. Everything that fibers do together is behind these
// functions, compiled once (runtime.cpp); the headers of the kernels' side wrap them.
#pragma once

// Where in the kernel a call stands: default arguments take the caller's place, not this file's.
#define CONVLOOM_SIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace convloom_sim {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// What a barrier computes of its threads' predicates.
enum Reduce : int { kNothing, kOr, kAnd, kCount };

// Element types of a matrix instruction's operands.
enum Operand : int { kBfloat16, kFloat16, kTensorFloat32 };

}  // namespace convloom_sim

extern "C" {

// __syncthreads and its relatives, called `name`. Returns what `reduce` says of all predicates.
int convloom_sim_barrier(const char* name, int reduce, int predicate, const char* file, int line);

// A barrier for all threads of all blocks of the cluster.
void convloom_sim_cluster_barrier(const char* file, int line);

// Where what lies at `own`, 4 bytes of dynamic shared memory, lies in block `rank` of the cluster.
const void* convloom_sim_cluster_place(const void* own, int rank, const char* file, int line);

// __syncwarp: the lanes of `mask` wait for each other.
void convloom_sim_warp_barrier(unsigned mask, const char* file, int line);

// The value of lane `source`; the own one where `source` is negative.
unsigned long long convloom_sim_shuffle(const char* name, unsigned mask, unsigned long long value,
                                        int source, const char* file, int line);

// A bit for each lane of `mask` whose predicate holds.
unsigned convloom_sim_ballot(const char* name, unsigned mask, int predicate, const char* file,
                             int line);

// Index of the calling thread in its warp.
int convloom_sim_lane();

// ldmatrix of `count` matrices: see tensor.h.
void convloom_sim_ldmatrix(unsigned* registers, const void* row, int count, bool transposed,
                           const char* file, int line);

// mma of one warp: see tensor.h.
void convloom_sim_mma(const char* name, int operand, float* d, const unsigned* a, const unsigned* b,
                      const float* c, const char* file, int line);

// cp.async of `bytes`, of which `source_bytes` are read and the others are zero.
void convloom_sim_copy(void* target, const void* source, unsigned bytes, unsigned source_bytes,
                       const char* file, int line);
void convloom_sim_copy_commit();
void convloom_sim_copy_wait(unsigned pending);

// cp.async.bulk whose end `barrier` tells; the thread that asked for it waits.
void convloom_sim_bulk(const void* barrier, void* target, const void* source, unsigned bytes,
                       const char* file, int line);
void convloom_sim_bulk_wait(const void* barrier);

}  // extern "C"
