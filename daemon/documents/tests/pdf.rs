//! The text of PDFs, by the process that reads them.

mod made;

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use io::Read;
use made::{compressed, document, file, objects, plain, shown, stream};
use miniz_oxide::deflate::{
    compress_to_vec_zlib,
    core::{CompressorOxide, TDEFLFlush, compress, create_comp_flags_from_zip_params},
};
use sluice_apart::Patience;
use sluice_documents::{
    DocumentError, Page, Pages,
    limits::{FILE_BYTES_MAX, WAIT_MAX},
};

fn read_patiently(file: impl Read, patience: &Patience) -> Result<Vec<Page>, DocumentError> {
    let program = Path::new(env!("CARGO_BIN_EXE_pdf-text"));
    Pages::of_pdf(program, file, patience)?.collect()
}

fn read(file: &[u8]) -> Result<Vec<Page>, DocumentError> {
    read_patiently(file, &Patience::new(WAIT_MAX, Arc::default()))
}

/// The text of a page with this content.
fn text(content: &str) -> String {
    let mut pages = read(&document(&[plain(content)])).unwrap();
    assert_eq!(pages.len(), 1);
    pages.remove(0).text
}

#[test]
fn pages_come_in_order_with_their_numbers() {
    let page = |text: &str| shown(50, 700, text);
    for write in [plain, compressed] {
        let contents = ["The first page.", "", "The \\(last\\) one: \\351t\\351."];
        let file = document(&contents.map(|text| write(&page(text))));
        let page = |number, text: &str| Page {
            number,
            text: text.into(),
        };
        let expected = [page(1, "The first page."), page(3, "The (last) one: été.")];
        assert_eq!(read(&file).unwrap(), expected);
    }
}

#[test]
fn words_lines_and_paragraphs_are_those_that_are_seen() {
    // Words that are moved apart, by numbers between strings and by space between characters.
    let moved = "BT /F 10 Tf 50 700 Td [(Wo) 20 (rds) -300 (apart)] TJ 0 -12 Td 3 Tc (a) Tj 0 Tc (line) Tj ET ";
    // A word that is cut at a line's end, and one with a hyphen of its own.
    let cut = shown(50, 676, "This one is divid-")
        + &shown(50, 664, "ed at its end, a T-")
        + &shown(50, 652, "Shirt is not.");
    let apart = shown(50, 628, "Another paragraph.") + &shown(50, 616, "Its end.");
    let indented = shown(70, 604, "A third, which is indented.") + &shown(50, 592, "It ends.");
    let column = shown(350, 700, "The other column.");
    assert_eq!(
        text(&(moved.to_owned() + &cut + &apart + &indented + &column)),
        "Words apart\na line\nThis one is divided at its end, a T-\nShirt is not.\n\n\
         Another paragraph.\nIts end.\n\nA third, which is indented.\nIt ends.\n\nThe other column."
    );
}

#[test]
fn text_is_read_that_is_spaced_out_shown_twice_or_turned() {
    let spaced = "BT /F 10 Tf 50 700 Td 4 Tc (SPACED) Tj 90 0 Td (OUT) Tj 0 Tc ET ";
    let twice = shown(50, 650, "Bold") + "BT /F 10 Tf 50.3 650 Td (Bold) Tj ET ";
    let leaders = shown(50, 630, "Contents . . . . . . . . . . 7");
    let turned = "BT /F 10 Tf 0 1 -1 0 20 300 Tm (Up the ) Tj (margin) Tj ET";
    assert_eq!(
        text(&(spaced.to_owned() + &twice + &leaders + turned)),
        "SPACED OUT\n\nBold\nContents ... 7\n\nUp the margin"
    );
}

#[test]
fn what_stands_in_form_fields_is_read_and_what_is_hidden_is_not() {
    let mut all = objects(&[plain("")]);
    let note = |hidden, form| {
        format!("<</Type/Annot/Rect[50 500 90 520]/F {hidden}/AP<</N {form} 0 R>>>>")
    };
    let page = String::from_utf8(all[3].clone()).unwrap();
    let notes = note(4, 6) + &note(2, 7);
    all[3] = page
        .replace("/Contents", &format!("/Annots[{notes}]/Contents"))
        .into_bytes();
    for text in ["a field", "hidden"] {
        all.push(stream("/Subtype/Form", shown(2, 2, text).as_bytes()));
    }
    let pages = read(&file(&all, "")).unwrap();
    assert_eq!(pages[0].text, "a field");
}

#[test]
fn files_that_are_no_readable_pdf_are_refused_with_the_reason() {
    let encrypted = file(
        &objects(&[plain(&shown(50, 700, "secret"))]),
        "/ID[(0123456789abcdef)(0123456789abcdef)]/Encrypt<</Filter/Standard/V 2/R 3/Length 128/P -4\
         /O(0123456789abcdef0123456789abcdef)/U(0123456789abcdef0123456789abcdef)>>",
    );
    let picture = stream(
        "/Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8",
        b"(no text) Tj",
    );
    let scan = document(&[picture, plain("q 600 0 0 800 0 0 cm /X Do Q")]);
    let no_pages = file(&objects(&[]), "");
    let cases: [(&[u8], DocumentError); 6] = [
        (b"", DocumentError::NotPdf),
        (b"A text that is no PDF.", DocumentError::NotPdf),
        (b"%PDF-1.7\nand no more", DocumentError::Damaged),
        (&no_pages, DocumentError::Damaged),
        (&encrypted, DocumentError::Encrypted),
        (&scan, DocumentError::NoText),
    ];
    for (file, expected) in cases {
        assert_eq!(
            read(file),
            Err(expected),
            "{}",
            String::from_utf8_lossy(file)
        );
    }
    let long = b"%PDF-".chain(io::repeat(b' ').take(FILE_BYTES_MAX));
    let refused = read_patiently(long, &Patience::default());
    assert_eq!(refused, Err(DocumentError::FileTooLarge));
}

/// Zeros of 16 MiB so many times, as raw blocks of Deflate behind a head of zlib's.
fn zeros(times: usize) -> Vec<u8> {
    let mut compressor = CompressorOxide::new(create_comp_flags_from_zip_params(9, 0, 0));
    let mut block = vec![0; 1 << 20];
    let (_, _, length) = compress(
        &mut compressor,
        &vec![0; 16 << 20],
        &mut block,
        TDEFLFlush::Full,
    );
    let mut bytes = vec![0x78, 0x9C];
    bytes.extend(block[..length].repeat(times));
    // The last block, of nothing.
    bytes.extend([1, 0, 0, 0xFF, 0xFF]);
    bytes
}

#[test]
fn a_file_of_bombs_takes_no_more_memory_than_it_may() {
    let once = stream("/Filter/FlateDecode", &zeros(64));
    let twice = compress_to_vec_zlib(&zeros(256), 9);
    let nested = stream("/Filter[/FlateDecode/FlateDecode]", &twice);
    for bomb in [once, nested] {
        let begin = Instant::now();
        let file = document(&[bomb]);
        assert_eq!(
            read(&file),
            Err(DocumentError::Memory),
            "{} bytes",
            file.len()
        );
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn more_text_than_is_taken_is_refused() {
    let content = format!("BT /F 1 Tf ({}) Tj ET", "a".repeat(5 << 20));
    let file = document(&[compressed(&content)]);
    assert_eq!(read(&file), Err(DocumentError::TextTooLong));
}

/// Files that contradict themselves: each ends with text or a reason.
#[test]
fn files_that_lead_in_circles_or_deep_down_end_soon() {
    let text = plain(&shown(50, 700, "text"));
    let with = |index: usize, object: &[u8]| {
        let mut objects = objects(std::slice::from_ref(&text));
        objects[index] = object.to_vec();
        file(&objects, "")
    };
    let deep = |open: &str, close: &str, times| [open.repeat(times), close.repeat(times)].concat();
    let first = String::from_utf8(document(std::slice::from_ref(&text))).unwrap();
    let start = first.rfind("xref\n0").unwrap();
    let cases = [
        (
            "a tree of pages that is its own kid",
            with(1, b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 9>>"),
        ),
        (
            "a page in itself",
            with(3, b"<</Type/Pages/Parent 4 0 R/Kids[4 0 R 2 0 R]/Count 1>>"),
        ),
        ("a catalog that is itself", with(0, b"1 0 R")),
        (
            "an enormous length",
            with(
                4,
                b"<</Length 9223372036854775807>>\nstream\n(x) Tj\nendstream",
            ),
        ),
        (
            "a negative length",
            with(4, b"<</Length -5>>\nstream\n(x) Tj\nendstream"),
        ),
        (
            "a length that is in its own stream",
            with(4, b"<</Length 5 0 R>>\nstream\n(x) Tj\nendstream"),
        ),
        (
            "a font that is its own encoding",
            with(
                2,
                b"<</Type/Font/Subtype/Type0/Encoding 3 0 R/DescendantFonts[3 0 R]>>",
            ),
        ),
        ("arrays", document(&[plain(&deep("[", "]", 1 << 20))])),
        (
            "dictionaries",
            with(2, deep("<</A", ">>", 1 << 20).as_bytes()),
        ),
        ("kept states", document(&[plain(&"q ".repeat(1 << 20))])),
        ("strings", document(&[plain(&deep("(", ")", 1 << 20))])),
        (
            "an earlier table that is this one",
            file(
                &objects(std::slice::from_ref(&text)),
                &format!("/Prev {start}"),
            ),
        ),
        (
            "a form in itself",
            document(&[stream("/Subtype/Form", b"/X Do BT /F 9 Tf (x) Tj ET")]),
        ),
        (
            "a table far behind the end",
            first
                .replace(&format!("startxref\n{start}"), "startxref\n99999999999")
                .into_bytes(),
        ),
    ];
    for (name, file) in cases {
        let begin = Instant::now();
        let read = read(&file);
        println!("{name}: {read:?}");
        let is_foreseen = !matches!(
            read,
            Err(DocumentError::Process { .. } | DocumentError::Cpu | DocumentError::Wait)
        );
        assert!(is_foreseen, "{name}: {read:?}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{name}");
    }
}

/// A form that shows itself ten times, in which there is no end of work.
fn endless() -> Vec<u8> {
    document(&[stream("/Subtype/Form", "/X Do ".repeat(10).as_bytes())])
}

#[test]
fn nobody_waits_longer_than_they_want_to() {
    let patience = Patience::new(Duration::from_millis(300), Arc::default());
    assert_eq!(
        read_patiently(&endless()[..], &patience),
        Err(DocumentError::Wait)
    );
    let gone = Arc::new(AtomicBool::new(false));
    let patience = Patience::new(WAIT_MAX, gone.clone());
    let begin = Instant::now();
    let leave = thread::Builder::new().name("leave".into());
    let leave = leave.spawn(move || {
        thread::sleep(Duration::from_millis(300));
        gone.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        read_patiently(&endless()[..], &patience),
        Err(DocumentError::Gone)
    );
    assert!(begin.elapsed() < Duration::from_secs(10));
    leave.unwrap().join().unwrap();
}

#[test]
#[ignore = "half a minute of a processor's time"]
fn endless_work_ends_by_the_time_it_took() {
    assert_eq!(read(&endless()), Err(DocumentError::Cpu));
}

/// Thirty files in `cargo test`; `SLUICE_MUTATIONS` says another number.
#[test]
fn mutated_files_end_as_foreseen() {
    let count = std::env::var("SLUICE_MUTATIONS").map_or(30, |count| count.parse().unwrap());
    let content =
        shown(50, 700, "Some text,") + "q 1 0 0 1 5 5 cm /X Do Q " + &shown(50, 600, "and more.");
    let base = document(&[plain(&content), compressed(&content)]);
    let mut random = 22_u64;
    let mut below = |end: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 32) as usize % end
    };
    let mut readable = 0;
    for _ in 0..count {
        let mut file = base.clone();
        for _ in 0..1 + below(4) {
            let at = below(file.len() - 64);
            match below(4) {
                0 => file[at] = below(256) as u8,
                1 => file[at] = b"0123456789<>[]()/ "[below(18)],
                2 => drop(file.drain(at..at + below(32))),
                _ => file.extend_from_within(at..at + below(64)),
            }
        }
        let read = read(&file);
        let is_foreseen = !matches!(
            read,
            Err(DocumentError::Process { .. } | DocumentError::Wait)
        );
        assert!(is_foreseen, "{read:?}: {}", String::from_utf8_lossy(&file));
        readable += usize::from(read.is_ok());
    }
    println!("{readable} of {count} had text");
}

#[test]
fn cut_files_end_as_foreseen() {
    let base = document(&[
        plain(&shown(50, 700, "text")),
        compressed(&shown(50, 700, "text")),
    ]);
    for length in (0..base.len()).step_by(40) {
        let read = read(&base[..length]);
        assert!(
            !matches!(read, Err(DocumentError::Process { .. })),
            "{length}: {read:?}"
        );
    }
}
