// Locally connected layers: a convolution's geometry (device/conv.cuh, K filters an output pixel),
// with filters of its own for every output pixel. Output pixel m has filters [m * K, (m + 1) * K).
#pragma once

#include "device/conv_tile.cuh"

template <class P>
struct Local {
    static constexpr i64 PIXELS = P::OH * P::OW;

    // The weight of filter k of an output pixel.
    __device__ static i64 w_offset(i64 p, i64 q, i64 k, i64 channel, i64 r, i64 s) {
        return Conv<P>::w_offset((p * P::OW + q) * P::K + k, channel, r, s);
    }
};

// Forward, left: row = image; the patch that one output pixel sees.
template <class P>
struct LocalPatches {
    using Base = ConvPatches<P>;
    static constexpr int VEC = Base::VEC;
    static constexpr bool ALONG_DEPTH = Base::ALONG_DEPTH;
    using Place = typename Base::Place;

    Base base;
    i64 pixel;

    __device__ Place place(i64 image) const {
        return base.place(image * Pixels<P>::COUNT + pixel);
    }
    __device__ void load(const Place& at, i32 k, f32 (&value)[VEC]) const {
        base.load(at, k, value);
    }
};

// Forward, right: row = filter of the group at one output pixel, depth = (r, s, c), KRSC.
template <class P>
struct LocalFilters {
    static constexpr int VEC = P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = true;
    using Place = i64;  // offset of the filter, or ABSENT

    const f32* data;
    i64 first;  // the group's first filter

    __device__ Place place(i64 filter) const {
        return filter < Conv<P>::GROUP ? (first + filter) * Conv<P>::DEPTH : ABSENT;
    }
    __device__ void load(const Place& filter, i32 k, f32 (&value)[VEC]) const {
        load_or_zero(value, data, filter + k, filter != ABSENT && k < Conv<P>::DEPTH);
    }
};

// Input gradient, left: row = image, depth = (tap, filter): the outputs that one input pixel met.
template <class P>
struct LocalOutputGradients {
    using Base = ConvOutputGradients<P>;
    using Class = ResidueClass<P>;
    static constexpr int VEC = Base::VEC;
    static constexpr bool ALONG_DEPTH = Base::ALONG_DEPTH;
    using Place = typename Base::Place;

    Base base;
    i64 pixel;  // among the inputs of its residue class

    __device__ Place place(i64 image) const {
        return base.place(image * (Class::HEIGHT * Class::WIDTH) + pixel);
    }
    __device__ void load(const Place& at, i32 k, f32 (&value)[VEC]) const {
        base.load(at, k, value);
    }
};

// Input gradient, right: row = channel of the group, depth = (tap, filter), KRSC.
template <class P>
struct LocalFiltersByChannel {
    static constexpr int VEC = P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    using Place = i32;

    const f32* w;
    i64 group;
    ResidueClass<P> part;
    i32 row, col;  // of the input pixel

    __device__ Place place(i64 channel) const { return i32(channel); }
    __device__ void load(const Place& channel, i32 k, f32 (&value)[VEC]) const {
        constexpr u32 filters = Conv<P>::GROUP;
        const u32 tap = u32(k) / filters;
        const Pixel met = part.tap(tap);
        const i32 y_row = row + i32(P::PH) - met.row * i32(P::DH);
        const i32 y_col = col + i32(P::PW) - met.col * i32(P::DW);
        const i32 p = y_row / i32(P::UH), q = y_col / i32(P::UW);
        const bool inside = i32(tap) < part.taps() && channel < P::C && y_row >= 0 && y_col >= 0 &&
                            p < P::OH && q < P::OW;
        const i64 filter = group * filters + u32(k) % filters;
        load_or_zero(value, w, Local<P>::w_offset(p, q, filter, channel, met.row, met.col), inside);
    }
};

// Filter gradient, left: row = filter of the group at one output pixel, depth = image.
template <class P>
struct LocalGradientsByFilter {
    static constexpr int VEC = P::YROW == 0 && Conv<P>::GROUP % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    using Place = i32;

    const f32* dy;
    i64 n, group;
    i32 row, col;

    __device__ Place place(i64 filter) const { return i32(filter); }
    __device__ void load(const Place& filter, i32 image, f32 (&value)[VEC]) const {
        const i64 from =
            Conv<P>::y_offset(image, group * Conv<P>::GROUP + filter, row, col);
        load_or_zero(value, dy, from, image < n && filter < Conv<P>::GROUP);
    }
};

// Filter gradient, right: row = tap (r, s, c) of one output pixel, depth = image.
template <class P>
struct LocalPatchesByTap {
    static constexpr int VEC = P::XROW == 0 && P::C % 4 == 0 ? 4 : 1;
    static constexpr bool ALONG_DEPTH = false;
    using Place = i64;  // offset in an image, or ABSENT

    const f32* x;
    i64 n, group;
    i32 row, col;

    __device__ Place place(i64 tap) const {
        const u32 at = u32(tap) / u32(P::C), channel = u32(tap) % u32(P::C);
        const i32 h = row * i32(P::UH) + i32(at / u32(P::S)) * i32(P::DH) - i32(P::PH);
        const i32 v = col * i32(P::UW) + i32(at % u32(P::S)) * i32(P::DW) - i32(P::PW);
        const bool inside = tap < Conv<P>::DEPTH && h >= 0 && h < P::H && v >= 0 && v < P::W;
        return inside ? Conv<P>::x_offset(0, group * P::C + channel, h, v) : ABSENT;
    }
    __device__ void load(const Place& place, i32 image, f32 (&value)[VEC]) const {
        load_or_zero(value, x, image * Conv<P>::X_SIZE + place, image < n && place != ABSENT);
    }
};
