//! PDFs that tests write.

/// What stands for the pages' tree, behind the catalog.
const PAGES: usize = 2;
/// The font of all pages.
const FONT: usize = 3;
/// The first object that a test numbers itself.
pub(crate) const FIRST: usize = 4;

/// A PDF whose objects are these, from the first on, with a table of where they are.
pub(crate) fn file(objects: &[Vec<u8>], trailer: &str) -> Vec<u8> {
    let mut file = b"%PDF-1.7\n".to_vec();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (index, object) in objects.iter().enumerate() {
        table += &format!("{:010} 00000 n \n", file.len());
        file.extend(format!("{} 0 obj\n", index + 1).as_bytes());
        file.extend(object);
        file.extend(b"\nendobj\n");
    }
    let start = file.len();
    file.extend(table.as_bytes());
    let size = objects.len() + 1;
    let end = format!("trailer\n<</Size {size}/Root 1 0 R{trailer}>>\nstartxref\n{start}\n%%EOF\n");
    file.extend(end.as_bytes());
    file
}

/// The objects of a document with a page for each of these contents, which is an object of its own behind the page's.
pub(crate) fn objects(contents: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let page = |index| FIRST + 2 * index;
    let kids: String = (0..contents.len())
        .map(|index| format!("{} 0 R ", page(index)))
        .collect();
    let count = contents.len();
    let mut objects = vec![
        format!("<</Type/Catalog/Pages {PAGES} 0 R>>").into_bytes(),
        format!("<</Type/Pages/Kids[{kids}]/Count {count}/MediaBox[0 0 600 800]>>").into_bytes(),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>".to_vec(),
    ];
    for (index, content) in contents.iter().enumerate() {
        let content_object = page(index) + 1;
        // The first content is a form of all pages, too.
        let resources = format!("/Font<</F {FONT} 0 R>>/XObject<</X {} 0 R>>", FIRST + 1);
        objects.push(
            format!(
                "<</Type/Page/Parent {PAGES} 0 R/Resources<<{resources}>>/Contents {content_object} 0 R>>"
            )
            .into_bytes(),
        );
        objects.push(content.clone());
    }
    objects
}

/// A document with a page for each of these contents.
pub(crate) fn document(contents: &[Vec<u8>]) -> Vec<u8> {
    file(&objects(contents), "")
}

/// A stream of these bytes, as they are.
pub(crate) fn plain(content: &str) -> Vec<u8> {
    stream("", content.as_bytes())
}

/// A stream of these bytes, compressed.
pub(crate) fn compressed(content: &str) -> Vec<u8> {
    let bytes = miniz_oxide::deflate::compress_to_vec_zlib(content.as_bytes(), 6);
    stream("/Filter/FlateDecode", &bytes)
}

/// A stream of bytes as they stand in the file, with more keys.
pub(crate) fn stream(keys: &str, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len();
    let mut object = format!("<</Length {length}{keys}>>\nstream\n").into_bytes();
    object.extend(bytes);
    object.extend(b"\nendstream");
    object
}

/// Content that shows a text at a place of the page.
pub(crate) fn shown(x: u32, y: u32, text: &str) -> String {
    format!("BT /F 10 Tf {x} {y} Td ({text}) Tj ET\n")
}
