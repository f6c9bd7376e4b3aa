// to[m][b][a] = from[m][a][b] for every matrix m: NCHW images to NHWC (A channels, B pixels), and
// back (A pixels, B channels).
//
// Arguments: from, to, A, B. An item is ROWS rows a of one matrix. Tiles of LANES x LANES elements
// are transposed in registers, so each cache line is met once, whatever the row length; shuffles
// move bits, so a NaN keeps its payload. Limit: memory bandwidth.
#include "lanes.h"

namespace convloom {

template <class P>
void transpose(const Arg* args, long item, Worker*) {
    const i64 A = args[2].integer, B = args[3].integer;
    const i64 blocks = ceil_div(A, P::ROWS);
    const f32* from = static_cast<const f32*>(args[0].address) + item / blocks * A * B;
    f32* to = static_cast<f32*>(args[1].address) + item / blocks * A * B;
    const i64 first = item % blocks * P::ROWS, last = min(first + P::ROWS, A);
    for (i64 b = 0; b < B; b += LANES) {
        for (i64 a = first; a < last; a += LANES) {
            const i64 rows = min(LANES, last - a), cols = min(LANES, B - b);
            vec tile[LANES];
            CL_UNROLL for (int i = 0; i < LANES; ++i)
                tile[i] = i < rows ? load_tail(from + (a + i) * B + b, cols) : zero();
            transpose_lanes(tile);
            CL_UNROLL for (int i = 0; i < LANES; ++i)
                if (i < cols) store_tail(to + (b + i) * A + a, tile[i], rows);
        }
    }
}

}  // namespace convloom
