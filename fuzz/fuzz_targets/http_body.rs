//! See `src/http.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    sluice_fuzz::http_body(bytes);
});
