// A histogram: integers may be added in any order
template <class P>
__global__ void sound_atomics(const float* x, float* counts, long long n) {
    __shared__ unsigned local[8];
    if (threadIdx.x < 8) local[threadIdx.x] = 0;
    __syncthreads();
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&local[int(x[i]) % 8], 1);
    __syncthreads();
    if (threadIdx.x < 8)
        atomicAdd(reinterpret_cast<int*>(counts) + threadIdx.x, int(local[threadIdx.x]));
}
