// dx = dy d^-beta - factor x (sum of t over the windows that hold x's channel), t = dy x d^(-beta-1);
// with P::RELU 0 where x <= 0.
//
// Arguments: dy, x, dx, channels, rows (pixels), rows an item takes, k, scale, beta, factor. An item
// is consecutive rows. d is computed again: cheaper than to keep it. Squares and t of a row lie in
// scratch memory with zeros around them. Limit: arithmetic, about 80 instructions a vector.
#include "channel_windows.h"
#include "response.h"

namespace convloom {

template <class P>
void local_response_norm_grad(const Arg* args, long item, Worker* worker) {
    const i64 channels = args[3].integer, take = args[5].integer;
    const i64 first = item * take, last = min(first + take, args[4].integer);
    const Response response(args + 6);
    const vec factor = broadcast(f32(args[9].real));
    f32* scratch = (f32*)worker->scratch;
    f32* squares = window_start<P>(scratch);
    f32* parts = window_start<P>(scratch + window_row<P>(channels));
    clear_around<P>(squares, channels);
    clear_around<P>(parts, channels);
    for (i64 i = first; i < last; ++i) {
        const f32* dy = (const f32*)args[0].address + i * channels;
        const f32* x = (const f32*)args[1].address + i * channels;
        f32* dx = (f32*)args[2].address + i * channels;
        for (i64 c = 0; c < channels; c += LANES) {
            const vec v = load_tail(x + c, channels - c);
            store(squares + c, v * v);
        }
        if constexpr (P::BLOCK != 0) sum_blocks<P>(squares, channels);
        for (i64 c = 0; c < channels; c += LANES) {
            const i64 left = channels - c;
            const vec d = response.denominator(window_sum<P, P::LOW, P::HIGH>(squares + c));
            const vec g = load_tail(dy + c, left) * response.factor(d);
            store_tail(dx + c, g, left);
            // Beyond the last channel d may be anything: what lies there must stay 0.
            store_tail(parts + c, g * load_tail(x + c, left) / d, left);
        }
        if constexpr (P::BLOCK != 0) sum_blocks<P>(parts, channels);
        for (i64 c = 0; c < channels; c += LANES) {
            const i64 left = channels - c;
            const vec sum = window_sum<P, P::HIGH, P::LOW>(parts + c);
            const vec own = load_tail(x + c, left);
            const vec total = load_tail(dx + c, left) - factor * own * sum;
            store_tail(dx + c, P::RELU ? relu_mask(own, total) : total, left);
        }
    }
}

}  // namespace convloom
