// The gradients of all parameters of a network that onchip/step.cu carried through, their update,
// and loss and right answers of the batch.
//
// Blocks have four tasks. A filter's gradient: 32 CONV_EACH elements of the slabs a block, whose warps
// share the slabs. A fully connected weight: onchip/linear_wgrad.cuh. The last block sums
// losses and counts ranks. All sums have a fixed order. RULE is 0: gradients alone; 1: SGD; 2: AdamW,
// in place, and the packed weights are kept new. Limit: reading slabs and features once.
#include "onchip/reduction.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    onchip_reduce(const f32* slab, const u8* kept, const f32* losses, const i32* ranks, f32* loss,
                  i32* correct, const f64* hyper, u8* packed, i64 slabs, i64 n, ONCHIP_PARAMETER(0),
                  ONCHIP_PARAMETER(1), ONCHIP_PARAMETER(2), ONCHIP_PARAMETER(3),
                  ONCHIP_PARAMETER(4), ONCHIP_PARAMETER(5), ONCHIP_PARAMETER(6),
                  ONCHIP_PARAMETER(7), ONCHIP_PARAMETER(8), ONCHIP_PARAMETER(9),
                  ONCHIP_PARAMETER(10), ONCHIP_PARAMETER(11), const f64* rates, f64* own_hyper,
                  u64* counter, u64* clock, f32* all_losses, i32* all_corrects, i64 place) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) unsigned char smem_raw[];
    if (P::CHAINED != 0 && place == 0) await_before();  // the step before it leaves the row
    const Reported reported{losses, ranks, loss, correct, rates, own_hyper, counter, clock,
                            place, all_losses, all_corrects};
    const i64 row = reported.row<P>();
    const Reduction<P> work{
        slab, kept, reported.hyper<P>(hyper, row), slabs, n,
        {ONCHIP_GIVEN(0), ONCHIP_GIVEN(1), ONCHIP_GIVEN(2), ONCHIP_GIVEN(3), ONCHIP_GIVEN(4),
         ONCHIP_GIVEN(5), ONCHIP_GIVEN(6), ONCHIP_GIVEN(7), ONCHIP_GIVEN(8), ONCHIP_GIVEN(9),
         ONCHIP_GIVEN(10), ONCHIP_GIVEN(11)},
        packed, smem_raw};
    reduce<P>(work, reported, row, blockIdx.x);
#endif
}
