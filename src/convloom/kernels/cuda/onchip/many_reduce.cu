// onchip/reduce.cu for many networks of one kind (onchip/member.cuh).
//
// Each has `blocks` blocks, with the tasks that they have there. A step's losses and right answers
// of all `members` make one row. Limit: reading slabs and features once.
#include "onchip/member.cuh"
#include "onchip/reduction.cuh"

template <class P>
__global__ void __launch_bounds__(256)
    onchip_many_reduce(const f32* slab, const u8* kept, const f32* losses, const i32* ranks,
                       f32* loss, i32* correct, const f64* hyper, u8* packed, i64 slabs, i64 n,
                       ONCHIP_PARAMETER(0), ONCHIP_PARAMETER(1), ONCHIP_PARAMETER(2),
                       ONCHIP_PARAMETER(3), ONCHIP_PARAMETER(4), ONCHIP_PARAMETER(5),
                       ONCHIP_PARAMETER(6), ONCHIP_PARAMETER(7), ONCHIP_PARAMETER(8),
                       ONCHIP_PARAMETER(9), ONCHIP_PARAMETER(10), ONCHIP_PARAMETER(11),
                       const f64* rates, f64* own_hyper, u64* counter, u64* clock, f32* all_losses,
                       i32* all_corrects, i64 place, i64 blocks, i64 members, i64 stride) {
#if defined(CONVLOOM_SIM) || __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) unsigned char smem_raw[];
    const Member own(blocks, stride);
    if (own(clock)[LEFT] != 0) return;
    const Reported reported{own(losses), own(ranks), own(loss), own(correct), own(rates),
                            own(own_hyper), own(counter), own(clock), place, all_losses,
                            all_corrects, members, own.number};
    const i64 row = reported.row<P>();
    const Reduction<P> work{
        own(slab), own(kept), reported.hyper<P>(hyper, row), slabs, n,
        {ONCHIP_OWN(0), ONCHIP_OWN(1), ONCHIP_OWN(2), ONCHIP_OWN(3), ONCHIP_OWN(4), ONCHIP_OWN(5),
         ONCHIP_OWN(6), ONCHIP_OWN(7), ONCHIP_OWN(8), ONCHIP_OWN(9), ONCHIP_OWN(10),
         ONCHIP_OWN(11)},
        own(packed), smem_raw};
    reduce<P>(work, reported, row, own.block);
#endif
}
