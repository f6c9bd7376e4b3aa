// y = x (k + scale * (sum of squares over neighbouring channels))^-beta.
//
// Arguments: x, y, channels, rows (pixels), rows an item takes, k, scale, beta. An item is
// consecutive rows. A row's squares lie in scratch memory with zeros around them, so that a window
// is a few shifted loads. Limit: arithmetic, about 50 instructions a vector, near memory's.
#include "channel_windows.h"
#include "response.h"

namespace convloom {

template <class P>
void local_response_norm(const Arg* args, long item, Worker* worker) {
    const i64 channels = args[2].integer, take = args[4].integer;
    const i64 first = item * take, last = min(first + take, args[3].integer);
    const Response response(args + 5);
    f32* squares = window_start<P>((f32*)worker->scratch);
    clear_around<P>(squares, channels);
    for (i64 i = first; i < last; ++i) {
        const f32* x = (const f32*)args[0].address + i * channels;
        f32* y = (f32*)args[1].address + i * channels;
        for (i64 c = 0; c < channels; c += LANES) {
            const vec v = load_tail(x + c, channels - c);
            store(squares + c, v * v);
        }
        if constexpr (P::BLOCK != 0) sum_blocks<P>(squares, channels);
        for (i64 c = 0; c < channels; c += LANES) {
            const vec d = response.denominator(window_sum<P, P::LOW, P::HIGH>(squares + c));
            const vec v = load_tail(x + c, channels - c) * response.factor(d);
            store_tail(y + c, v, channels - c);
        }
    }
}

}  // namespace convloom
