// Filter gradients of 3x3 convolutions of stride 1 by minimal filtering: the derivative of
// F(2x2, 3x3) with respect to its filters, 16 products of a window of 2x2 outputs where the direct
// form has 36.
//
//     dU = sum over windows of (A dY A^T) * (B^T d B),    dw = G^T dU G
// Source: the transpose of the forward form in Lavin and Gray (arXiv 1509.09308), section 4.1, but
// that the last row of A and that of B^T have both changed their signs.
//
// Each of the 16 positions is a product of matrices over all windows: filters x windows, of
// gradients, by windows x channels, of inputs. Those of a few windows lie in shared memory, and
// eight threads hold a position's sums, each of eight filters and eight channels, in registers.
// Positions lie 16 bytes off a multiple of 128 apart: lanes that are served together read two.
#pragma once

#include "device/conv.cuh"
#include "device/tile.cuh"

template <class P>
struct WinogradWgrad {
    static constexpr int FILTERS = 32, CHANNELS = 16, WINDOWS = 16, POSITIONS = 16;
    static constexpr int THREADS = 128, HALF = THREADS / 2;
    static constexpr int UNROLLED = int(P::UNROLLED);  // windows
    // Floats of a position, and of all: gradients (position, window, filter), inputs (position,
    // window, channel); in the end the sums (position, filter, channel), and those of the bias.
    static constexpr int GRADIENTS = WINDOWS * FILTERS + 4, INPUTS = WINDOWS * CHANNELS + 4;
    static constexpr int SUMS = FILTERS * CHANNELS;
    // Windows; without a pool the last ones may overhang the map.
    static constexpr i64 ROWS = P::POOL != 0 ? P::OH / 2 : ceil_div(P::OH, 2);
    static constexpr i64 COLS = P::POOL != 0 ? P::OW / 2 : ceil_div(P::OW, 2);
    // Whether patches may leave the inputs.
    static constexpr bool ROWS_LEAVE = P::PH != 0 || 2 * ROWS + 2 > P::H;
    static constexpr bool COLS_LEAVE = P::PW != 0 || 2 * COLS + 2 > P::W;
    static_assert(P::UH == 1 && P::UW == 1 && P::DH == 1 && P::DW == 1 && P::G == 1);
    static_assert(P::R == 3 && P::S == 3 && P::C % CHANNELS == 0 && P::K % FILTERS == 0);
    static_assert(P::XROW == 0 && P::YROW == 0 && P::WROW == 0);

    __device__ __forceinline__ static void put(f32* to, const float4& four) {
        *reinterpret_cast<float4*>(to) = four;
    }
    __device__ __forceinline__ static float4 fours(const f32 (&v)[4]) {
        return make_float4(v[0], v[1], v[2], v[3]);
    }
    __device__ __forceinline__ static float4 plus(const float4& a, const float4& b) {
        return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    __device__ __forceinline__ static float4 minus(const float4& a, const float4& b) {
        return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
    }

    // The first output of every 16th window, image by image.
    struct Windows {
        i64 image;  // of the first one
        i32 row, col;

        __device__ static Windows from(i64 window) {
            const Place at = place_of<1, ROWS, COLS, false>(window);
            return {at.image, 2 * at.row, 2 * at.col};
        }
        // How far the next one lies from this one in images whose pixels are PIXEL floats, whose
        // rows are LINE and which are SIZE floats apart.
        template <i64 PIXEL, i64 LINE, i64 SIZE>
        __device__ __forceinline__ i32 move() {
            constexpr i32 HIGH = 2 * i32(ROWS), WIDE = 2 * i32(COLS);
            constexpr i32 DOWN = 2 * (WINDOWS / COLS % ROWS), ASIDE = 2 * (WINDOWS % COLS);
            i32 far = i32(WINDOWS / (ROWS * COLS) * SIZE + DOWN * LINE + ASIDE * PIXEL);
            row += DOWN, col += ASIDE;
            if (col >= WIDE) col -= WIDE, row += 2, far += i32(2 * LINE - WIDE * PIXEL);
            if (row >= HIGH) row -= HIGH, far += i32(SIZE - HIGH * LINE);
            return far;
        }
    };

    // Four channels of a column of a patch, whose first input is (row, col) and lies at `from`,
    // times B^T.
    __device__ __forceinline__ static void column(float4 (&to)[4], const f32* from, i32 row,
                                                  i32 col) {
        float4 d[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool inside = (!ROWS_LEAVE || (row + i >= 0 && row + i < P::H)) &&
                                (!COLS_LEAVE || (col >= 0 && col < P::W));
            f32 value[4];
            load_or_zero(value, from, i * (P::W * P::C), inside);
            d[i] = fours(value);
        }
        to[0] = minus(d[0], d[2]), to[1] = plus(d[1], d[2]);
        to[2] = minus(d[2], d[1]), to[3] = minus(d[3], d[1]);
    }

    // B^T d B of four channels of a patch; `to` is where position 0 lies.
    __device__ __forceinline__ static void put_inputs(f32* to, const f32* from, i32 row, i32 col) {
        float4 first[4], second[4], third[4];
        column(first, from, row, col);
        column(third, from + 2 * P::C, row, col + 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) put(to + 4 * i * INPUTS, minus(first[i], third[i]));
        __syncwarp();  // compilers load nothing before: registers are few
        column(second, from + P::C, row, col + 1);
        column(first, from + 3 * P::C, row, col + 3);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            put(to + (4 * i + 1) * INPUTS, plus(second[i], third[i]));
            put(to + (4 * i + 2) * INPUTS, minus(third[i], second[i]));
            put(to + (4 * i + 3) * INPUTS, minus(first[i], second[i]));
        }
    }

    // What a row of A makes of a gradient g in the first or, with `far`, the second of two places.
    __device__ __forceinline__ static f32 spread(int row, f32 g, u32 far) {
        const f32 first = row == 3 ? 0.0f : g, second = row == 0 ? 0.0f : row == 2 ? -g : g;
        return row == 1 ? g : choose(far, second, first);
    }

    // A dY A^T of four filters of a window, of whose 2x2 gradients only those of winners are not 0;
    // `cells` says where these are, one a byte.
    __device__ __forceinline__ static void put_winners(f32* to, const f32 (&g)[4], u32 cells) {
        f32 down[4][4];  // row, filter
#pragma unroll
        for (int v = 0; v < 4; ++v)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                down[i][v] = spread(i, g[v], cells & 2u << 8 * v);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                f32 all[4];
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    all[v] = spread(j, down[i][v], cells & 1u << 8 * v);
                put(to + (4 * i + j) * GRADIENTS, fours(all));
            }
    }

    // The same of all gradients, (row, column, filter).
    __device__ __forceinline__ static void put_gradients(f32* to, const float4 (&dy)[2][2]) {
        float4 down[4][2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            down[0][j] = dy[0][j], down[1][j] = plus(dy[0][j], dy[1][j]);
            down[2][j] = minus(dy[0][j], dy[1][j]), down[3][j] = dy[1][j];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            put(to + 4 * i * GRADIENTS, down[i][0]);
            put(to + (4 * i + 1) * GRADIENTS, plus(down[i][0], down[i][1]));
            put(to + (4 * i + 2) * GRADIENTS, minus(down[i][0], down[i][1]));
            put(to + (4 * i + 3) * GRADIENTS, down[i][1]);
        }
    }

    // Transforms the thread's gradients and adds them to `bias`: four filters of the windows `slot`
    // and slot + 8 behind a pool, else two fours of filters, `other` floats apart, of window `slot`,
    // whose first output is (row, col). They lie at `at`; those of `left` windows are there, others
    // are 0.
    __device__ __forceinline__ static void take_gradients(f32* to, f32* bias, const f32* dy,
                                                          const u8* index, i64 at, i32 slot,
                                                          i32 other, i32 left, i32 row, i32 col) {
        if constexpr (P::POOL != 0) {
            f32 g[2][4];
            u32 cells[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool there = left >= WINDOWS || slot + 8 * i < left;
                load_or_zero(g[i], dy + at, 8 * i * P::K, there);
                cells[i] = there ? *reinterpret_cast<const u32*>(index + at + 8 * i * P::K) : 0;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                put_winners(to + 8 * i * FILTERS, g[i], cells[i]);
                __syncwarp();  // compilers mix nothing: registers are few
            }
            add(bias, plus(fours(g[0]), fours(g[1])));
        } else {
            const bool there = left >= WINDOWS || slot < left;
            float4 g[2][2][2];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int r = i / 2 % 2, s = i % 2;
                const bool inside = there && (P::OH % 2 == 0 || row + r < P::OH) &&
                                    (P::OW % 2 == 0 || col + s < P::OW);
                f32 value[4];
                load_or_zero(value, dy + at + i / 4 * other, (r * P::OW + s) * P::K, inside);
                g[i / 4][r][s] = fours(value);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                put_gradients(to + i * other, g[i]);
                __syncwarp();
                add(bias + i * other,
                    plus(plus(g[i][0][0], g[i][1][0]), plus(g[i][0][1], g[i][1][1])));
            }
        }
    }
    __device__ __forceinline__ static void add(f32* bias, const float4& value) {
        if (P::BIAS == 0) return;
        put(bias, plus(*reinterpret_cast<const float4*>(bias), value));
    }

    // The thread's position, and the first of its eight filters and channels among the block's.
    struct Own {
        u32 position = threadIdx.x / 8;
        u32 filter = threadIdx.x / 2 % 4 * 8, channel = threadIdx.x % 2 * 8;
    };

    // Adds the products of all windows in shared memory.
    __device__ __forceinline__ static void multiply(f32 (&sum)[8][8], const f32* gradients,
                                                    const f32* inputs, const Own& own) {
        const f32* dy = gradients + own.position * GRADIENTS + own.filter;
        const f32* x = inputs + own.position * INPUTS + own.channel;
#pragma unroll 1
        for (int window = 0; window < WINDOWS; window += UNROLLED) {
#pragma unroll
            for (int w = 0; w < UNROLLED; ++w) {
                f32 left[8], right[8];
                load_fours(left, dy + w * FILTERS, 4);
                load_fours(right, x + w * CHANNELS, 4);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
            }
            dy += UNROLLED * FILTERS, x += UNROLLED * CHANNELS;
        }
    }

    // Copies the thread's sums to shared memory.
    __device__ __forceinline__ static void put_sums(f32* to, const f32 (&sum)[8][8],
                                                    const Own& own) {
        to += own.position * SUMS + own.filter * CHANNELS + own.channel;
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; j += 4)
                put(to + i * CHANNELS + j,
                    make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]));
    }

    // G^T dU G; true if all of it is finite, and so all that it is made of.
    __device__ __forceinline__ static bool filter(f32 (&dw)[9], const f32* sums) {
        f32 across[4][3], doubt = 0.0f;  // rows of dU G
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            f32 u[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) u[j] = sums[(4 * i + j) * SUMS];
            fold(across[i][0], across[i][1], across[i][2], u[0], u[1], u[2], u[3]);
        }
#pragma unroll
        for (int j = 0; j < 3; ++j)
            fold(dw[j], dw[3 + j], dw[6 + j], across[0][j], across[1][j], across[2][j],
                 across[3][j]);
#pragma unroll
        for (int tap = 0; tap < 9; ++tap) doubt += dw[tap] - dw[tap];
        return doubt == 0.0f;
    }
    // G^T times four values.
    __device__ __forceinline__ static void fold(f32& a, f32& b, f32& c, f32 u0, f32 u1, f32 u2,
                                                f32 u3) {
        const f32 half = 0.5f * (u1 + u2);
        a = u0 + half, b = 0.5f * (u1 - u2), c = half + u3;
    }

    // The same gradients from the products themselves, of windows [first, last).
    __device__ __noinline__ static void direct(f32 (&dw)[9], const f32* x, const f32* dy,
                                               const u8* index, i64 filter, i64 channel, i64 first,
                                               i64 last) {
#pragma unroll
        for (int tap = 0; tap < 9; ++tap) dw[tap] = 0.0f;
        for (i64 window = first; window < last; ++window) {
            const Place at = place_of<1, ROWS, COLS, false>(window);
            const i64 from = window * P::K + filter;  // behind a pool
            for (i32 cell = P::POOL != 0 ? index[from] : 0; cell < 4; ++cell) {
                const i32 row = 2 * at.row + cell / 2, col = 2 * at.col + cell % 2;
                if (row >= P::OH || col >= P::OW) continue;
                const f32 g =
                    P::POOL != 0 ? dy[from] : dy[Conv<P>::y_offset(at.image, filter, row, col)];
#pragma unroll
                for (int tap = 0; tap < 9; ++tap) {
                    const f32 value =
                        Conv<P>::padded(x, at.image, channel, row - i32(P::PH) + tap / 3,
                                        col - i32(P::PW) + tap % 3);
                    dw[tap] = fmaf(g, value, dw[tap]);
                }
                if (P::POOL != 0) break;
            }
        }
    }
};
