// Logits of the images that a block carries, their cross-entropy, rank of the label, and gradient.
//
// Lanes take classes. All is float32. Targets are class indices: t is 1 -
// smoothing for the label, and smoothing / K more for every class.
#pragma once

#include "device/loss.cuh"
#include "device/reduce.cuh"
#include "device/topk.cuh"
#include "onchip/kit.cuh"
#include "onchip/source.cuh"
#include "onchip/strip.cuh"

template <class P>
struct Loss {
    static constexpr int LAST = int(P::LINEARS) - 1;
    using Layer = typename Kit<P>::template Layer<LAST>;
    using Linear = typename Layer::Linear;
    static constexpr int EACH = (Linear::O + 31) / 32;

    // What the whole batch has of it. `scale` is what gradients are multiplied by.
    struct Batch {
        Source<P> source;
        f32 scale, smoothing;
        f32 *logits, *losses;
        i32* ranks;
        i64 n;

        // The label of the image that this warp will take, asked for early.
        __device__ __forceinline__ i64 label(const Samples<P>& samples) const {
            return P::MODE == 0 ? 0 : source.label(samples[threadIdx.x / 32 % int(P::IMAGES)]);
        }
    };

    __device__ __forceinline__ static f32 warp_top(f32 value) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            value = greater_or_nan(value, __shfl_xor_sync(0xffffffffu, value, distance));
        return value;
    }

    // Two warps take an image: one its gradient, on which all others wait, one the rest.
    __device__ static void run(Bytes* shared, const f32* bias, const Batch& batch, i64 first,
                               i64 label) {
        static_assert(int(P::IMAGES) * 64 <= int(P::THREADS));
        const int lane = fresh_lane(), warp = threadIdx.x / 32, image = warp % int(P::IMAGES);
        const bool derives = warp < int(P::IMAGES);
        if (warp >= 2 * int(P::IMAGES) || (!derives && !leads<P>())) return;
        const i64 sample = first + image;
        const bool there = sample < batch.n;
        f32 logit[EACH], top = -__int_as_float(0x7f800000);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + 32 * e;
            logit[e] = k < Linear::O ? Layer::output(shared, bias, image, k) : 0.0f;
            if (k < Linear::O) top = greater_or_nan(top, logit[e]);
            if (!derives && there && k < Linear::O) batch.logits[sample * Linear::O + k] = logit[e];
        }
        if constexpr (P::MODE == 0) return;
        top = warp_top(top);
        f32 share[EACH], sum = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            share[e] = lane + 32 * e < Linear::O ? expf(logit[e] - top) : 0.0f;
            sum += share[e];
        }
        sum = warp_sum(sum);
        const f32 kept = 1.0f - batch.smoothing, spread = batch.smoothing / f32(Linear::O);
        if (derives) {
            if constexpr (P::MODE != 2) return;
            const f32 each = 1.0f / sum;
            for (int k = lane; k < Linear::OUT; k += 32) {
                f32 gradient = 0.0f;
#pragma unroll
                for (int e = 0; e < EACH; ++e)
                    if (k == lane + 32 * e && k < Linear::O && there)
                        gradient = (share[e] * each - (k == label ? kept : 0.0f) - spread) *
                                   batch.scale;
                Layer::put_gradient(region<P>(shared, image), k, gradient);
            }
            return;
        }
        const bool lost = label < 0 || label >= Linear::O;
        const int own_lane = lost ? 0 : int(label) % 32, own_part = lost ? 0 : int(label) / 32;
        f32 own = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (own_part == e) own = __shfl_sync(0xffffffffu, logit[e], own_lane);
        f32 loss = kept * (logf(sum) - (own - top)), others = 0.0f;
        i32 rank = 0;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + 32 * e;
            if (k >= Linear::O) continue;
            others += logf(sum) - (logit[e] - top);
            rank += ranks_before(logit[e], k, own, label);
        }
        if (batch.smoothing != 0.0f) loss += spread * warp_sum(others);
        rank = warp_sum(rank);
        if (lane != 0 || !there) return;
        batch.losses[sample] = lost ? nanf("") : loss;
        batch.ranks[sample] = lost || own != own ? Linear::O : rank;
    }
};
