#include "mixture.cuh"

#define ADD_ROUTED_KERNEL(T) \
    KERNEL_FUNCTION add_routed_##T(float *out, const number::T *x, const u32 *rows, const u32 *starts, \
                                   const u32 *entries, u32 width) { \
        add_routed(out, x, rows, starts, entries, width); \
    }
ADD_ROUTED_KERNEL(f32)
ADD_ROUTED_KERNEL(f16)
ADD_ROUTED_KERNEL(bf16)

KERNEL_FUNCTION to_f32_f16(float *out, const number::f16 *x, u64 count) { to_f32(out, x, count); }
KERNEL_FUNCTION to_f32_bf16(float *out, const number::bf16 *x, u64 count) { to_f32(out, x, count); }

KERNEL_FUNCTION choose_experts(float *logits, float *scratch, u32 *chosen, float *weights, const u8 *own, u32 own_format,
                               u32 rows, const __grid_constant__ RouterRules rules) {
    choose(logits, scratch, chosen, weights, own, own_format, rows, rules);
}
