// onchip/step.cu for many networks of one kind (onchip/member.cuh), each with its own weights, seed
// and order of the same data set.
//
// Alone, such a network has `blocks` blocks, each with sums of its own. Here it has `parts` blocks,
// which make the same sums one after the other, and load the weights once for all of them: so its
// bits are those that it has alone, however many blocks share its work. Sums are added up where
// weights or maps lie, which are made good before the next image.
// Against step: many networks fill the device, with few images each. Limit: reads of shared memory,
// and barriers between the stages.
#include "onchip/member.cuh"
#include "onchip/network.cuh"

template <class P>
__global__ void __launch_bounds__(P::THREADS, 1)
    onchip_many_step(const f32* x, const i64* target, const u64* counter, const f32* dloss,
                     const f32* p0, const f32* p1, const f32* p2, const f32* p3, const f32* p4,
                     const f32* p5, const f32* p6, const f32* p7, const f32* p8, const f32* p9,
                     const f32* p10, const f32* p11, const u8* packed, f32* slab, u8* kept,
                     f32* losses, i32* ranks, f32* logits, f32 smoothing, i64 n,
                     const void* images, const i64* labels, const f32* scales, const f32* shifts,
                     const i64* order, const u8* draws, u64* clock, i64 place, i64 blocks,
                     i64 parts, i64 stride) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) unsigned char smem_raw[];
    const Member own(parts, stride);
    if (own(clock)[LEFT] != 0) return;
    const Given given{own(x), own(target), own(counter), own(dloss),
                      {own(p0), own(p1), own(p2), own(p3), own(p4), own(p5), own(p6), own(p7),
                       own(p8), own(p9), own(p10), own(p11)},
                      own(packed), own(slab), own(kept), own(losses), own(ranks), own(logits),
                      smoothing, n,
                      {images, labels, scales, shifts, own(order), own(draws), own(clock), place}};
    carry<P>(given, SeveralTurns<P>(own.block, blocks, parts, n), own.block == 0, smem_raw);
#endif
}
