// The rectifier and its mask. NaN passes through both, as in torch.relu.
#pragma once

#include "device/types.cuh"

__device__ __forceinline__ f32 rectified(f32 x) { return x <= 0.0f ? 0.0f : x; }

// The gradient that passes a rectifier whose output was y.
__device__ __forceinline__ f32 masked(f32 dy, f32 y) { return y <= 0.0f ? 0.0f : dy; }
