// Every way for the threads of a block of 64 to agree on something
template <class P>
__global__ void sound_votes(const float* x, float* out) {
    const unsigned full = 0xffffffffu;
    const int i = threadIdx.x, lane = i % 32;
    const bool positive = x[i] > 0.0f;
    float* mine = out + i * 10;
    mine[0] = float(__popc(__ballot_sync(full, positive)));
    mine[1] = float(__any_sync(full, positive));
    mine[2] = float(__all_sync(full, positive));
    mine[3] = float(__syncthreads_count(positive));
    mine[4] = float(__syncthreads_or(positive));
    mine[5] = float(__syncthreads_and(positive));
    mine[6] = __shfl_sync(full, x[i], 3, 8);
    mine[7] = __shfl_up_sync(full, x[i], 1, 16);
    mine[8] = lane < 8 ? __shfl_xor_sync(0xffu, x[i], 4) : 0.0f;
    __syncwarp();
    double wide = x[i];
    mine[9] = float(__shfl_down_sync(full, wide, 31));
}
