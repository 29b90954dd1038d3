//! The process that reads documents, as the program itself becomes it.

use std::path::Path;

use sluice_documents::{DocumentError, Pages};
use sluice_tokenizer::Patience;

#[test]
fn documents_are_read_by_the_program_itself() {
    let program = Path::new(env!("CARGO_BIN_EXE_sluiced"));
    let content = "BT /F 10 Tf 50 700 Td (Some text.) Tj ET";
    let length = content.len();
    // Without a table of its objects: they are found all the same.
    let pdf = format!(
        "%PDF-1.7\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n\
         2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1/MediaBox[0 0 600 800]>>endobj\n\
         3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R>>endobj\n\
         4 0 obj<</Length {length}>>stream\n{content}\nendstream endobj\n\
         trailer<</Root 1 0 R>>"
    );
    let read = |pdf: &str| Pages::of_pdf(program, pdf.as_bytes(), &Patience::default())?.collect();
    let pages: Result<Vec<_>, DocumentError> = read(&pdf);
    let pages = pages.unwrap();
    let texts: Vec<_> = pages
        .iter()
        .map(|page| (page.number, &*page.text))
        .collect();
    assert_eq!(texts, [(1, "Some text.")]);
    assert_eq!(read("a note"), Err(DocumentError::NotPdf));
}
