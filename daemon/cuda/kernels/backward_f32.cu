#include "backward.cuh"
#include "reduce.cuh"

BACKWARD_KERNELS(f32)

// Adds to a row of `d_x` what its norm passes back for `d_out`. A block takes a row.
KERNEL_FUNCTION rms_norm_backward(float *d_x, const float *x, const float *d_out, const u8 *weight, u32 weight_format, u32,
                                  u32 width, float epsilon) {
    d_x += u64(blockIdx.x) * width;
    x += u64(blockIdx.x) * width;
    d_out += u64(blockIdx.x) * width;
    float squares = 0.0f, products = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        squares = fmaf(x[i], x[i], squares);
        products += x[i] * d_out[i] * stored_number(weight, weight_format, i);
    }
    squares = sum_of_block(squares);
    products = sum_of_block(products);
    const float inverse = 1.0f / sqrtf(squares / float(width) + epsilon);
    const float along = products * inverse * inverse * inverse / float(width);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) {
        d_x[i] += d_out[i] * stored_number(weight, weight_format, i) * inverse - x[i] * along;
    }
}

// A row's cross-entropy on its way through the head.
struct CrossEntropyState {
    // Largest logit so far.
    float max;
    float target_logit;
    // Of `exp(logit - max)`.
    double sum;
};

// Takes in a piece of the vocabulary's logits, which become `exp(logit - max)`; what was summed before is brought to the
// new maximum. A block takes a row.
KERNEL_FUNCTION weigh_logits(CrossEntropyState *states, float *logits, float *weighted, const u32 *targets, u32 columns,
                             u32 first, u32 width) {
    logits += u64(blockIdx.x) * columns;
    weighted += u64(blockIdx.x) * width;
    CrossEntropyState state = states[blockIdx.x];
    const u32 target = targets[blockIdx.x];
    // What lies before wraps around.
    if (target - first < columns) state.target_logit = logits[target - first];
    float max = state.max;
    for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) max = fmaxf(max, logits[i]);
    max = reduce_block(max, [](float a, float b) { return fmaxf(a, b); });
    const float shrink = expf(state.max - max);
    for (u32 i = threadIdx.x; i < width; i += REDUCE_THREADS) weighted[i] *= shrink;
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < columns; i += REDUCE_THREADS) {
        const float weight = expf(logits[i] - max);
        logits[i] = weight;
        sum += double(weight);
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) states[blockIdx.x] = {max, state.target_logit, state.sum * double(shrink) + sum};
}

// The head's row of a row's target, where it is one of these.
KERNEL_FUNCTION take_targets(float *own, const u32 *targets, const u8 *head, u32 format, u32 first, u32 count, u32 width) {
    const u32 place = targets[blockIdx.x] - first;
    if (place >= count) return;
    const u8 *row = head + u64(place) * width * (format == 0 ? 4 : 2);
    own += u64(blockIdx.x) * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) own[i] = stored_number(row, format, i);
}

// The gradient of a row: the mean of the head's rows by their probabilities, less the target's own.
KERNEL_FUNCTION finish_cross_entropy(float *weighted, const float *own, const CrossEntropyState *states, u32 width) {
    const float inverse = float(1.0 / states[blockIdx.x].sum);
    weighted += u64(blockIdx.x) * width;
    own += u64(blockIdx.x) * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) weighted[i] = weighted[i] * inverse - own[i];
}
