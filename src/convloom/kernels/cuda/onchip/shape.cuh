// What the building blocks of a chain know at compile time: shapes of its stages, and where each
// map lies in shared memory.
//
// Each image that a block carries has a region of IMAGE_BYTES at IMAGE_AT; maps lie in it. A map
// is kept in planes of eight channels (tf32: of four): 16 bytes a pixel, pixels row by row with
// `pitch` pixels from row to row. So ldmatrix reads neighbouring pixels without bank conflicts, and a
// filter's tap is a fixed distance in bytes. Around a map lie zeros, as many as padding and gradients
// need.
// P holds arrays CONV_* of the convolutions and LINEAR_* of the fully connected layers.
#pragma once

#include "device/index.cuh"
#include "onchip/number.cuh"

// Of a step's fragments, 8 bytes a lane and tile, where those of a lane lie, in bytes. If warps
// take an even number NT of tiles at once, two of them lie side by side, and are read as one.
template <int NT>
__host__ __device__ constexpr int fragment_at(int tile, int lane) {
    return NT % 2 == 0 ? tile / 2 * 512 + lane * 16 + tile % 2 * 8 : tile * 256 + lane * 8;
}

template <class P, int I>
struct ConvStage {
    // Input C x H x W, K filters of R x S, output OH x OW, pooled to YH x YW.
    static constexpr int C = int(P::CONV_C[I]), H = int(P::CONV_H[I]), W = int(P::CONV_W[I]);
    static constexpr int K = int(P::CONV_K[I]), R = int(P::CONV_R[I]), S = int(P::CONV_S[I]);
    static constexpr int OH = int(P::CONV_OH[I]), OW = int(P::CONV_OW[I]);
    static constexpr int UH = int(P::CONV_UH[I]), UW = int(P::CONV_UW[I]);  // stride
    static constexpr int PADH = int(P::CONV_PADH[I]), PADW = int(P::CONV_PADW[I]);
    static constexpr bool BIAS = P::CONV_BIAS[I] != 0, RELU = P::CONV_ACT[I] == 1;
    // The activation before the pool, its parameters as bits (device/activation.cuh).
    static constexpr i64 ACT = P::CONV_ACT[I], ACT_A = P::CONV_ACT_A[I], ACT_B = P::CONV_ACT_B[I];
    // A pool of 2x2, stride 2, follows; and it takes the average, else the maximum.
    static constexpr bool POOL = P::CONV_POOL[I] != 0, AVERAGE = P::CONV_POOL[I] == 2;
    static constexpr bool ROW = P::CONV_ROW[I] != 0;    // filters lie KCRS, else KRSC
    static constexpr int YH = POOL ? OH / 2 : OH, YW = POOL ? OW / 2 : OW;
    static constexpr int WEIGHT = int(P::CONV_WEIGHT[I]);  // which parameter; the bias is next
    static constexpr int OUTPUTS = K;                      // as many as the bias has numbers
    static constexpr bool GATHER = I == 0 && P::GATHER != 0;
    static constexpr int CHANNELS = Format<P>::CHANNELS;  // of a plane
    static constexpr int CP = (C + CHANNELS - 1) / CHANNELS, KP = (K + CHANNELS - 1) / CHANNELS;
    // Tiles of 8 columns, and planes of one.
    static constexpr int C_TILES = (C + 7) / 8, K_TILES = (K + 7) / 8, PLANES = 8 / CHANNELS;

    // The input map: where its pixel (0, 0) lies, in bytes; pixels of a row; bytes of a plane. If
    // GATHER it is kept in planes of one channel, and the latter two count elements.
    static constexpr int X = int(P::CONV_X[I]), XPITCH = int(P::CONV_XPITCH[I]);
    static constexpr int XPLANE = int(P::CONV_XPLANE[I]);
    // If GATHER: how far product i (KCRS) of a filter lies from its first; behind the last, no way.
    __host__ __device__ static constexpr int product(unsigned i) {
        if (i >= C * R * S) return 0;
        const unsigned planes = C == 1 ? 0 : i / (R * S);
        return int(i) + int(i / S) * (XPITCH - S) + int(planes) * (XPLANE - R * XPITCH);
    }
    // The gradient of the output before pooling; pixel (p, q) lies at (p * UH, q * UW).
    static constexpr int DY = int(P::CONV_DY[I]), DYPITCH = int(P::CONV_DYPITCH[I]);
    static constexpr int DYPLANE = int(P::CONV_DYPLANE[I]);
    // Whether the gradient of the input lies where the input lies.
    static constexpr bool IN_PLACE = P::CONV_IN_PLACE[I] != 0;
    // What is handed on, and a byte for each of its windows: a bit for each cell, 1 << (2 * row +
    // column), that has its gradient: the winner, or of an average all, if the rectifier let them
    // pass. If EXACT, the winner's number instead.
    static constexpr int Z = int(P::CONV_Z[I]), ZPITCH = int(P::CONV_ZPITCH[I]);
    static constexpr int ZPLANE = int(P::CONV_ZPLANE[I]), CODE = int(P::CONV_CODE[I]);
    // Weights as fragments, from the block's shared memory: for the output, for the gradient.
    static constexpr int FRAGMENTS = int(P::CONV_FRAGMENTS[I]);
    static constexpr int TRANSPOSED = int(P::CONV_TRANSPOSED[I]);

    // Tiles that a warp takes at once: 16 pixels by 8 filters (channels, for the gradient).
    static constexpr int MT = int(P::CONV_MT[I]), NT = int(P::CONV_NT[I]);
    static constexpr int DMT = int(P::CONV_DMT[I]), DNT = int(P::CONV_DNT[I]);
    static constexpr int N_GROUPS = (K_TILES + NT - 1) / NT;
    static constexpr int DN_GROUPS = (C_TILES + DNT - 1) / DNT;
    // Of the filters' gradient: tiles of 16 filters and of 8 channels (or taps), and how many warps
    // share the pixels.
    static constexpr int WMT = int(P::CONV_WMT[I]), WNT = int(P::CONV_WNT[I]);
    static constexpr int WSPLIT = int(P::CONV_WSPLIT[I]);
};

template <class P, int J>
struct LinearStage {
    // Features of C channels and PIXELS pixels; O outputs.
    static constexpr int C = int(P::LINEAR_C[J]), PIXELS = int(P::LINEAR_PIXELS[J]);
    static constexpr int O = int(P::LINEAR_O[J]), I = C * PIXELS;
    static constexpr bool BIAS = P::LINEAR_BIAS[J] != 0;
    static constexpr i64 ACT = P::LINEAR_ACT[J], ACT_A = P::LINEAR_ACT_A[J],
                         ACT_B = P::LINEAR_ACT_B[J];
    static constexpr bool ROW = P::LINEAR_ROW[J] != 0;  // features lie CHW in the weight, else HWC
    static constexpr bool DROPOUT = P::LINEAR_DROPOUT[J] != 0;
    static constexpr int WEIGHT = int(P::LINEAR_WEIGHT[J]), OUTPUTS = O;
    // Features as they lie: planes of eight channels (tf32: of four), all pixels of a plane
    // together. WIDTH is their number with padding, OUT that of outputs, both multiples of 16.
    static constexpr int CHANNELS = Format<P>::CHANNELS;
    static constexpr int WIDTH =
        ((C + CHANNELS - 1) / CHANNELS * PIXELS * CHANNELS + 15) / 16 * 16;
    static constexpr int OUT = (O + 15) / 16 * 16;
    static constexpr int X = int(P::LINEAR_X[J]), DY = int(P::LINEAR_DY[J]);
    // Weights in shared memory, or -1: then they are read from a packed copy.
    static constexpr int FRAGMENTS = int(P::LINEAR_FRAGMENTS[J]);
    static constexpr bool RESIDENT = FRAGMENTS >= 0;
    static constexpr i64 PACKED = P::LINEAR_PACKED[J];  // where that copy begins, in bytes
    static constexpr i64 BEFORE = P::LINEAR_BEFORE[J];  // elements kept of an image before these
    static constexpr bool LAST = J + 1 == P::LINEARS;

    // Where a feature (as it lies) is in a row of the weight, or -1: padding.
    __device__ __forceinline__ static int column(int feature) {
        const int channel = feature / (CHANNELS * PIXELS) * CHANNELS + feature % CHANNELS;
        const int pixel = feature / CHANNELS % PIXELS;
        if (channel >= C) return -1;
        return ROW ? channel * PIXELS + pixel : pixel * C + channel;
    }
};

// The region of an image.
template <class P>
__device__ __forceinline__ Bytes* region(Bytes* shared, int image) {
    return shared + int(P::IMAGE_AT) + image * int(P::IMAGE_BYTES);
}

// Which of the block's images unit `u` belongs to, if each has `units`.
template <class P>
__device__ __forceinline__ int image_of(int u, int units) {
    return P::IMAGES == 1 ? 0 : u / units;
}

// Where pixel (0, 0) of convolution I's input lies in such a region; the first one's is in one of two
// buffers.
template <class P, int I>
__device__ __forceinline__ Bytes* input_of(Bytes* map, int buffer) {
    return map + ConvStage<P, I>::X + (I == 0 ? buffer * int(P::INPUT_BYTES) : 0);
}
