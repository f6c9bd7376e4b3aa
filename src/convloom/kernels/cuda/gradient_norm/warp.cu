// partial[block] = sum of squares of CHUNK elements of one gradient, in float64
//
// Up to eight gradients a launch; a block takes CHUNK elements of one: neighbouring threads
// neighbouring elements, added by shuffles. gradient_norm_root adds the blocks' sums.
// Against naive: loads are neighbours, and one launch does for eight.
// Limit: 4 bytes of memory traffic an element.
#include "device/reduce.cuh"
#include "device/segments.cuh"

template <class P>
__global__ void gradient_norm_warp(f64* partial, const f32* g0, i64 size0, const f32* g1,
                                   i64 size1, const f32* g2, i64 size2, const f32* g3, i64 size3,
                                   const f32* g4, i64 size4, const f32* g5, i64 size5,
                                   const f32* g6, i64 size6, const f32* g7, i64 size7) {
    i64 block = blockIdx.x;
    f64 sum = 0.0;
    const auto add = [&](const f32* g, i64 size) {
        const Share share = share_of<P::CHUNK>(block, size);
        if (!share.mine) return;
        for (i64 i = share.first + threadIdx.x; i < share.last; i += P::THREADS)
            sum += f64(g[i]) * f64(g[i]);
    };
    add(g0, size0);
    add(g1, size1);
    add(g2, size2);
    add(g3, size3);
    add(g4, size4);
    add(g5, size5);
    add(g6, size6);
    add(g7, size7);
    sum = block_sum<P::THREADS>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}
