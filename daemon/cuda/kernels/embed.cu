// Rows picked by number: of the embedding table, decoded, and of activations, as they are. A block takes a row.

#include "format_decoded.cuh"

template <class Format>
DEVICE void embed(float *out, const u32 *ids, const u8 *table, u32 width) {
    const u8 *row = table + u64(ids[blockIdx.x]) * format::row_bytes<Format>(width);
    out += u64(blockIdx.x) * width;
    for (u32 at = threadIdx.x * Format::RUN; at < width; at += blockDim.x * Format::RUN) {
        float values[Format::RUN];
        Format::decode(format::fetch_within<Format>(row, at, width), values);
#pragma unroll
        for (u32 i = 0; i < Format::RUN; i++) {
            if (at + i < width) out[at + i] = values[i];
        }
    }
}

template <class Element> DEVICE void take_rows(u8 *out, const u8 *x, const u32 *rows, u32 width) {
    const Element *from = reinterpret_cast<const Element *>(x) + u64(rows[blockIdx.x]) * width;
    Element *to = reinterpret_cast<Element *>(out) + u64(blockIdx.x) * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

#define EMBED_KERNEL(T, F) \
    KERNEL_FUNCTION embed_##F(number::T *out, const u32 *ids, const u8 *table, u32 width, u32) { \
        embed<format::F>(out, ids, table, width); \
    }
FOR_EACH_FORMAT(EMBED_KERNEL, f32)
FOR_EACH_DECODED_FORMAT(EMBED_KERNEL, f32)

KERNEL_FUNCTION take_rows_2(u8 *out, const u8 *x, const u32 *rows, u32, u32 width) {
    take_rows<u16>(out, x, rows, width);
}

KERNEL_FUNCTION take_rows_4(u8 *out, const u8 *x, const u32 *rows, u32, u32 width) {
    take_rows<u32>(out, x, rows, width);
}
