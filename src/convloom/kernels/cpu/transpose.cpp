// to[m][b][a] = from[m][a][b] for every matrix m: NCHW images to NHWC (A channels, B pixels), and
// back (A pixels, B channels). 4-byte elements, moved as integers so that no bit changes.
//
// Arguments: from, to, A, B. An item is ROWS rows a of one matrix; a tile of ROWS x 16 elements
// stays in the cache between its strided reads and its consecutive writes.
// Limit: memory bandwidth when both extents are 16 and more; strided reads below.
#include "simd.h"

namespace convloom {

template <class P>
void transpose(const Arg* args, long item, Worker*) {
    const u32* from = static_cast<const u32*>(args[0].address);
    u32* to = static_cast<u32*>(args[1].address);
    const i64 A = args[2].integer, B = args[3].integer;
    const i64 blocks = ceil_div(A, P::ROWS);
    const i64 matrix = item / blocks * A * B;
    const i64 a0 = item % blocks * P::ROWS, a1 = min(a0 + P::ROWS, A);
    for (i64 b0 = 0; b0 < B; b0 += 16)
        for (i64 b = b0; b < min(b0 + 16, B); ++b)
            for (i64 a = a0; a < a1; ++a) to[matrix + b * A + a] = from[matrix + a * B + b];
}

}  // namespace convloom
