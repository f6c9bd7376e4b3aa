// Host twins of device/ptx.cuh, with the same names and arguments.
//
// Where each lane's elements lie: PTX ISA, "Warp-level matrix instructions": ldmatrix, "Matrix
// fragments for mma.m16n8k16 with floating point type", and "mma.m16n8k8" (.tf32). The sums of mma
// are taken in another order than on a GPU, whose order is not documented: exact on small integers
// only. A copy by cp.async is made when it is waited for and its target is NaN until then, so that
// a missing wait shows.
#pragma once

#define CONVLOOM_SIM_LDMATRIX(COUNT, SUFFIX, TRANSPOSED)                                       \
    inline void ldmatrix_x##COUNT##SUFFIX(unsigned (&r)[COUNT], const void* row,               \
                                          CONVLOOM_SIM_SITE) {                                 \
        convloom_sim_ldmatrix(r, row, COUNT, TRANSPOSED, file, line);                          \
    }
CONVLOOM_SIM_LDMATRIX(1, , false)
CONVLOOM_SIM_LDMATRIX(2, , false)
CONVLOOM_SIM_LDMATRIX(4, , false)
CONVLOOM_SIM_LDMATRIX(1, _trans, true)
CONVLOOM_SIM_LDMATRIX(2, _trans, true)
CONVLOOM_SIM_LDMATRIX(4, _trans, true)

#define CONVLOOM_SIM_MMA(NAME, OPERAND)                                                        \
    inline void NAME(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],            \
                     const float (&c)[4], CONVLOOM_SIM_SITE) {                                 \
        convloom_sim_mma(#NAME, convloom_sim::OPERAND, d, a, b, c, file, line);                \
    }
CONVLOOM_SIM_MMA(mma_m16n8k16_bf16, kBfloat16)
CONVLOOM_SIM_MMA(mma_m16n8k16_f16, kFloat16)
CONVLOOM_SIM_MMA(mma_m16n8k8_tf32, kTensorFloat32)

// Nearest, ties away from zero, as cvt.rna does.
inline unsigned cvt_tf32(float x) {
    return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
}

// See device/cluster.cuh.
inline void cluster_barrier(CONVLOOM_SIM_SITE) { convloom_sim_cluster_barrier(file, line); }
// The whole barrier is at its second half.
inline void cluster_arrive() {}
inline void cluster_wait(CONVLOOM_SIM_SITE) { convloom_sim_cluster_barrier(file, line); }
inline float cluster_read(const float* own, int rank, int i = 0, CONVLOOM_SIM_SITE) {
    return *static_cast<const float*>(convloom_sim_cluster_place(own + i, rank, file, line));
}

// See device/bulk.cuh. A copy is made when its barrier is waited for.
inline void bulk_open(unsigned long long*) {}
inline void bulk_opened() {}
inline void bulk_copy(unsigned long long* barrier, void* target, const void* source, int nbytes,
                      CONVLOOM_SIM_SITE) {
    convloom_sim_bulk(barrier, target, source, unsigned(nbytes), file, line);
}
inline void bulk_close(unsigned long long*) {}
inline void bulk_wait(unsigned long long* barrier) { convloom_sim_bulk_wait(barrier); }

inline int fresh_lane() { return convloom_sim_lane(); }

inline unsigned convloom_sim_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline unsigned cvt_bf16x2(float low, float high) {
    return convloom_sim_bf16(low) | convloom_sim_bf16(high) << 16;
}

inline float choose(int first, float a, float b) { return first != 0 ? a : b; }

inline unsigned prmt(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)(b) << 32 | a;
    unsigned picked = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i & 15u;
        const unsigned byte = unsigned(bytes >> 8 * (digit % 8)) & 255u;
        picked |= (digit < 8 ? byte : byte >> 7 != 0 ? 255u : 0u) << 8 * i;
    }
    return picked;
}

inline void store_float4(float* to, float x, float y, float z, float w) {
    *reinterpret_cast<float4*>(to) = make_float4(x, y, z, w);
}

inline void store_float4(float* to, const float4& four) {
    *reinterpret_cast<float4*>(to) = four;
}

inline float max_nan(float a, float b) { return b > a || b != b ? b : a; }

inline void cp_async_4(void* target, const void* source, CONVLOOM_SIM_SITE) {
    convloom_sim_copy(target, source, 4, 4, file, line);
}
inline void cp_async_16(void* target, const void* source, CONVLOOM_SIM_SITE) {
    convloom_sim_copy(target, source, 16, 16, file, line);
}
inline void cp_async_4_zfill(void* target, const void* source, bool read, CONVLOOM_SIM_SITE) {
    convloom_sim_copy(target, source, 4, read ? 4 : 0, file, line);
}
inline void cp_async_16_zfill(void* target, const void* source, bool read, CONVLOOM_SIM_SITE) {
    convloom_sim_copy(target, source, 16, read ? 16 : 0, file, line);
}
inline void cp_async_commit() { convloom_sim_copy_commit(); }
template <int PENDING>
void cp_async_wait() {
    convloom_sim_copy_wait(PENDING);
}
inline void cp_async_wait_all() {
    convloom_sim_copy_commit();
    convloom_sim_copy_wait(0);
}
