// A whole small network on chip: a block carries IMAGES images at a time through forward pass, loss
// and backward pass in its shared memory, and writes what the parameters' gradients are made of:
// sums of its filters' gradients (conv_wgrad.cuh), and for each image the features and output
// gradients of the fully connected layers. onchip/reduce.cu does the rest.
//
// MODE is 0: logits; 1: loss and ranks too; 2: gradients too. A parameter's number is its place
// among p0 to p11. Operands of products are bfloat16 or, if TF32, tf32; sums and everything else are
// float32; if EXACT all is float32.
// Against the rungs below: between the first pixel and the gradients nothing of an image passes
// through device memory. Limit: reads of shared memory, and barriers between the stages.
#include "onchip/network.cuh"

template <class P>
__global__ void __launch_bounds__(P::THREADS, 1)
    onchip_step(const f32* x, const i64* target, const u64* counter, const f32* dloss,
                const f32* p0, const f32* p1, const f32* p2, const f32* p3, const f32* p4,
                const f32* p5, const f32* p6, const f32* p7, const f32* p8, const f32* p9,
                const f32* p10, const f32* p11, const u8* packed, f32* slab, u8* kept, f32* losses,
                i32* ranks, f32* logits, f32 smoothing, i64 n, const void* images,
                const i64* labels, const f32* scales, const f32* shifts, const i64* order,
                const u8* draws, u64* clock, i64 place) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) unsigned char smem_raw[];
    const Given given{x, target, counter, dloss,
                      {p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11},
                      packed, slab, kept, losses, ranks, logits, smoothing, n,
                      {images, labels, scales, shifts, order, draws, clock, place}};
    carry<P>(given, EveryTurn<P>(n), blockIdx.x == 0, smem_raw);
#endif
}
