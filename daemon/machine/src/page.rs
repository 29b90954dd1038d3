//! Memory in whole pages, as reads past the page cache need it.

use bytemuck::{Pod, Zeroable};

/// Bytes of a page: what the offsets, lengths and addresses of direct reads are multiples of.
pub const PAGE_BYTES: usize = 4096;

/// A page of bytes; a boxed slice of pages is aligned to one. `bytemuck::cast_slice` shows
/// them as bytes.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
pub struct Page([u8; PAGE_BYTES]);

// SAFETY: an array of bytes may be all zeroes.
unsafe impl Zeroable for Page {}

// SAFETY: an array of bytes takes any bits, is `Copy` and has no lifetime; size and alignment
// are both 4096, so there is no padding.
unsafe impl Pod for Page {}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES && align_of::<Page>() == PAGE_BYTES);

/// Pages that the bytes `offset..offset + len` of a file touch.
#[must_use]
pub const fn pages_of(offset: u64, len: usize) -> usize {
    (start_in_page(offset) + len).div_ceil(PAGE_BYTES)
}

/// Where in its page the byte at `offset` lies.
#[must_use]
pub const fn start_in_page(offset: u64) -> usize {
    (offset % PAGE_BYTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_from_the_one_that_holds_the_first_byte() {
        for (offset, len, pages) in [
            (0, 0, 0),
            (0, 1, 1),
            (0, 4096, 1),
            (0, 4097, 2),
            (4095, 1, 1),
            (4095, 2, 2),
            (8191, 4098, 3),
        ] {
            assert_eq!(pages_of(offset, len), pages, "{len} bytes from {offset}");
        }
    }
}
