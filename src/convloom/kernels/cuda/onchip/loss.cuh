// Logits of the images that a block carries, their cross-entropy, rank of the label, and gradient.
//
// A warp takes an image; its lanes take classes. Exponentials are float32, the loss is float64.
// Target are class indices.
#pragma once

#include "device/loss.cuh"
#include "device/reduce.cuh"
#include "device/topk.cuh"
#include "onchip/linear.cuh"

template <class P>
struct Loss {
    static constexpr int LAST = int(P::LINEARS) - 1;
    using Layer = LinearLayer<P, LAST>;
    using Linear = typename Layer::Linear;
    struct Classes {
        static constexpr i64 K = Linear::O, PROBABILITY = 0;
    };
    static constexpr int EACH = (Linear::O + 31) / 32;

    // What the whole batch has of it.
    struct Batch {
        const i64* target;
        const f32* dloss;
        f32 smoothing;
        f32* logits;
        f64* losses;
        i32* ranks;
        i64 n;
    };

    __device__ __forceinline__ static f32 warp_top(f32 value) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            value = greater_or_nan(value, __shfl_xor_sync(0xffffffffu, value, distance));
        return value;
    }

    __device__ static void run(Bytes* shared, const f32* bias, const Batch& batch, i64 first) {
        for (int image = threadIdx.x / 32; image < int(P::IMAGES); image += int(P::THREADS) / 32)
            one(shared, bias, batch, image, first + image);
    }

    __device__ __forceinline__ static void one(Bytes* shared, const f32* bias, const Batch& batch,
                                               int image, i64 sample) {
        const int lane = fresh_lane();
        const bool there = sample < batch.n;
        f32 logit[EACH], top = -__int_as_float(0x7f800000);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + 32 * e;
            logit[e] = k < Linear::O ? Layer::output(shared, bias, image, k) : 0.0f;
            if (k < Linear::O) top = greater_or_nan(top, logit[e]);
            if (there && k < Linear::O) batch.logits[sample * Linear::O + k] = logit[e];
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
        const i64 row = least(sample, batch.n - 1);
        if constexpr (P::MODE == 2) {
            const f32 scale = *batch.dloss / f32(batch.n);
            for (int k = lane; k < Linear::OUT; k += 32) {
                f32 gradient = 0.0f;
#pragma unroll
                for (int e = 0; e < EACH; ++e)
                    if (k == lane + 32 * e && k < Linear::O && there)
                        gradient = (share[e] / sum - target_weight<Classes>(batch.target, row, k,
                                                                            batch.smoothing)) *
                                   scale;
                at<Bf16>(region<P>(shared, image) + Linear::DY + 2 * k) = bf16_of(gradient);
            }
        }
        f64 loss = 0.0;
        i32 rank = 0;
        const i64 label = batch.target[row];
        const bool lost = lost_label<Classes>(batch.target, row);
        const int own_lane = lost ? 0 : int(label % 32), own_part = lost ? 0 : int(label / 32);
        f32 own = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (own_part == e) own = __shfl_sync(0xffffffffu, logit[e], own_lane);
        const f64 log_sum = f64(logf(sum));
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int k = lane + 32 * e;
            if (k >= Linear::O) continue;
            const f64 t = exact_weight<Classes>(batch.target, row, k, batch.smoothing);
            if (t != 0.0) loss -= t * (f64(logit[e]) - f64(top) - log_sum);
            rank += ranks_before(logit[e], k, own, label);
        }
        loss = warp_sum(loss);
        rank = warp_sum(rank);
        if (lane != 0 || !there) return;
        batch.losses[sample] = lost ? nan("") : loss;
        batch.ranks[sample] = lost || own != own ? Linear::O : rank;
    }
};
