// wrong = {how far the label is from right at top 1, at top TOP}, for each sample
//
// One thread a sample; the means over the samples are mean_of_partials. Classes that score more
// than the label, or NaN, are ahead; equal ones share the places left (device/topk.cuh).
// Limit: K loads a thread.
#include "device/topk.cuh"

template <class P>
__global__ void topk_error_naive(const f32* scores, const i64* target, f64* wrong, i64 n) {
    const i64 sample = global_thread();
    if (sample >= n) return;
    const f32* row = scores + sample * P::K;
    const i64 label = target[sample];
    i64 ahead = P::TOP, equal = 1;
    if (label >= 0 && label < P::K && row[label] == row[label]) {
        ahead = equal = 0;
        for (i64 k = 0; k < P::K; ++k) {
            ahead += !(row[k] <= row[label]);
            equal += row[k] == row[label];
        }
    }
    wrong[sample] = wrong_at(1, ahead, equal);
    wrong[n + sample] = wrong_at(P::TOP, ahead, equal);
}
