// y = x * (mask * scale), with one mask for each channel of each sample
//
// A thread takes a tile of four neighbours, loaded and stored at once: four channels of a pixel
// where channels are innermost (LAST) and their number a multiple of four, else four pixels of a
// channel whose number of pixels is.
// Against naive: a quarter of the memory instructions, and one division of indices for four.
// Limit: 8 bytes of memory traffic an element.
#include "device/fours.cuh"
#include "device/index.cuh"

template <class P>
__global__ void scale_channels_tiled(const f32* x, const u8* mask, f32* y, i64 size, i64 channels,
                                     i64 pixels, f32 scale) {
    const i64 i = 4 * global_thread();
    if (i >= size) return;
    const i64 row = P::LAST != 0 ? i / (channels * pixels) * channels + i % channels : i / pixels;
    Four four = load_four(x + i, 4);
#pragma unroll
    for (int v = 0; v < 4; ++v) four.at[v] *= f32(mask[P::LAST != 0 ? row + v : row]) * scale;
    store_four(y + i, four, 4);
}
