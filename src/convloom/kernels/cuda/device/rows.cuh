// Rows of channels: what the kernels of normalisation share.
//
// Images lie as rows [pixel][channel]; a chunk is consecutive rows of one image. For batch
// normalisation all images are one. In the tiled kernels VEC neighbouring channels are a thread's,
// ACROSS threads stand side by side on the channels, and the others of a block on further rows.
#pragma once

#include "device/index.cuh"
#include "device/ptx.cuh"

struct Rows {
    i64 image;
    i64 first;  // rows [first, last) of all images together
    i64 last;
};

// Chunk `item` of images of `rows` rows, each cut into `chunks` of one length but for the last.
__device__ __forceinline__ Rows chunk_of_rows(i64 item, i64 rows, i64 chunks) {
    const i64 image = item / chunks, first = item % chunks * ceil_div(rows, chunks);
    return {image, image * rows + first, image * rows + least(first + ceil_div(rows, chunks), rows)};
}

constexpr int ROW_THREADS = 256;

// Where a thread of a tiled kernel stands: blocks walk the channels first, then the chunks.
template <int ACROSS, int VEC>
struct RowTile {
    static constexpr int DOWN = ROW_THREADS / ACROSS;  // rows at once
    i64 item, channel;
    int down;
    bool inside;
    Rows rows;

    __device__ __forceinline__ RowTile(i64 channels, i64 image_rows, i64 chunks) {
        const i64 columns = ceil_div(channels, ACROSS * VEC);
        item = blockIdx.x / columns;
        channel = (blockIdx.x % columns * ACROSS + threadIdx.x % ACROSS) * VEC;
        down = threadIdx.x / ACROSS;
        inside = channel < channels;
        rows = chunk_of_rows(item, image_rows, chunks);
    }
};

template <int VEC>
struct Channels {
    f32 at[VEC];
};

// VEC neighbouring channels; VEC is 4 only where rows are in fours, so that addresses are aligned.
template <int VEC>
__device__ __forceinline__ Channels<VEC> load_channels(const f32* from) {
    if constexpr (VEC == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        return {{four.x, four.y, four.z, four.w}};
    } else {
        return {{*from}};
    }
}

template <int VEC>
__device__ __forceinline__ void store_channels(f32* to, const Channels<VEC>& channels) {
    if constexpr (VEC == 4)
        store_float4(to, channels.at[0], channels.at[1], channels.at[2], channels.at[3]);
    else
        *to = channels.at[0];
}

// How many rows chunk `chunk` of an image has; `length` is ceil_div(rows, chunks).
__device__ __forceinline__ f64 rows_of_chunk(i64 chunk, i64 rows, i64 length) {
    return f64(least(length, rows - chunk * length));
}
