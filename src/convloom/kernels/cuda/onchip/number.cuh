// What operands of products are kept as: bfloat16, two in a word, the lower element first; or tf32,
// a float32 rounded. Both fill 16 bytes with neighbouring channels, so ldmatrix serves both.
//
// A format says how many BYTES an operand takes, how many CHANNELS lie in 16 bytes, the DEPTH of
// an mma (16 or 8 products: two of those), and where lanes have their part of its fragments: PTX
// ISA, "Matrix fragments for mma.m16n8k16" and "mma.m16n8k8". Sums are the same in both.
#pragma once

#include "device/ptx.cuh"
#include "device/types.cuh"

using Bytes = u8;
using Bf16 = unsigned short;

__device__ __forceinline__ f32 bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ f32 bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ Bf16 bf16_of(f32 x) { return Bf16(cvt_bf16x2(x, 0.0f) & 0xffffu); }

// A word or more of shared memory.
template <class Word>
__device__ __forceinline__ Word& at(Bytes* place) {
    return *reinterpret_cast<Word*>(place);
}
template <class Word>
__device__ __forceinline__ const Word& at(const Bytes* place) {
    return *reinterpret_cast<const Word*>(place);
}

template <bool FIRST, class A, class B>
struct Pick {
    using Type = A;
};
template <class A, class B>
struct Pick<false, A, B> {
    using Type = B;
};

struct Bfloat16 {
    static constexpr int BYTES = 2, CHANNELS = 8, DEPTH = 16;
    using Number = Bf16;
    using Pair = u32;  // two neighbouring channels
    static constexpr u32 ONES = 0x3f803f80u;

    __device__ __forceinline__ static Number of(f32 x) { return bf16_of(x); }
    __device__ __forceinline__ static Pair pair(f32 even, f32 odd) {
        return cvt_bf16x2(even, odd);
    }
    __device__ __forceinline__ static f32 even(Pair pair) { return bf16_low(pair); }
    __device__ __forceinline__ static f32 odd(Pair pair) { return bf16_high(pair); }
    __device__ __forceinline__ static Pair chosen(Pair pair, bool even, bool odd) {
        return (even ? pair & 0xffffu : 0u) | (odd ? pair & 0xffff0000u : 0u);
    }
    // The elements that have a sign: those of a word's bytes 0 and 1, or of its upper half's.
    __device__ __forceinline__ static Pair signed_ones(Pair pair, u32 signs, bool upper) {
        return pair & prmt(signs, 0, upper ? 0xbbaau : 0x9988u);
    }
    // The gradient that passes a rectifier that made `y`, which has no signs.
    __device__ __forceinline__ static Pair passed(Pair pair, Pair y) {
        return pair & prmt(y + 0x7fff7fffu, 0, 0xbb99u);
    }
    // The same of two bytes.
    __device__ __forceinline__ static u32 passed_bytes(u32 two, Pair y) {
        return two & prmt(y + 0x7fff7fffu, 0, 0xb9u);
    }
    // 16 bytes.
    __device__ __forceinline__ static uint4 vector(const f32 (&x)[CHANNELS]) {
        return make_uint4(pair(x[0], x[1]), pair(x[2], x[3]), pair(x[4], x[5]), pair(x[6], x[7]));
    }
    __device__ __forceinline__ static void multiply(f32 (&sum)[4], const u32 (&a)[4],
                                                    const u32 (&b)[2]) {
        mma_m16n8k16_bf16(sum, a, b, sum);
    }

    // A lane has DEPTH / 4 products of a row (a column of B), in two words; the i-th of them.
    __device__ __forceinline__ static int product(int lane, int i) {
        return lane % 4 * 2 + i % 2 + i / 2 * 8;
    }
    __device__ __forceinline__ static uint2 fragment(const f32 (&x)[DEPTH / 4]) {
        return make_uint2(pair(x[0], x[1]), pair(x[2], x[3]));
    }
    // A word of a fragment, gathered from where its products lie.
    __device__ __forceinline__ static u32 gathered(const Bytes* first, const Bytes* second) {
        return at<Number>(first) | u32(at<Number>(second)) << 16;
    }
    // Where product `e` lies in what the lanes of a column have, 8 bytes each.
    __device__ __forceinline__ static int byte(int e) {
        return e % 8 / 2 * 8 + e / 8 * 4 + e % 2 * 2;
    }
    // A tile's lane has sums of two neighbouring columns: the plane that they go to, counted from
    // the tile's first, and the byte in its pixel.
    __device__ __forceinline__ static int plane(int) { return 0; }
    __device__ __forceinline__ static int byte_in_pixel(int lane) { return lane % 4 * 4; }
    // Which column of a tile of filters is row `half * 8 + group` of its gradient's.
    __device__ __forceinline__ static int filter(int half, int group) { return half * 8 + group; }
};

struct TensorFloat32 {
    static constexpr int BYTES = 4, CHANNELS = 4, DEPTH = 8;
    using Number = u32;
    using Pair = uint2;
    static constexpr u32 ONES = 0x3f800000u;

    __device__ __forceinline__ static Number of(f32 x) { return cvt_tf32(x); }
    __device__ __forceinline__ static Pair pair(f32 even, f32 odd) {
        return make_uint2(cvt_tf32(even), cvt_tf32(odd));
    }
    __device__ __forceinline__ static f32 even(Pair pair) { return __uint_as_float(pair.x); }
    __device__ __forceinline__ static f32 odd(Pair pair) { return __uint_as_float(pair.y); }
    __device__ __forceinline__ static Pair chosen(Pair pair, bool even, bool odd) {
        return make_uint2(even ? pair.x : 0u, odd ? pair.y : 0u);
    }
    __device__ __forceinline__ static Pair signed_ones(Pair pair, u32 signs, bool upper) {
        return make_uint2(pair.x & prmt(signs, 0, upper ? 0xaaaau : 0x8888u),
                          pair.y & prmt(signs, 0, upper ? 0xbbbbu : 0x9999u));
    }
    __device__ __forceinline__ static Pair passed(Pair pair, Pair y) {
        return make_uint2(y.x == 0 ? 0u : pair.x, y.y == 0 ? 0u : pair.y);
    }
    __device__ __forceinline__ static u32 passed_bytes(u32 two, Pair y) {
        return (y.x == 0 ? 0u : two & 0xffu) | (y.y == 0 ? 0u : two & 0xff00u);
    }
    __device__ __forceinline__ static uint4 vector(const f32 (&x)[CHANNELS]) {
        return make_uint4(of(x[0]), of(x[1]), of(x[2]), of(x[3]));
    }
    __device__ __forceinline__ static void multiply(f32 (&sum)[4], const u32 (&a)[4],
                                                    const u32 (&b)[2]) {
        mma_m16n8k8_tf32(sum, a, b, sum);
    }

    __device__ __forceinline__ static int product(int lane, int i) { return lane % 4 + 4 * i; }
    __device__ __forceinline__ static uint2 fragment(const f32 (&x)[DEPTH / 4]) {
        return make_uint2(of(x[0]), of(x[1]));
    }
    __device__ __forceinline__ static u32 gathered(const Bytes* first, const Bytes*) {
        return at<Number>(first);
    }
    __device__ __forceinline__ static int byte(int e) { return e % 4 * 8 + e / 4 * 4; }
    __device__ __forceinline__ static int plane(int lane) { return lane % 4 / 2; }
    __device__ __forceinline__ static int byte_in_pixel(int lane) { return lane % 2 * 8; }
    // ldmatrix transposes no words, so a lane reads two filters of a pixel at once.
    __device__ __forceinline__ static int filter(int half, int group) { return 2 * group + half; }
};

// The format of a chain's operands; if EXACT they have none.
template <class P>
using Format = typename Pick<P::TF32 != 0, TensorFloat32, Bfloat16>::Type;
