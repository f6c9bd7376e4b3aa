// Copies whole NHWC images with a margin of zeros around them: [image][H + 2 PH][W + 2 PW][C].
//
// Arguments: images, to, H, W. An item is one image. Limit: memory.
#include "conv2d_stage.h"

namespace convloom {

template <class P>
void stage_images(const Arg* args, long item, Worker*) {
    const i64 H = args[2].integer, W = args[3].integer;
    const Window window{-P::PH, H + 2 * P::PH, -P::PW, W + 2 * P::PW};
    const f32* image = (const f32*)args[0].address + item * H * W * P::C;
    f32* to = (f32*)args[1].address + item * window.rows * window.cols * P::C;
    stage<false>(to, P::C, Image{image, H, W, P::C, 0, P::C}, window);
}

}  // namespace convloom
