// Logits of the images that a block carries, their cross-entropy, rank of the label, and gradient.
//
// Lanes take classes, the next power of two of them; where that leaves lanes over, these have the
// same classes again. All is float32. Targets are class indices: t is 1 - smoothing for the label,
// and smoothing / K more for every class.
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
    static constexpr int O = Linear::O, IMAGES = int(P::IMAGES), WARPS = int(P::THREADS) / 32;
    static constexpr int LANES = row_lanes(O), EACH = (O + LANES - 1) / LANES;

    // What the whole batch has of it. `scale` is what gradients are multiplied by.
    struct Batch {
        Source<P> source;
        f32 scale, smoothing;
        f32 *logits, *losses;
        i32* ranks;
        i64 n;

        // The label of the image that this warp will take, asked for early.
        __device__ __forceinline__ i64 label(const Samples<P>& samples) const {
            return P::MODE == 0 ? 0 : source.label(samples[image()]);
        }
    };

    // The first warps derive, each an image's gradient, on which all others wait. The last tell the
    // rest; that may be later, as nothing waits for it. Both begin with the logits.
    static_assert(WARPS >= 2 * IMAGES);
    __device__ __forceinline__ static int warp() { return threadIdx.x / 32; }
    __device__ __forceinline__ static bool derives() { return P::MODE == 2 && warp() < IMAGES; }
    __device__ __forceinline__ static bool tells() {
        return warp() >= WARPS - IMAGES && leads<P>();
    }
    __device__ __forceinline__ static int image() {
        return IMAGES == 1 ? 0 : warp() < IMAGES ? warp() : greatest(warp() - (WARPS - IMAGES), 0);
    }
    // Whether they may be told later: where that keeps few registers busy.
    static constexpr bool LATER = P::MODE == 2 && EACH <= 2;

    // Class lane % LANES + LANES * e.
    __device__ __forceinline__ static int class_of(u32 lane, int e) {
        return int(lane % LANES) + LANES * e;
    }

    // Of a warp's image: its logits, as lanes have them, and its label, or -1 if that is no class.
    struct Image {
        f32 logit[EACH];
        int label;

        __device__ __forceinline__ Image(const Bytes* shared, const f32* bias, i64 label)
            : label(label >= 0 && label < O ? int(label) : -1) {
            if (!derives() && !tells()) return;
            const u32 lane = fresh_lane();
            f32 offset[EACH];
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                offset[e] = Linear::BIAS && class_of(lane, e) < O ? bias[class_of(lane, e)] : 0.0f;
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                // Lanes of the same class each add up a part of the sums.
                const int k = class_of(lane, e) < O ? class_of(lane, e) : O - 1;
                const f32 part = Layer::template part<32 / LANES>(shared, image(), k, lane / LANES);
                logit[e] = lanes_sum<LANES, 16>(part) + offset[e];
            }
        }
    };

    // exp(logit - top), their sum, and the greatest logit, or NaN if one is.
    struct Shares {
        f32 of[EACH], sum = 0.0f, top = -__int_as_float(0x7f800000);

        __device__ __forceinline__ Shares(const Image& image, u32 lane) {
#pragma unroll
            for (int e = 0; e < EACH; ++e)
                if (class_of(lane, e) < O) top = max_nan(top, image.logit[e]);
            top = lanes_combined<LANES>(top, [](f32 a, f32 b) { return max_nan(a, b); });
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                of[e] = class_of(lane, e) < O ? expf(image.logit[e] - top) : 0.0f;
                sum += of[e];
            }
            sum = total(sum);
        }
    };
    __device__ __forceinline__ static f32 total(f32 part) {
        return lanes_combined<LANES>(part, [](f32 a, f32 b) { return a + b; });
    }

    // The gradient of the logits.
    __device__ __forceinline__ static void derive(Bytes* shared, const Image& image,
                                                  const Batch& batch, i64 first) {
        if (!derives()) return;
        const u32 lane = fresh_lane();
        const Shares share(image, lane);
        const bool there = IMAGES == 1 || first + Loss::image() < batch.n;
        const f32 kept = 1.0f - batch.smoothing, spread = batch.smoothing / f32(O);
        const f32 each = 1.0f / share.sum;
#pragma unroll
        for (int e = 0; e < (Linear::OUT + 31) / 32; ++e) {
            const int k = int(lane) + 32 * e;
            f32 gradient = 0.0f;
            if (e < EACH && k < O && there)
                gradient = (share.of[e < EACH ? e : 0] * each - (k == image.label ? kept : 0.0f) -
                            spread) *
                           batch.scale;
            if (k < Linear::OUT)
                Layer::put_gradient(region<P>(shared, Loss::image()), k, gradient);
        }
    }

    // Logits, loss and rank.
    __device__ static void tell(const Image& image, const Batch& batch, i64 first) {
        if (!tells()) return;
        const i64 sample = first + Loss::image();
        if (IMAGES > 1 && sample >= batch.n) return;
        const u32 lane = fresh_lane();
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (lane < LANES && class_of(lane, e) < O)
                batch.logits[sample * O + class_of(lane, e)] = image.logit[e];
        if constexpr (P::MODE == 0) return;
        const Shares share(image, lane);
        const f32 all = logf(share.sum), kept = 1.0f - batch.smoothing;
        const bool lost = image.label < 0;
        const int own_lane = lost ? 0 : image.label % LANES, own_part = image.label / LANES;
        f32 own = 0.0f, others = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const f32 seen = __shfl_sync(0xffffffffu, image.logit[e], own_lane);
            if (own_part == e) own = seen;
        }
        i32 rank = 0;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int k = class_of(lane, e);
            if (k < O) others += all - (image.logit[e] - share.top);
            const bool before = ranks_before(image.logit[e], k, own, image.label);
            rank += __popc(__ballot_sync(0xffffffffu, lane < LANES && k < O && before));
        }
        f32 loss = kept * (all - (own - share.top));
        if (batch.smoothing != 0.0f) loss += batch.smoothing / f32(O) * total(others);
        if (lane != 0) return;
        batch.losses[sample] = lost ? nanf("") : loss;
        batch.ranks[sample] = lost || own != own ? O : rank;
    }
};
