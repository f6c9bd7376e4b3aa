// partial[b] = sum of the b-th part of x: shuffles within a warp, shared memory between warps
template <class P>
__global__ void sound_block_sum(const float* x, float* partial, long long n) {
    __shared__ float of_warp[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.0f;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        sum += x[i];
#pragma unroll
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    if (warp > 0) return;
    sum = lane < int(blockDim.x) / 32 ? of_warp[lane] : 0.0f;
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0) partial[blockIdx.x] = sum;
}
